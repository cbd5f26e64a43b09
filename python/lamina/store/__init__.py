"""State of one operator partition as versions: commit, restore, compact, collect."""

from __future__ import annotations

from lamina.store.chain import Segment
from lamina.store.checkpoint_state import CheckpointState
from lamina.store.compaction import Compacted
from lamina.store.heap import HeapStore
from lamina.store.model import (
    Begin,
    Collected,
    CommitRequest,
    Committed,
    Feed,
    Load,
    StoreConf,
    StoreId,
    Verdict,
    Version,
    VersionInfo,
)

__all__ = [
    "Begin",
    "CheckpointState",
    "Collected",
    "CommitRequest",
    "Committed",
    "Compacted",
    "Feed",
    "HeapStore",
    "Load",
    "Segment",
    "StoreConf",
    "StoreId",
    "Verdict",
    "Version",
    "VersionInfo",
]
