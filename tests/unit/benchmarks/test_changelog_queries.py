"""What the benchmark of the changelog makes of its queries, and how it counts what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import changelog_batches, changelog_objects, changelog_space, changelog_waits, slow_files
from benchmarks.changelog import CHANGELOG
from benchmarks.changelog_modes import EXECUTOR, MODES, OFF, PATIENT, TASK, UNHEDGED
from benchmarks.slow_files import Request, Trace
from benchmarks.statistics import spread
from benchmarks.variants import FLOOR, SNAPSHOTS, TUNED
from lamina.settings import PREFIX, Settings
from lamina.store.changelog.changelog import check_times, longest_s
from tests.unit.benchmarks.answers import answer

QUESTIONS = {question.name: question for question in CHANGELOG.questions}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (".0123456789abcdef0123456789abcdef.log.20-7.tmp", "log"),
        (".7_L1.7.1.o.0123.lam.20-7.tmp", "lam"),
        (".1-4_0123.seg.20-7.tmp", "seg"),
        (".7_a-b.changelog.c-d.TID12.tmp", "changelog"),
        (".7_a-b.changelog.crc.c-d.TID12.tmp", "crc"),
        (".7_a-b.zip.c-d.TID12.tmp", "zip"),
        ("000009-a-b.sst", "sst"),
        ("metadata", "other"),
    ],
)
def test_a_file_is_counted_by_what_it_will_be(name: str, kind: str) -> None:
    assert Request("PUT", 0.0, f"/c/state/0/1/{name}").kind == kind


def test_a_trace_has_what_is_new_of_all_processes(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    (tmp_path / "1.trace").write_text("PUT 0.25 /c/state/0/1/.1.lam.2-3.tmp\nGET 0.0 /c/state/0/1/1.lam\n")
    first = trace.unread()
    assert first[0] == Request("PUT", 0.25, "/c/state/0/1/.1.lam.2-3.tmp")
    assert slow_files.puts(first) == {"lam": 1}
    (tmp_path / "2.trace").write_text("PUT 0.0 /c/commits/.0.a.tmp\n")
    (later,) = trace.unread()
    assert not later.in_state and slow_files.puts([later]) == {}
    assert trace.unread() == []


def test_a_wait_is_what_a_batch_takes_longer_than_without_latency() -> None:
    found = changelog_waits._figures(
        {
            "slow_ms": [110.0] * 99 + [1100.0], "quick_ms": [90.0, 100.0, 110.0], "puts": {"log": 100, "seg": 50},
            "put_ms": [10.0] * 150, "updated_rows": 5,
        }
    )  # fmt: skip
    assert found["p50"] == 10 and found["p99.9"] == 1000
    assert found["requests"] == 1.5 and found["noise_ms"] == 10


def test_the_waits_are_held_against_both_built_in_stores_and_the_storage() -> None:
    names = ("p50", "p99", "p99.9", "storage_p99", "batch_ms", "noise_ms", "requests", "updated_rows")
    question = QUESTIONS["query-waits"]
    figures: dict[str, Any] = {mode: dict.fromkeys(names, spread([10.0])) for mode in question.full["modes"]}
    figures |= {"shorter": {SNAPSHOTS: spread([11.0]), TUNED: spread([9.0])}, "to_storage": spread([1.2])}
    assert [bar.met for bar in question.bars(question.full, figures)] == [True, False, True]
    page = CHANGELOG.section({"cells": {"query-waits": answer(question, figures)}})
    assert "times 1; Spark's offsets" in page and UNHEDGED in question.full["modes"]


def test_each_mode_is_told_how_many_slow_batches_it_has() -> None:
    question = QUESTIONS["query-waits"]
    for parameters in (question.full, {**question.full, **question.quick}):
        assert list(parameters["slow"]) == parameters["modes"]
    slow = {**dict.fromkeys(question.full["modes"], 3), EXECUTOR: 7_000, TUNED: 200}
    figures = {EXECUTOR: {"updated_rows": spread([992.0])}}
    text = question.setup({**question.full, "slow": slow}, figures)
    assert "7,000 batches with level executor, 200 of the built-in stores and 3 of the others" in text


def test_merges_in_the_background_are_no_files_of_commits() -> None:
    puts = [{"log": 2, "seg": 20}, {"log": 3, "lam": 1}]
    found = changelog_objects._figures([{"puts": puts, "entries": [2, 2], "updated_rows": [9, 9]}])
    assert found["commits"] == spread([2, 4]) and found["background"] == spread([20, 0])
    assert found["kinds"]["lam"] == spread([0, 1])


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        *((mode, {}) for mode in (TASK, EXECUTOR, PATIENT, UNHEDGED)),
        *((mode, changelog_space.COLLECTED) for mode in (TASK, EXECUTOR, UNHEDGED)),
    ],
)
def test_the_engine_takes_what_the_benchmarks_set(mode: str, more: dict[str, str]) -> None:
    conf = {**MODES[mode][1], **more}
    settings = Settings.parse({key: value for key, value in conf.items() if key.startswith(PREFIX)})
    check_times(settings)
    assert 1000 * longest_s(settings) < settings.changelog_barrier_timeout_ms


def test_only_modes_with_the_changelog_are_held_against_the_map_and_the_mode_without() -> None:
    ratios = {FLOOR: spread([1.0]), OFF: spread([1.0]), TASK: spread([1.05]), EXECUTOR: spread([1.2])}
    bars = changelog_batches.bars_to_floor({"partitions": 200}, {f"add_batch_to_{FLOOR}": ratios})
    assert [bar.met for bar in bars] == [True, False]
    rates = {OFF: spread([100.0]), TASK: spread([94.0]), EXECUTOR: spread([96.0])}
    assert [bar.met for bar in changelog_batches.bars_of_throughput({}, {f"rate_to_{OFF}": rates})] == [False, True]
