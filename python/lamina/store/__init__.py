"""State of one operator partition as versions: commit, restore, compact, collect."""

from __future__ import annotations

from lamina.store.materialization.materializer import Compacted
from lamina.store.model import (
    Accepted,
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
from lamina.store.protocol import Store
from lamina.store.versions.chain import Replacement
from lamina.store.versions.checkpoint_state import CheckpointState

__all__ = [
    "Accepted",
    "Begin",
    "CheckpointState",
    "Collected",
    "CommitRequest",
    "Committed",
    "Compacted",
    "Feed",
    "Load",
    "Replacement",
    "Store",
    "StoreConf",
    "StoreId",
    "Verdict",
    "Version",
    "VersionInfo",
]
