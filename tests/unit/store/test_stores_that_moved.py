"""Stores that move between processes in one run of a query: who collected one before has old news of it."""

from __future__ import annotations

from lamina.store.files.log_parts import TOLD_AFTER_S
from lamina.store.versioned_store import VersionedStore
from tests.unit.store.aging import MIN_AGE_MS
from tests.unit.store.grouped import Grouped, materialized
from tests.unit.store.writing import Query


class Moving:
    """Two stores whose commits share objects, and two processes, each of which may collect each of them."""

    def __init__(self) -> None:
        self.query = Query(min_versions=2)
        self.homes = [Grouped(self.query), Grouped(self.query)]
        self.stores: list[list[VersionedStore]] = [[home.open(0), home.open(1)] for home in self.homes]
        _, self.versions = self.homes[0].begun(2)

    def batches(self, count: int) -> None:
        """Both stores commit in the first process."""
        for _ in range(count):
            self.versions = self.homes[0].batch(self.stores[0], self.versions, self.versions[0].version)

    def collect(self, home: int, partition: int) -> None:
        store, version = self.stores[home][partition], self.versions[partition]
        assert store.collect(version, dry_run=False).stopped is None

    def materialize(self) -> None:
        for store, version in zip(self.stores[0], self.versions, strict=True):
            materialized(store, version)


def test_an_object_goes_whose_stores_each_process_collected_once() -> None:
    """What a process knows of a store that has moved away says nothing of what was committed since: others wait for
    what it knows of its own, and it for theirs."""
    moving = Moving()
    moving.batches(2)
    for home in (0, 1):
        for partition in (0, 1):
            moving.collect(home, partition)
    moving.batches(2)
    shared = set(moving.homes[0].objects())
    moving.materialize()
    moving.batches(4)
    # from here on each process collects the store that is its own
    for _ in range(8):
        for home in (0, 1):
            moving.collect(home, home)
        moving.query.clock.advance(MIN_AGE_MS + 60_000)  # type: ignore[attr-defined]
    assert 1000 * TOLD_AFTER_S <= MIN_AGE_MS + 60_000
    assert not shared & set(moving.homes[0].objects())
    for partition, version in enumerate(moving.versions):
        moving.query.assert_restores(Grouped(moving.query).open(partition), version)
