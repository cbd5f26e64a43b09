"""Options of RocksDB for the kill campaign, whose tables are few and small: they are merged all the time."""

from __future__ import annotations

from typing import Any


def eager(options: Any) -> Any:
    """Two tables are merged already."""
    options.set_level_zero_file_num_compaction_trigger(2)
    return options
