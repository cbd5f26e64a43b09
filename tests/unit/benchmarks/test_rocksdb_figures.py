"""What the benchmark of backend rocksdb makes of what it measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rocksdict

from benchmarks import rocksdb_modes, rocksdb_restart, rocksdb_uploads
from benchmarks.rocksdb import ROCKSDB
from benchmarks.rocksdb_modes import FULL, INCREMENTAL, MERGED, PERCENTS, TABLES
from benchmarks.statistics import spread
from benchmarks.upload_parts import PARTS, part_bytes
from benchmarks.variants import ON_TABLES


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


def test_uploads_are_told_by_part_as_the_files_say(tmp_path: Path) -> None:
    state = tmp_path / "state" / "0" / "1"
    state.mkdir(parents=True)
    log = tmp_path / "state" / "_lamina" / "log"
    log.mkdir(parents=True)
    (log / "a.log").write_bytes(bytes(2))
    (log.parent / "checkpoint").write_bytes(bytes(64))
    (state / "_metadata").mkdir()
    (state / "_metadata" / "schema").write_bytes(bytes(64))
    outside = rocksdict.SstFileWriter(rocksdict.Options(raw_mode=True))
    outside.open(str(state / "1.sst"))
    outside[b"key"] = b"value"
    outside.finish()
    database = rocksdict.Rdict(str(tmp_path / "db"), rocksdict.Options(raw_mode=True))
    database[b"key"] = bytes(1000)
    database.flush()
    database.close()
    (written,) = (tmp_path / "db").glob("*.sst")
    written.rename(state / "2.sst")
    for name, size in {"1.lam": 1, "2.changelog": 4, "1.rdb": 8, "1.zip": 16, ".1.lam.crc": 32}.items():
        (state / name).write_bytes(bytes(size))
    assert part_bytes(tmp_path / "state") == {
        "increments": 7, "lists": 24, "runs": (state / "1.sst").stat().st_size,
        "merged by RocksDB": (state / "2.sst").stat().st_size,
    }  # fmt: skip


def test_a_file_that_is_of_no_part_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "0" / "1").mkdir(parents=True)
    (tmp_path / "0" / "1" / "1.new").write_bytes(bytes(1))
    with pytest.raises(ValueError, match=r"1\.new"):
        part_bytes(tmp_path)


def test_uploads_are_held_against_each_built_in_store_and_pauses_without_a_pace_only() -> None:
    stores = rocksdb_uploads.STORES
    names = ("bytes", *PARTS, "add_batch_ms", "pause")
    figures: dict[str, Any] = {name: dict.fromkeys(stores, spread([2000.0])) for name in names}
    figures |= {"share": {one: spread([0.5]) for one in stores[1:]}, "state_rows": 7, "same_digest": True}
    figures["pause"][ON_TABLES] = spread([1.6])
    paced, quick = (
        next(one for one in ROCKSDB.questions if one.name == name) for name in ("uploads-each-second", "uploads")
    )
    assert [bar.met for bar in quick.bars(quick.full, figures)] == [False, True, True, True]
    assert [bar.met for bar in paced.bars(paced.full, figures)] == [True, True, True]
    assert "one each 1 s" in paced.setup(paced.full, figures) and "without a pause" in quick.setup(quick.full, figures)
    heads, rows = quick.table(figures)
    assert [row[1] for row in rows] == ["2"] * len(stores)
    assert {len(row) for row in rows} == {len(heads)}
    del figures["pause"]
    assert paced.table(figures)[0] == heads[:-2]


def test_the_synchronous_part_of_a_checkpoint_has_the_wait_for_its_tables() -> None:
    one = {"commit_ms": 20, "durable_ms": 5, "waited_ms": 300}
    answer = {"checkpoints": [one], "sizes": [1_000_000], "trigger_ms": [400.0]}
    found = rocksdb_modes._summary([answer])
    assert set(found["sync_ms"].values()) == {320}
    assert set(found["duration_s"].values()) == {0.325}
