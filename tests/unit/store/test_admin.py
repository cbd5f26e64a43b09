"""Stores of a checkpoint are checked and collected side by side, and not against a newer run of the query."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lamina.checkpoint import LoggedStores, StoreSelection, logged_stores
from lamina.storage import Listed, Storage
from lamina.store.admin.check import check_stores
from lamina.store.admin.collect import collect_store, collect_stores
from lamina.store.admin.side_by_side import side_by_side
from lamina.testing import FaultyBackend
from tests.unit.cli.query_on_disk import QueryOnDisk

HOUR_S = 3600


@pytest.fixture(params=[1, 2], ids=["format v1", "format v2"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> QueryOnDisk:
    """A query that has not run yet."""
    return QueryOnDisk(tmp_path / "checkpoint", request.param)


@pytest.fixture
def lost(query: QueryOnDisk) -> tuple[QueryOnDisk, Path]:
    """Three versions, the second of which has an attempt that lost; and that attempt's file, which is old."""
    query.run(1)
    query.plan()
    first = query.execute()
    query.finish(query.execute(task_attempt=1))
    query.run(1)
    query.age(HOUR_S)
    return query, query.file(first[0])


class Both(FaultyBackend):
    """Lists a store only when another one is listed at the same time."""

    def __init__(self, state: Storage) -> None:
        super().__init__(state._backend)
        self._barrier = threading.Barrier(2)
        self._listed: set[str] = set()

    def list(self, directory: str) -> Sequence[Listed]:
        if directory in ("0/0", "0/1") and directory not in self._listed:
            self._listed.add(directory)
            self._barrier.wait(timeout=10)
        return super().list(directory)


def needing_both(found: LoggedStores) -> LoggedStores:
    """The same stores, of which one alone cannot be worked on."""
    return replace(found, state=Storage(found.state.url, backend=Both(found.state)))


def stores(query: QueryOnDisk, selection: StoreSelection | None = None) -> LoggedStores:
    return logged_stores(Storage(str(query.directory)), selection or StoreSelection())


def test_stores_are_checked_at_the_same_time(query: QueryOnDisk) -> None:
    query.run(2)
    checks = check_stores(needing_both(stores(query)), contents=True, progress=lambda done, total: None)
    assert [check.whole for check in checks] == [(1, 2), (1, 2)]


def test_what_the_log_says_wrongly_is_a_problem_of_the_store(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", 2)
    query.run(1)
    entry = query.directory / "commits" / "0"
    entry.write_text(entry.read_text().replace(f'[["{query.attempts[0][0]}"], ', "[[], "))
    first, second = check_stores(stores(query), contents=False, progress=lambda done, total: None)
    assert [problem.kind for problem in first.problems] == ["file.damaged"]
    assert str(entry) in first.problems[0].message
    assert second.problems == ()


def test_versions_that_leave_the_log_before_they_are_checked_are_no_damage(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", min_versions=1)
    query.run(4)
    found = stores(query)
    query.run(2)
    query.forget(2)
    for partition, attempt in enumerate(query.attempts[0]):
        query.file(attempt, partition).unlink()
    checks = check_stores(found, contents=True, progress=lambda done, total: None)
    assert [(check.problems, check.collected) for check in checks] == [((), (1, 2, 3, 4))] * 2


def test_stores_are_collected_at_the_same_time(lost: tuple[QueryOnDisk, Path]) -> None:
    query, file = lost
    outcomes = collect_stores(needing_both(stores(query)), dry_run=False, progress=lambda done, total: None)
    assert [outcome.problem for outcome in outcomes] == [None, None]
    assert [len(outcome.collected.deleted) for outcome in outcomes if outcome.collected] == [1, 1]
    assert not file.exists()


def test_a_run_that_starts_meanwhile_stops_a_collection(lost: tuple[QueryOnDisk, Path]) -> None:
    query, file = lost
    found = stores(query, StoreSelection(partition=0))
    query.restart("run-2")
    outcome = collect_store(found, found.stores[0], dry_run=False)
    assert outcome.collected is not None
    assert "newer run" in str(outcome.collected.stopped)
    assert file.exists()


def test_results_come_in_the_order_of_the_stores_and_each_counts_once() -> None:
    counted: list[tuple[int, int]] = []
    turn = [threading.Event(), threading.Event()]

    def work(store: int) -> int:
        # the second store is done first
        if store == 0:
            assert turn[1].wait(10)
        turn[store].set()
        return store * 10

    assert side_by_side(work, [0, 1], lambda done, total: counted.append((done, total))) == [0, 10]
    assert counted == [(0, 2), (1, 2), (2, 2)]
