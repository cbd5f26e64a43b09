"""What the benchmark of backend rocksdb makes of what it measured."""

from __future__ import annotations

from typing import Any

from benchmarks import rocksdb_modes, rocksdb_restart
from benchmarks.rocksdb_modes import FULL, INCREMENTAL, MERGED, PERCENTS, TABLES
from benchmarks.statistics import spread


def mode(runtime_s: float, value: float) -> dict[str, Any]:
    columns = {name: {str(percent): value for percent in percents} for name, percents in PERCENTS.items()}
    return {"runtime_s": runtime_s, **columns}


def test_each_column_of_the_checkpoint_modes_is_held_against_the_others() -> None:
    merged = mode(1, 2)
    merged["sync_ms"]["99"] = 5
    figures = {FULL: mode(9, 9), INCREMENTAL: mode(5, 2), MERGED: merged, TABLES: mode(5, 4)}
    shown = {bar.what: (bar.met, bar.measured) for bar in rocksdb_modes.bars({}, figures)}
    assert shown == {
        f"{INCREMENTAL}: less than {FULL}": (True, "in each"),
        f"{INCREMENTAL}: less than {TABLES}": (False, "not in runtime"),
        f"{MERGED}: less than {FULL}": (True, "in each"),
        f"{MERGED}: less than {TABLES}": (False, "not in synchronous part, ms at 99 %"),
    }
    _, rows = rocksdb_modes.table(figures)
    assert [row[0] for row in rows] == [FULL, INCREMENTAL, MERGED, TABLES]


def test_a_restart_is_told_with_what_it_takes_beyond_a_query_without_a_state() -> None:
    ours, copies, theirs, without = rocksdb_restart.CELLS
    times = {ours: 30.0, copies: 12.0, theirs: 45.0, without: 10.5}
    figures = {
        "restart_s": {cell: spread([one]) for cell, one in times.items()},
        "beyond_s": rocksdb_restart.beyond({cell: [one] for cell, one in times.items()}),
        "load_s": {ours: spread([9.0]), copies: spread([2.5])},
        "batch_ms": dict.fromkeys(times, spread([1.0])),
        "carried": dict.fromkeys(times, spread([1.0])),
        "faster": {rocksdb_restart.COLD: spread([1.5])},
    }
    assert [bar.met for bar in rocksdb_restart.bars({}, figures)] == [False, False, True, False]
    _, rows = rocksdb_restart.table(figures)
    assert [row[:4] for row in rows] == [
        [ours, "30.0", "19.5", "9.0"], [copies, "12.0", "1.5", "2.5"], [theirs, "45.0", "34.5", ""],
        [without, "10.5", "0.0", ""],
    ]  # fmt: skip
