"""What the benchmarks make of their rounds, and what the page of results says about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lamina
from benchmarks import aggregation, batches_report, compaction, machine, memory, micro, restore, rounds, store_report
from benchmarks.compaction_child import beside
from benchmarks.processes import ROLES
from benchmarks.restore_child import files_read
from benchmarks.statistics import spread
from benchmarks.variants import FLOOR, HDFS, LAMINA, NO_COMPACTION, NO_FILES, ROCKSDB, STATELESS, durability
from lamina.format.manifest import Reference, StoreIdentity
from lamina.settings import PREFIX, Settings
from lamina.store.model import KEEP, WAIT, Verdict

MIB = 1 << 20
INCREMENTS = 20
RAN: dict[str, Any] = {
    "date": "2026-01-02",
    "machine": {"cpu": "a processor", "cores": 2, "memory_gib": 16.0, "system": "Linux 6", "jdk": "17",
                "python": "3.11", "spark": "4.3.0", "pyarrow": "26"},
    "rounds": 2,
    "load": spread([0.5, 1.5]),
}  # fmt: skip


def aggregated(lamina_ms: list[float], map_ms: list[float]) -> dict[str, Any]:
    """The result of the aggregation benchmark, of one cell, with no built-in store but HDFS."""

    def runs(times: list[float], digest: str = "d") -> list[dict[str, Any]]:
        run = {"processor_ms": dict.fromkeys(ROLES, 7.0), "digest": digest, "load": 1.0, "gc_ms_a_batch": 3.0,
               "bytes_a_batch": 36_000, "segment_bytes_a_batch": 0, "updated_rows": 1_000}  # fmt: skip
        return [{**run, "add_batch_ms": [took] * 3, "trigger_ms": [took + 50] * 3} for took in times]

    rounds = {LAMINA: runs(lamina_ms), FLOOR: runs(map_ms), HDFS: runs([2000.0] * len(map_ms))}
    rounds[STATELESS] = [{key: run[key] for key in run if key != "updated_rows"} for run in runs(map_ms, "other rows")]
    cell = {"rounds": len(map_ms), "driver_memory": "8g", **aggregation.summary(rounds, None)}
    words = {variant: durability(variant) for variant in rounds}
    return {**RAN, "commit": "abc", "durability": words, "cells": {"4M/10k": cell}}


def test_a_batch_is_told_by_its_trigger_and_by_what_of_it_is_in_the_store() -> None:
    result = aggregated([100.0, 120.0, 110.0], [100.0, 100.0, 100.0])
    bars = {bar.what: bar for bar in aggregation.bars(result)}
    assert bars["4M/10k, addBatch: to the bare map"].measured == "1.10 (1.00-1.20)"
    assert bars["4M/10k, trigger: to the bare map"].measured == "1.07 (1.00-1.13)"
    assert bars["4M/10k, trigger: faster than built-in HDFS"].measured == "12.81 (12.06-13.67) times"
    assert bars["4M/10k: bytes written of the changes"].measured == "0.50"
    assert all(bar.met for bar in bars.values()) and len(bars) == 6
    assert not all(bar.met for bar in aggregation.bars(aggregated([150.0], [100.0])))
    readme = batches_report.readme_figures(result, None)
    assert (
        "| a batch, 4M keys, 10k rows | 150 (100) ms | 150 (100) ms | 160 (110) ms | 2050 (2000) ms |  |  |" in readme
    )
    page = batches_report.aggregation_section(result)
    assert "All stores gave the same results." in page and "rocksdb.blockCacheSizeMB=32" in page


def table_run(**changed: Any) -> dict[str, Any]:
    """What the JVM with the table alone prints."""
    sample = {"rows": 10, "overhead": 20.0, "pages": 80.0, "dead": 1.0, "index": 12.0, "undo": 0.2, "waiting": 5.0}
    return {
        "key_value_bytes": 72, "average": 30.0, "grown": sample, "after_updates": sample, "worst": sample,
        "longest_put_growing_ms": 2.0, "longest_put_updating_ms": 1.0,
        "longest_maintain_growing_ms": 1.0, "longest_maintain_updating_ms": 1.5,
        "heap_at_start": 12 * MIB, "heap_grown": 13 * MIB, "digest": "7", "curve": [[10, 20.0, 21.0]], "load": 0.5,
        **changed,
    }  # fmt: skip


def query_run(heap: int, digest: str = "d", **resident: int) -> dict[str, Any]:
    """What a run of the aggregation query gives."""
    processes = {"jvm": 2000 * MIB, "engine": 200 * MIB, "maintenance": 150 * MIB, **resident}
    return {"heap_bytes": heap, "gc_ms_a_batch": 3.0, "resident_bytes": processes, "digest": digest, "load": 1.5}


def memory_result(tables: list[dict[str, Any]], few: list[Any], many: list[Any]) -> dict[str, Any]:
    """The result as it is read back from its file."""
    result = {
        **RAN, "durability": {memory.TABLE: NO_FILES, LAMINA: durability(LAMINA)}, "keys": 4_000_000, "updates": 100,
        "batches": 40, **memory.summary(tables, {500_000: few, 4_000_000: many}),
    }  # fmt: skip
    read: dict[str, Any] = json.loads(json.dumps(result, sort_keys=True))
    return read


def target(result: dict[str, Any], words: str) -> list[str]:
    """The one row of the memory targets whose name has `words`."""
    (found,) = [row for row in store_report.memory_bars(result) if words in row[0]]
    return found


def flat(few: int, many: int) -> dict[str, Any]:
    return memory_result([table_run()] * 2, [query_run(few)] * 2, [query_run(many)] * 2)


def test_memory_takes_medians_over_the_rounds() -> None:
    tables = [table_run(average=average) for average in (31.0, 29.0, 40.0)]
    found = memory_result(tables, [query_run(70 * MIB)] * 3, [query_run(heap * MIB) for heap in (71, 79, 72)])
    assert found["table"]["average"] == {"median": 31.0, "low": 29.0, "high": 40.0}
    assert found["queries"]["4000000"]["heap_bytes"] == {"median": 72 * MIB, "low": 71 * MIB, "high": 79 * MIB}
    assert target(found, "average") == ["average beyond key + value", "≤ 32 bytes", "31.0 (29.0-40.0) bytes", "met"]


@pytest.mark.parametrize(
    ("slow", "kind", "measured"),
    [
        ("longest_put_updating_ms", "a put", "25.0 (20.0-30.0) ms"),
        ("longest_maintain_growing_ms", "a step of reclaim", "25.0 (20.0-30.0) ms"),
    ],
)
def test_the_longest_pause_is_that_of_puts_or_of_reclaim_whichever_is_longer(
    slow: str, kind: str, measured: str
) -> None:
    tables = [table_run(**{slow: millis}) for millis in (20.0, 30.0)]
    row = target(memory_result(tables, [query_run(MIB)] * 2, [query_run(MIB)] * 2), "pause")
    assert row[0].endswith(kind) and row[2:] == [measured, "**not met**"]


def test_heap_is_flat_where_a_further_row_takes_less_than_a_reference() -> None:
    rows = 3_500_000
    assert target(flat(70 * MIB, 70 * MIB + 3 * rows), "heap")[3] == "met"
    assert target(flat(70 * MIB, 70 * MIB + 4 * rows), "heap")[3] == "**not met**"
    assert target(flat(76 * MIB, 74 * MIB), "heap")[2] == "76 (76-76) and 74 (74-74) MiB"


def test_resident_memory_is_judged_where_it_is_greatest() -> None:
    few, many = [query_run(MIB, engine=310 * MIB)] * 2, [query_run(MIB)] * 2
    row = target(memory_result([table_run()] * 2, few, many), "engine")
    assert row[2:] == ["310.0 (310.0-310.0) MiB", "**not met**"]


def test_rounds_that_differ_show_on_the_page_of_memory() -> None:
    few, many = [query_run(MIB)] * 2, [query_run(MIB, digest) for digest in "ef"]
    page = store_report.memory_section(memory_result([table_run()] * 2, few, many))
    assert "**gave different results**" in page
    page = store_report.memory_section(memory_result([table_run()] * 2, few, few))
    assert "gave the same results" in page and "2 rounds, load average before the runs 0.5-1.5" in page
    assert page.index("| 500,000 keys") < page.index("| 4,000,000 keys")
    assert "- the table alone: none, no file is written; fsync no" in page and "- lamina: level task" in page


def restored() -> dict[str, Any]:
    """The result of a restore benchmark of two rounds."""
    processor = {"tasks": 900, "compilers": 200, "engine": 100}
    shown = {"plain": "1:1", "lists": "1:1", "steady": [1e8, 1e8], "scan": 1e9, "processor": processor}
    first = {HDFS: 9e9, ROCKSDB: 3e9, LAMINA: 1e9}
    answers = {variant: [{**shown, "first": nanos + 1e8}] * 2 for variant, nanos in first.items()}
    return {
        **RAN, "keys": 4_000_000, "rows": 50_000, "increments": INCREMENTS,
        "durability": {variant: durability(variant) for variant in first},
        "chain_bytes": dict.fromkeys(first, 1_000_000),
        "chain_files": {HDFS: [21, 21], ROCKSDB: [21, 20], LAMINA: [8, 8]},
        "states": {state: restore.summary(answers) for state in restore.STATES}, "same_digest": True,
    }  # fmt: skip


def test_the_page_of_restore_says_how_durable_and_how_long_the_chains_are() -> None:
    page = store_report.restore_section(restored())
    assert "- lamina: level task: the task ends when all its stores are durable; fsync no; compression zstd" in page
    assert "| built-in RocksDB + changelog | 3.00 (3.00-3.00) | 100 | 1.00 | 1 | 20-21 |" in page
    assert "| lamina | 1.00 (1.00-1.00) | 100 | 1.00 | 1 | 8 |" in page
    assert "| lamina | 900 | 0 | 200 | 0 | 100 | 0 |" in page
    assert "A fresh JVM takes 1.2 s of processor time for lamina's first batch, a running one 1.2 s." in page
    assert "| restore to the better built-in, JVM fresh | ≤ 0.3 | 0.33 (0.33-0.33) | **not met** |" in page


def test_the_page_of_single_rows_judges_the_store_and_says_whether_the_rows_agree() -> None:
    costs = {LAMINA: spread([1000.0, 1010.0]), micro.TABLE: spread([200.0, 210.0]), FLOOR: spread([400.0, 410.0])}
    operation = {"cpu_ns": costs, "wall_ns": costs, "ratio": spread([2.4, 2.6])}
    result = {
        **RAN, "keys": 10, "batch": 5, "durability": NO_FILES, "same_digest": False,
        "operations": dict.fromkeys(micro.OPERATIONS, operation),
    }  # fmt: skip
    page = store_report.micro_section(result)
    assert "Durability: none, no file is written; fsync no; compression no." in page
    assert "| get | 1005 (1000-1010) | 205 (200-210) | 405 (400-410) | 2.50 (2.40-2.60) |" in page
    assert "| put, amortised with commit | ≤ 1000 ns | 1005 ns | **not met** |" in page
    assert "2 rounds" in page and "The rows at the end **differ**." in page
    assert "The rows at the end are the same." in store_report.micro_section({**result, "same_digest": True})


def chain(folder: Path, conf: dict[str, str]) -> list[str]:
    """A snapshot and increments of a store, as the benchmark of restores makes them; the id of the last one."""
    settings = Settings.parse(conf)
    store = lamina.open_store(
        str(folder),
        writable=True,
        compaction_mode=settings.compaction_mode,
        compaction_full_interval=settings.compaction_full_interval,
        compaction_max_chain=settings.compaction_max_chain,
    )
    for version in range(1 + INCREMENTS):
        store.put(b"key %d" % version, b"value")
        store.commit(snapshot=version == 0)
        store.compact()
    assert store.version.attempt is not None
    return [store.version.attempt]


def test_without_compaction_a_version_is_one_snapshot_and_all_increments(tmp_path: Path) -> None:
    assert all(key.startswith(PREFIX) for key in NO_COMPACTION)
    whole = chain(tmp_path / "none", NO_COMPACTION)
    assert files_read(LAMINA, tmp_path / "none" / "state", whole) == [1 + INCREMENTS]
    merged = chain(tmp_path / "background", {})
    assert files_read(LAMINA, tmp_path / "background" / "state", merged)[0] < 1 + INCREMENTS


def test_files_of_the_built_in_stores_are_their_newest_snapshot_and_what_came_after(tmp_path: Path) -> None:
    names = {
        "0": ["1.delta", "1.snapshot", ".1.delta.crc", "2.delta", "3.delta"],
        "1": ["1_a-b.changelog", "1_a-b.zip", "2_c-d.changelog", "2_e-f.changelog", "SSTs"],
    }
    for partition, files in names.items():
        (tmp_path / "0" / partition).mkdir(parents=True)
        for name in files:
            (tmp_path / "0" / partition / name).touch()
    assert files_read(HDFS, tmp_path, ["", ""]) == [3, 2]
    assert restore.between([3, 2]) == "2-3"


def compacted(**counted: int) -> dict[str, Any]:
    """The result of a compaction benchmark, as far as its bars need it."""
    found = {
        "chain_bytes": 200, "live_bytes": 100, "stored_bytes": 450, "retained_increment_bytes": 250, "files_last": 9,
        "files_over_bar": 0, "entries_rewritten": 2.9, **counted,
    }  # fmt: skip
    ratio = {"median": 1.0, "low": 0.9, "high": 1.1}
    return {
        "versions": 500, "modes": {compaction.BACKGROUND: found}, "memory": [],
        **dict.fromkeys(compaction.COMMITS, ratio),
    }  # fmt: skip


def test_files_that_only_older_retained_versions_refer_to_are_held_against_none() -> None:
    def bar(**counted: int) -> list[tuple[str, str, str, bool]]:
        return [row for row in compaction.bars(compacted(**counted)) if row[0] == compaction.BESIDE]

    assert bar(stored_files=139, stored_files_beside=30) == [(compaction.BESIDE, "0", "30 of 139", False)]
    assert bar(stored_files=109, stored_files_beside=0) == [(compaction.BESIDE, "0", "0 of 109", True)]


def test_bars_are_held_against_the_worst_round() -> None:
    def answer(files: list[int], stored: int, beside: int) -> dict[str, Any]:
        same = dict.fromkeys(
            ("commit_bytes", "segment_bytes", "segments", "increment_bytes", "segment_rows", "live_bytes"), 10
        )
        times = dict.fromkeys(("commit_ms_median", "commit_ms_p99", "restore_s"), 1.0)
        return {
            **same, **times, "files_per_version": files, "stored_bytes": stored, "retained_increment_bytes": 5,
            "stored_files": 100 + beside, "stored_files_beside": beside, "chain_bytes": stored,
        }  # fmt: skip

    rounds = [answer([1, 9, 2], 20, 1), answer([1, 2, 4], 35, 0), answer([1, 2, 3], 25, 3)]
    found = compaction._summary(rounds, compaction.Load(1, 1, 3, 1))
    assert (found["files_last"], found["files_over_bar"], found["files_curve"]) == (4, 1, [1, 9, 2])
    assert (found["stored_bytes"], found["stored_files"], found["stored_files_beside"]) == (35, 103, 3)


def test_files_beside_are_those_that_neither_the_newest_version_nor_a_commit_of_a_retained_one_accounts_for() -> None:
    def commit(version: int) -> str:
        return f"{version}_L1.{version}.1.o.-.{'0' * 32}.lam"

    def segment(start: int, end: int) -> str:
        return f"{start}-{end}_{'0' * 32}.seg"

    def reference(path: str | None) -> Reference:
        return Reference(None, path, 0, 1, 1, "", "run", 0, 1, 1, StoreIdentity("", 0, 0, "default"))

    newest = [reference(None), reference(commit(8)), reference(segment(0, 8))]
    kept = [commit(10), commit(9), commit(8), commit(4), segment(0, 8), segment(0, 4)]
    verdicts = [Verdict(name, "", 1, 0, KEEP, "") for name in kept]
    verdicts.append(Verdict(segment(2, 4), "", 1, 0, WAIT, ""))
    # of versions 9 and 10, which are retained, the first needs what 4 wrote and the shorter segment
    assert beside(verdicts, newest, oldest_retained=9) == 2
    assert beside(verdicts, newest, oldest_retained=4) == 1


def test_what_is_read_back_of_a_result_is_in_the_order_in_which_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "RESULTS", tmp_path)
    monkeypatch.setattr(machine, "code", lambda: "x")
    rounds.write_result("some", {"cells": {"4M/10k": 1, "10k/10k": 2, "100k/10k": 3}})
    assert list(rounds.read_result("some")["cells"]) == ["4M/10k", "10k/10k", "100k/10k"]
