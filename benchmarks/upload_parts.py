"""The parts of what stores upload, as the files of a state's directory show them."""

from __future__ import annotations

import os
from pathlib import Path

INCREMENTS, RUNS, MERGED, LISTS = "increments", "runs", "merged by RocksDB", "lists"
PARTS = (INCREMENTS, RUNS, MERGED, LISTS)
_BY_ENDING = {
    ".lam": INCREMENTS, ".log": INCREMENTS, ".changelog": INCREMENTS, ".rdb": LISTS, ".zip": LISTS,
}  # fmt: skip
_LEFT_OUT = (".crc", ".tmp", ".needs", ".at")
"""Checksum files, and what is no state."""
_WRITTEN_OUTSIDE = b"external_sst_file"
"""Begins the name of a property of tables that no database has written, in their last kilobytes."""
_TAIL_BYTES = 64 << 10


def part_of(path: str) -> str | None:
    """Which part of the uploads a file is that stores have written; None of those that nobody uploads."""
    ending = os.path.splitext(path)[1]
    if ending in _LEFT_OUT:
        return None
    if ending != ".sst":
        if ending not in _BY_ENDING:
            raise ValueError(f"{path} is of no part")
        return _BY_ENDING[ending]
    with open(path, "rb") as table:
        table.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
        return RUNS if _WRITTEN_OUTSIDE in table.read() else MERGED


def part_bytes(state: Path) -> dict[str, int]:
    """How many bytes of each part a state's directory has."""
    total = dict.fromkeys(PARTS, 0)
    for folder, _, names in os.walk(state):
        operator, partition, *further = (*Path(folder).relative_to(state).parts, "", "")
        is_log = (operator, partition) == ("_lamina", "log")
        if not is_log and (not (operator.isdigit() and partition.isdigit()) or "_metadata" in further):
            # what is written once, or once a run
            continue
        for name in names:
            path = os.path.join(folder, name)
            try:
                part = part_of(path)
                if part is not None:
                    total[part] += os.path.getsize(path)
            except FileNotFoundError:
                continue
    return total
