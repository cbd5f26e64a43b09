"""The rules that the nightly run takes away from the store fit the store as it is.

Whether they are found takes thousands of examples there; here few show that each can be taken away: an error that is
neither a check's nor the store's would be one of the test's own.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from lamina.errors import LaminaError
from lamina.testing.shared_log_machine import SharedLogMachine
from lamina.testing.state_machine import StoreMachine
from tests.nightly import test_shared_log_machine_finds as shared_log
from tests.nightly import test_state_machine_finds as one_store

CASES: list[tuple[one_store.Break, type[RuleBasedStateMachine], settings]] = [
    *((broken, StoreMachine, settings(one_store.QUICK, max_examples=12)) for broken in one_store.FOUND_BY),
    *(
        (broken, SharedLogMachine, settings(shared_log.PROFILE, max_examples=6, derandomize=True))
        for broken in shared_log.FOUND_BY
    ),
]


@pytest.mark.parametrize(("broken", "machine", "few"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_rule_can_be_taken_away(
    broken: one_store.Break, machine: type[RuleBasedStateMachine], few: settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    try:
        run_state_machine_as_test(machine, settings=few)
    except AssertionError:
        pass
    except LaminaError as error:
        # what an exception becomes that is none of the project's
        if error.kind == "internal":
            raise
