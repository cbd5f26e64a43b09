"""Stores of a checkpoint are checked and collected side by side, and not against a newer run of the query."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lamina.checkpoint import CheckpointLogs, CommitEntry, FollowedLog, LoggedStores, StoreSelection, logged_stores
from lamina.errors import LaminaError
from lamina.storage import Listed, Storage
from lamina.store.admin.check import check_stores
from lamina.store.admin.collect import collect_store, collect_stores
from lamina.store.admin.side_by_side import Outages, side_by_side
from lamina.store.admin.survey import survey
from lamina.store.check.report import UNREAD
from lamina.testing import Fault, FaultyBackend, ManualClock
from lamina.testing.expect import fails_with
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


def test_versions_that_all_leave_the_log_before_they_are_checked_are_no_damage_and_not_whole(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", min_versions=1)
    query.run(4)
    found = stores(query)
    query.run(2)
    query.forget(2)
    for partition, attempt in enumerate(query.attempts[0]):
        query.file(attempt, partition).unlink()
    checks = check_stores(found, contents=True, progress=lambda done, total: None)
    assert [check.collected for check in checks] == [(1, 2, 3, 4)] * 2
    assert [[problem.kind for problem in check.problems] for check in checks] == [[UNREAD]] * 2


def test_a_store_whose_turn_comes_late_has_the_versions_that_the_log_names_then(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", min_versions=1)
    query.run(4)
    found = stores(query)
    clock = ManualClock(0)
    reads: list[int] = []

    class Counted(CheckpointLogs):
        def commits(self, committed: Sequence[int] | None = None) -> list[CommitEntry]:
            reads.append(query.version)
            return super().commits(committed)

    logs = Counted(found.logs.storage)
    log = FollowedLog(logs, list(logs.operators()), logs.commits(), clock)
    first, second = found.identities
    query.run(2)
    query.forget(2)
    clock.advance(59_000)
    assert sorted(log.store(first).named) == [1, 2, 3, 4]
    clock.advance(1_000)
    assert sorted(log.store(second).named) == [5, 6]
    assert sorted(log.store(first).named) == [5, 6]
    assert reads == [4, 6]
    # where the storage does not answer for a moment, what is known counts for another minute
    logs.storage = Storage(logs.storage.url, backend=Denied(logs.storage, "commits"))
    clock.advance(60_000)
    assert sorted(log.store(first).named) == [5, 6]
    assert sorted(log.store(second).named) == [5, 6]
    assert reads == [4, 6, 6]


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
    outcome = collect_store(found, found.identities[0], dry_run=False)
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


def test_what_ends_the_work_on_all_ends_it_at_once() -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def work(store: int) -> None:
        with lock:
            begun.append(store)
        if store == 0:
            raise LaminaError.from_kind("storage.failed", "gone")
        # others are under way meanwhile
        threading.Event().wait(0.01)

    with fails_with("storage.failed"):
        side_by_side(work, range(2_000), lambda done, total: None)
    assert len(begun) < 2_000


class Denied(FaultyBackend):
    """Does not let anybody list or read below a directory."""

    def __init__(self, state: Storage, below: str) -> None:
        super().__init__(state._backend)
        for operation in ("list", "read", "read_range", "read_tail", "size"):
            self.inject(Fault(operation, below, times=10_000, errno=errno.EACCES))


def test_a_store_that_may_not_be_read_ends_the_work_on_that_store_alone(query: QueryOnDisk) -> None:
    query.run(3)
    found = stores(query)
    denied = replace(found, state=Storage(found.state.url, backend=Denied(found.state, "0/0")))
    first, second = check_stores(denied, contents=True, progress=lambda done, total: None)
    assert (first.whole, first.damaged) == ((), ())
    (problem,) = first.problems
    assert (problem.kind, problem.versions) == (UNREAD, (1, 2, 3))
    assert f"{found.state.url}/0/0" in problem.message
    # nobody knows what it needs of log objects
    assert (first.newest, second.newest) == (-1, 3)
    assert (second.whole, second.problems) == ((1, 2, 3), ())
    outcomes = collect_stores(denied, dry_run=True, progress=lambda done, total: None)
    assert [outcome.problem is None for outcome in outcomes] == [False, True]


def test_a_survey_of_a_store_that_may_not_be_read_goes_on_with_the_others(
    query: QueryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.run(3)
    storage = Storage(str(query.directory))
    monkeypatch.setattr(storage, "at", lambda url: Storage(url, backend=Denied(Storage(url), "0/0")))
    found = survey(storage, StoreSelection(), details=True, progress=lambda done, total: None)
    first, second = found.stores
    assert (first.version, first.versions, len(first.problems)) == (3, (), 1)
    assert (second.version, len(second.versions), second.problems) == (3, 3, ())


def test_a_storage_that_answers_nobody_any_more_ends_the_work_on_all() -> None:
    outages = Outages()

    def ends(kind: str) -> str:
        def work() -> str:
            if kind:
                raise LaminaError.from_kind(kind, "gone")
            return "read"

        return outages.outlived(work, lambda error: error.kind)

    for _ in range(3):
        assert [ends("storage.failed") for _ in range(16)] == ["storage.failed"] * 16
        assert ends("") == "read"
    with fails_with("file.damaged"):
        ends("file.damaged")
    # a refusal is an answer
    assert [ends("storage.denied") for _ in range(100)] == ["storage.denied"] * 100
    with fails_with("storage.failed"):
        for _ in range(17):
            ends("storage.failed")
