"""When a store need not be looked at again: as long as a collection of it would delete nothing more."""

from __future__ import annotations

from pathlib import Path

from lamina.format.entries import PUT
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.collection.known_others import KnownOthers
from lamina.store.versioned_store import VersionedStore
from lamina.testing import ManualClock
from tests.unit.store.aging import (
    EMPTY,
    MIN_AGE_MS,
    START_MS,
    Aged,
    batches,
    deleted,
    file,
    lost_and_won,
    snapshots,
    wait,
)
from tests.unit.store.writing import Query


def collect(query: Query, store: VersionedStore, confirmed: Version) -> set[str]:
    """A collection as the maintenance process makes it; what it deleted."""
    judged = store.judge(confirmed, KnownOthers(store._checkpoint, query.clock))
    judged.delete()
    return deleted(judged.done())


def due(query: Query, confirmed: Version) -> set[str]:
    """What a collector that remembers nothing would delete."""
    return deleted(query.open().collect(confirmed, dry_run=True))


def test_a_store_is_settled_until_what_waits_is_old_enough(query: Query) -> None:
    store = query.open()
    newest = snapshots(query, store, 10)[-1]
    assert collect(query, store, newest) == set()
    steps = 0
    while store.is_settled(newest):
        assert due(query, newest) == set()
        wait(query, 60_000)
        steps += 1
    assert steps == 10
    gone = due(query, newest)
    assert gone != set()
    assert collect(query, store, newest) == gone


def test_a_store_without_changes_is_settled_while_its_version_goes_on(query: Query) -> None:
    """Batches that change nothing in it; its older versions leave retention one by one all the same."""
    store = query.open()
    newest = snapshots(query, store, 8)[-1]
    wait(query, 100 * MIN_AGE_MS)
    collect(query, store, newest)
    looks = 0
    for number in range(newest.version, newest.version + 20):
        confirmed = Version(number, newest.attempt)
        for _ in range(2):
            if store.is_settled(confirmed):
                assert due(query, confirmed) == set()
            else:
                collect(query, store, confirmed)
                looks += 1
            wait(query, MIN_AGE_MS)
    assert query.open().versions()[0].version == newest.version
    assert looks < 20
    assert store.is_settled(Version(newest.version + 100, newest.attempt))


def test_a_store_that_was_committed_to_is_not_settled(query: Query) -> None:
    store = query.open()
    newest = snapshots(query, store, 8)[-1]
    wait(query, 100 * MIN_AGE_MS)
    collect(query, store, newest)
    assert store.is_settled(newest)
    assert not store.is_settled(snapshots(query, store, 1, newest)[-1])


def test_a_store_with_a_commit_that_nobody_built_on_is_settled_until_its_number_is_passed(query: Query) -> None:
    store = query.open()
    # it was not changed for so long that no other version is retained
    newest = Version(10, snapshots(query, store, 5)[-1].attempt)
    lost = query.commit(store, newest, {b"lost": (PUT, b"1")})
    wait(query, 100 * MIN_AGE_MS)
    collect(query, store, newest)
    assert store.is_settled(newest)
    passed = Version(newest.version + 1, newest.attempt)
    assert not store.is_settled(passed)
    assert file(lost) in collect(query, store, passed)


def test_a_store_whose_deletion_failed_is_not_settled(query: Query) -> None:
    store = query.open()
    _, won = lost_and_won(query, store)
    judged = store.judge(won, KnownOthers(store._checkpoint, query.clock))
    assert judged.files
    assert not store.is_settled(won)
    judged.done()
    assert store.is_settled(won)


def test_a_store_whose_versions_leave_retention_by_age_is_not_settled(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    storage = Storage(str(tmp_path), backend=Aged(tmp_path, clock))
    query = Query(storage, min_versions=3, clock=clock, retention__minVersionAgeMs=3_600_000)
    store = query.open()
    newest = snapshots(query, store, 6)[-1]
    collect(query, store, newest)
    assert not store.is_settled(newest)


def test_a_store_is_not_settled_after_a_merge_of_its_own(query: Query) -> None:
    store = query.open()
    newest = batches(query, store, EMPTY, 6)[-1]
    collect(query, store, newest)
    assert store.is_settled(newest)
    store.confirm(newest)
    assert store.compact() is not None
    assert not store.is_settled(newest)
