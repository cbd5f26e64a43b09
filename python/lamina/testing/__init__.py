"""For tests of stores and storages: components that can be steered, faults, and suites to subclass.

The suites `lamina.testing.storage_conformance` and `lamina.testing.store_conformance` need pytest.
"""

from __future__ import annotations

from lamina.testing.components import ManualClock, SequenceIds
from lamina.testing.faults import Fault, FaultyBackend

__all__ = ["Fault", "FaultyBackend", "ManualClock", "SequenceIds"]
