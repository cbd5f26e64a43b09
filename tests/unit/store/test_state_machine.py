"""The state machine of `lamina.testing` on the heap store, as long as a test run allows."""

from __future__ import annotations

import pytest

from lamina.testing.state_machine import StoreMachine, profile

pytestmark = pytest.mark.long

TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = profile(examples=600)
