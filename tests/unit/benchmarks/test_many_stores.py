"""What the benchmark of many stores measures with, and which of its answers the page of results shows."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, report
from benchmarks.bars import percentile
from benchmarks.many_stores import collection, commit_cost, compaction, small_commits
from benchmarks.many_stores.answers import MANY_STORES
from benchmarks.many_stores.latency import Distance, FarBackend
from benchmarks.processes import ROLES
from benchmarks.statistics import spread
from benchmarks.variants import FLOOR, HDFS, LAMINA, ROCKSDB, STATELESS, TUNED
from lamina.storage import Storage
from lamina.testing.storage_conformance import StorageConformance
from tests.unit.benchmarks.answers import answer

STORES = 6


class TestFarStorage(StorageConformance):
    """A storage that is far away is one all the same."""

    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        here = Storage(f"{self.directory.name}/here")
        return Storage(here.url, backend=FarBackend(here._backend, Distance(f"{self.directory.name}/distance")))

    def teardown_method(self) -> None:
        self.directory.cleanup()


def test_requests_are_counted_by_process_operation_and_kind_since_the_last_look(tmp_path: Path) -> None:
    distance = Distance(tmp_path)
    engine = Distance(tmp_path, "engine")
    engine.request("publish", "0/3/7_L1.lam")
    engine.request("list", "0/3")
    engine.request("list", "_lamina/runs")
    assert distance.requests() == {"engine publish lam": 1, "engine list store": 1, "engine list _lamina/runs": 1}
    engine.request("publish", "0/3/8_L1.lam")
    assert distance.requests() == {"engine publish lam": 1}


def test_every_request_of_a_maintenance_process_meets_the_distance(tmp_path: Path) -> None:
    request = {
        **collection.QUESTION.full,
        "stores": STORES,
        "versions": 12,
        "changes": 2,
        "latency_s": 0,
        "folder": str(tmp_path),
    }
    found = collection.run({**request, "checkpoint": str(tmp_path / "state"), "distance": str(tmp_path / "distance")})
    figures = collection.summary([{**found, "load": 0.0}], STORES)
    assert figures["cold"]["kinds"]["maintenance read lam"] == 12
    assert figures["cold"]["kinds"]["maintenance list store"] == 1
    assert figures["warm"]["kinds"]["maintenance list store"] == 1
    assert figures["unchanged"]["kinds"] == {}


def test_chains_are_counted_of_stores_that_are_merged_meanwhile(tmp_path: Path) -> None:
    found = compaction.run({"stores": STORES, "rows": 3, "batches": 120, "interval_s": 0.1, "folder": str(tmp_path)})
    # where a busy machine merges late, some stores write their state whole
    assert found["segments"] > 0 and found["failed"] == 0
    assert 1 <= found["last_longest"] <= found["longest"] < 120


@pytest.mark.parametrize("cold", [False, True])
def test_a_commit_alone_is_one_with_the_rows_that_are_asked_for(tmp_path: Path, cold: bool) -> None:
    found = commit_cost.alone(
        {"url": str(tmp_path), "hadoop": {}, "stores": STORES, "rows": 3, "warmup": 1, "batches": 4, "cold": cold}
    )
    assert found["ms"] >= found["kernel_ms"] >= 0 and found["rows"] == 3
    assert len(list(tmp_path.glob("0/*/*.lam"))) == STORES * 5


def run_of(batch_ms: float, digest: str = "d") -> dict[str, Any]:
    processor = {**dict.fromkeys(ROLES, 0.0), "engine": 100.0}
    times = [batch_ms] * 9 + [10 * batch_ms]
    return {"add_batch_ms": times, "trigger_ms": times, "processor_ms": processor, "digest": digest, "load": 1.0,
            "updated_rows": 4_000}  # fmt: skip


def small_commits_of(lamina: list[float], floor: list[float]) -> dict[str, Any]:
    runs = {name: [run_of(900.0) for _ in lamina] for name in (HDFS, ROCKSDB, TUNED)}
    runs |= {STATELESS: [run_of(50.0, "other rows") for _ in lamina]}
    runs |= {LAMINA: [run_of(took) for took in lamina], FLOOR: [run_of(took) for took in floor]}
    return small_commits.summary(runs, commits=200)


def test_a_ratio_is_taken_within_a_round_and_its_range_is_of_all_rounds() -> None:
    figures = small_commits_of(lamina=[100.0, 300.0, 220.0], floor=[100.0, 200.0, 200.0])
    assert figures["add_batch_ms_to"][FLOOR] == {"median": 1.1, "low": 1.0, "high": 1.5}
    assert figures["add_batch_ms_p95"][FLOOR] == 2000.0
    assert figures["engine_ms_a_commit"]["median"] == 0.5
    assert figures["same_digest"]
    bars = {bar.what: bar for bar in small_commits.bars({}, figures)}
    assert bars["200 stores, addBatch: to the bare map"].met
    assert bars["200 stores, trigger: faster than built-in HDFS"].measured == "4.09 (3.00-9.00) times"


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile(range(1, 21), percent) for percent in (1, 50, 95, 100)] == [1, 10, 19, 20]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tree with a shim, an engine and tools."""
    for name in ("jvm-shim/src/main/A.scala", "python/lamina/store/b.py", "python/lamina/cli/c.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    machine.code.cache_clear()
    yield tmp_path
    machine.code.cache_clear()


@pytest.mark.parametrize(
    ("name", "changes"),
    [("jvm-shim/src/main/A.scala", True), ("python/lamina/store/b.py", True), ("python/lamina/cli/c.py", False)],
)
def test_figures_are_of_one_code_of_shim_and_engine(sources: Path, name: str, changes: bool) -> None:
    before = machine.code()
    (sources / name).write_text("2")
    machine.code.cache_clear()
    assert (machine.code() != before) == changes


def cell(**changed: Any) -> dict[str, Any]:
    return answer(small_commits.QUESTION, small_commits_of(lamina=[100.0], floor=[100.0]), **changed)


def test_answers_of_another_code_or_of_other_parameters_are_not_shown() -> None:
    page = MANY_STORES.section({"cells": {"small-commits": cell()}})
    assert "| 200 stores, addBatch: to the bare map | ≤ 1.2 | 1.00 | met | 0123456789 | 2026-01-02 |" in page
    page = MANY_STORES.section({"cells": {"small-commits": cell(code="other")}})
    assert "Not shown: `small-commits`, measured at 0123456789, and shim or engine have changed since." in page
    assert "addBatch: to the bare map" not in page
    page = MANY_STORES.section({"cells": {"small-commits": cell(parameters={"keys": 1})}})
    assert "Not shown: `small-commits`, measured with other parameters." in page


def test_what_is_asked_is_said_without_any_answer() -> None:
    page = MANY_STORES.section({})
    assert all(f"| `{question.name}` |" in page for question in MANY_STORES.questions)


def test_the_page_has_the_bars_of_all_results_with_commit_and_date() -> None:
    micro = {"date": "2026-01-03", "commit": "abc", "operations": {
        name: {"cpu_ns": {LAMINA: spread([800.0])}} for name in ("insert", "update")
    }}  # fmt: skip
    page = report.page_of({"micro": micro, "many_stores": {"cells": {"small-commits": cell()}}}, ["aggregation"])
    assert "| put, amortised with commit | ≤ 1000 ns | 800 ns | met | abc | 2026-01-03 |" in page
    assert "| 200 stores, addBatch: to the bare map | ≤ 1.2 | 1.00 | met | 0123456789 | 2026-01-02 |" in page
    assert "(benchmarks/aggregation.png)" in page
    assert "| target |" not in report.page_of({}, [])


def test_a_result_of_another_code_is_refused_by_the_page(tmp_path: Path) -> None:
    (tmp_path / "micro.json").write_text(json.dumps({"code": machine.code(), "commit": "new"}))
    assert report.current(tmp_path, "micro") == ({"code": machine.code(), "commit": "new"}, None)
    (tmp_path / "micro.json").write_text(json.dumps({"code": "other", "commit": "old"}))
    assert report.current(tmp_path, "micro") == (None, "`micro`, measured at old")
    assert report.current(tmp_path, "memory") == (None, None)
