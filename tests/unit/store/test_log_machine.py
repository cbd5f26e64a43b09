"""The state machine of `lamina.testing` with the changelog, as long as a test run allows."""

from __future__ import annotations

import pytest

from lamina.testing.log_machine import LogMachine
from lamina.testing.state_machine import profile

pytestmark = pytest.mark.long

TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = profile(examples=100)
