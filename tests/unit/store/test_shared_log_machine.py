"""The state machine with several stores in a log object: a short run, and one as long as a test run allows."""

from __future__ import annotations

import pytest

from lamina.testing.shared_log_machine import SharedLogMachine
from lamina.testing.state_machine import profile, run


def test_stores_that_share_log_objects() -> None:
    run(1, 8, SharedLogMachine)


TestSharedLogMachine = pytest.mark.long(SharedLogMachine.TestCase)
TestSharedLogMachine.settings = profile(examples=120)
