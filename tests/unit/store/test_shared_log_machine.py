"""The state machine with several stores in a log object: a short run, and one as long as a test run allows."""

from __future__ import annotations

import sys

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from lamina.testing import state_machine
from lamina.testing.log_machine import LogMachine
from lamina.testing.shared_log_machine import SharedLogMachine
from lamina.testing.state_machine import StoreMachine, profile, run


def test_stores_that_share_log_objects() -> None:
    run(1, 8, SharedLogMachine)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [([], StoreMachine), (["--machine", "log"], LogMachine), (["--machine", "shared-log"], SharedLogMachine)],
)
def test_a_failing_seed_of_each_machine_can_be_replayed(
    machine: list[str], expected: type[RuleBasedStateMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setattr(state_machine, "run", lambda *given: ran.append(given))
    monkeypatch.setattr(sys, "argv", ["state_machine", *machine, "--seed", "7", "--examples", "3"])
    state_machine.main()
    assert ran == [(7, 3, expected)]


TestSharedLogMachine = pytest.mark.long(SharedLogMachine.TestCase)
TestSharedLogMachine.settings = profile(examples=120)
