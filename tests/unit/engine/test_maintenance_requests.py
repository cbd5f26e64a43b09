"""What maintenance of many stores on a remote storage costs in requests, counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina.components import RandomIds, SystemClock
from lamina.engine.maintenance import Maintainer
from lamina.engine.maintenance_pool import MaintenancePool
from lamina.engine.reports import known_to_json
from lamina.engine.store_opener import OpenArgument
from lamina.format import paths
from lamina.settings import PREFIX
from lamina.storage import LocalCache, Storage
from lamina.store import StoreId, Version
from lamina.store.restore.broken import BrokenPlaces
from lamina.store.versioned_store import VersionedStore
from lamina.testing import FaultyBackend, ManualClock
from tests.unit.engine.conftest import nothing
from tests.unit.store.aging import snapshots
from tests.unit.store.writing import Query

EMPTY = Version(0)
STORES = 100
PATIENCE_S = 120


class Counting(FaultyBackend):
    """A remote storage; the first deletion of a round is made once so many others wait, as if it took so long."""

    remote = True

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._changed = threading.Condition()
        self._missing = 0

    def begin_round(self, others: int) -> None:
        with self._changed:
            self.calls.clear()
            self._missing = others

    def one_waits(self) -> None:
        with self._changed:
            self._missing -= 1
            self._changed.notify_all()

    def counts(self) -> Counter[str]:
        return Counter(operation for operation, _ in self.calls)

    def delete_many(self, paths: Sequence[str]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._missing <= 0, PATIENCE_S)
        super().delete_many(paths)


class Executor:
    """Many stores of one query on a remote storage, and the maintenance process beside them."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *, copied: bool = True) -> None:
        self.backend = Counting(Storage(str(directory / "bucket"))._backend)
        monkeypatch.setattr("lamina.storage.storage.open_backend", lambda *_: self.backend)
        copies = str(directory / "copies")
        cache = LocalCache(copies, 1 << 30, paths.is_immutable) if copied else None
        self.settings = {"retention.minAgeMs": "0", "storage.cache.directory": copies}
        self.clock = ManualClock(SystemClock().now_ms() + 1000)
        self.query = Query(
            Storage("s3a://bucket/state", cache=cache), min_versions=3, clock=self.clock, retention__minAgeMs=0
        )
        self.stores: list[VersionedStore] = []
        self.newest: list[Version] = []
        self.maintainer = Maintainer(self.clock, RandomIds())
        self.hands_over = True

    def open(self, stores: int, versions: int) -> None:
        self.stores = [self.query.open(partition) for partition in range(stores)]
        self.newest = [snapshots(self.query, store, versions)[-1] for store in self.stores]

    def commit(self, stores: int) -> None:
        for number in range(stores):
            self.newest[number] = snapshots(self.query, self.stores[number], 1, self.newest[number])[-1]

    def round(self, deleting: int = 0) -> list[dict[str, Any]]:
        """Collects all stores once, of which so many delete something, all but the first together."""
        self.backend.begin_round(deleting - 1)
        reports: list[dict[str, Any]] = []
        done = threading.Semaphore(0)

        def send(told: Any) -> None:
            if "waits" in told:
                self.backend.one_waits()
            elif "report" in told:
                reports.append(told["report"])

        pool = MaintenancePool(self.maintainer.steps, 4, send, done.release, self.clock)
        for number, version in enumerate(self.newest):
            argument = OpenArgument(
                StoreId("s3a://bucket/state", 0, number, "default"),
                {PREFIX + key: value for key, value in self.settings.items()},
                {},
                "run",
                False,
                2,
                "4.3.0",
                3,
                (self.stores[0].identity.checkpoint, 1),
            )
            confirmed = {"version": version.version, "attempt": version.attempt}
            told = {"confirmed": confirmed, "collect": True, "compact": False, "at_once": False, "awaited": False}
            told["closed"] = False
            known = (
                known_to_json(self.stores[number], BrokenPlaces(), collects=True) if self.hands_over else nothing(True)
            )
            pool.begin({"number": number, "open": argument.to_json(), **told, **known})
        for _ in self.newest:
            assert done.acquire(timeout=PATIENCE_S)
        assert all(report["ok"] for report in reports), reports
        return reports


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    return Executor(tmp_path, monkeypatch)


def deleted(reports: Sequence[dict[str, Any]]) -> int:
    return sum(report["collected"].get("delete_commit_files", 0) for report in reports)


def test_a_store_that_changed_costs_little_more_than_its_listing(executor: Executor) -> None:
    executor.open(STORES, versions=6)
    assert deleted(executor.round(STORES)) == 2 * STORES
    executor.commit(STORES)
    assert deleted(executor.round(STORES)) == STORES
    counts = executor.backend.counts()
    assert counts.keys() == {"list", "delete_many"}
    # besides: looks at runs, pins and leftovers, and a few deletions, which do not grow with the stores
    assert counts.total() <= STORES + 20


def test_a_collection_reads_no_manifest_that_the_engine_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is on the local disk, as after the cache has evicted it."""
    executor = Executor(tmp_path, monkeypatch, copied=False)
    executor.open(10, versions=6)
    assert deleted(executor.round(10)) == 20
    reads = {}
    for executor.hands_over in (True, False):
        for _ in range(5):
            executor.commit(10)
        assert deleted(executor.round(10)) == 50
        calls = [operation for operation, path in executor.backend.calls if path.startswith("0/")]
        assert calls.count("list") == 10
        reads[executor.hands_over] = calls.count("read_tail")
    assert reads == {True: 0, False: 50}


def test_a_store_that_rests_costs_nothing(executor: Executor) -> None:
    executor.open(10, versions=6)
    executor.round(10)
    reports = executor.round()
    assert executor.backend.calls == []
    assert deleted(reports) == 0
    executor.commit(2)
    assert deleted(executor.round(2)) == 2
    assert sum(path.startswith("0/") for operation, path in executor.backend.calls if operation == "list") == 2


def test_the_runs_are_looked_at_once_for_all_stores_where_nothing_is_deleted(executor: Executor) -> None:
    executor.open(10, versions=2)
    assert deleted(executor.round()) == 0
    assert executor.backend.calls.count(("list", paths.RUNS)) == 2  # and once for what was cut off there
