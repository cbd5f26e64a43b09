"""The state machine of `lamina.testing` on the heap store, as long as a test run allows."""

from __future__ import annotations

import inspect
import sys
from types import FrameType

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from lamina.store.versions import chain
from lamina.testing.query_machine import QueryMachine
from lamina.testing.state_machine import StoreMachine, profile

pytestmark = pytest.mark.long

TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = profile(examples=600)


@pytest.fixture(autouse=True)
def short_chains_above_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no commit on tables would come to write all of its version."""
    monkeypatch.setattr(chain, "ABOVE_TABLES", 2)


def test_every_rule_and_every_check_of_the_machine_is_called() -> None:
    """`tests.promises` counts those that hold a promise as run where this test and the machine's ran."""
    called: set[str] = set()
    files = {inspect.getfile(machine) for machine in (QueryMachine, StoreMachine)}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in files:
            called.add(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        # which examples these are depends on the modules that were loaded before: of half as many a rule may be absent
        run_state_machine_as_test(StoreMachine, settings=settings(profile(examples=80), derandomize=True))
    finally:
        sys.setprofile(before)
    functions = {**vars(QueryMachine), **vars(StoreMachine)}
    wanted = {name for name, part in functions.items() if inspect.isfunction(part) and not name.startswith("_")}
    assert {"check_every_retained_version_restores", "collect_by_a_zombie", "hand_footprints", "rewind"} <= wanted
    assert wanted - called == set()
