"""For tests of stores and storages: components that can be steered, faults, and suites to subclass.

The suites `lamina.testing.storage_conformance` and `lamina.testing.store_conformance` need pytest;
`lamina.testing.state_machine` needs hypothesis.
"""

from __future__ import annotations

from lamina.testing.components import ManualClock, SequenceIds
from lamina.testing.faults import Crashed, Effect, Fault, FaultyBackend, Moment, RandomFaults
from lamina.testing.memory import MemoryBackend

__all__ = [
    "Crashed",
    "Effect",
    "Fault",
    "FaultyBackend",
    "ManualClock",
    "MemoryBackend",
    "Moment",
    "RandomFaults",
    "SequenceIds",
]
