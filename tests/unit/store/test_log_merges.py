"""When commits in log objects are merged: by their number, by their bytes, and when they have been there for long."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from lamina.format.attempt_id import FILE as OWN_FILE
from lamina.format.attempt_id import GROUP, AttemptId
from lamina.format.entries import PUT
from lamina.format.manifest import FILE, StoreIdentity
from lamina.store import Version
from lamina.store.materialization.materializer import spread_over
from lamina.store.versioned_store import VersionedStore
from lamina.testing import ManualClock
from tests.unit.store.aging import MIN_AGE_MS
from tests.unit.store.grouped import Grouped, materialized, parts
from tests.unit.store.writing import Query

BACKENDS: dict[str, dict[str, Any]] = {
    "heap": {"changelog__materializeParts": 1000, "compaction__maxChain": 900},
    "rocksdb": {"backend": "rocksdb", "rocksdb__materializeEvery": 450, "compaction__maxChain": 900},
}
INTERVAL_MS = 60_000


def grouped_on(backend: str, **settings: Any) -> Grouped:
    return Grouped(Query(min_versions=2, **{"changelog__enabled": True, **BACKENDS[backend], **settings}))


def changed(keys: int) -> dict[bytes, Any]:
    """All keys with values of which nothing can be compressed."""
    return {b"%d" % one: (PUT, os.urandom(100)) for one in range(keys)}


def logged(grouped: Grouped, store: VersionedStore, base: Version, keys: int) -> Version:
    """A version in which so many keys change, in an object of its own."""
    accepted = grouped.accept(store, base, changed(keys))
    grouped.seal()
    accepted.publish()
    return Version(base.version + 1, accepted.attempt)


@pytest.mark.parametrize("backend", BACKENDS)
def test_few_large_commits_are_merged(backend: str) -> None:
    # up to a quarter less for a store: more than two commits have, and less than three
    grouped = grouped_on(backend, changelog__materializeBytes=26_000)
    (store,), (version,) = grouped.begun()
    for number, due in enumerate((False, False, True)):
        version = logged(grouped, store, version, 80)
        assert grouped.query.begin(store, version).compaction_due == due, number
    materialized(store, version)
    (version,) = grouped.batch([store], [version], 0)
    assert parts(store, version) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_in_the_log_for_long_is_merged(backend: str) -> None:
    grouped = grouped_on(backend, changelog__materializeIntervalMs=INTERVAL_MS)
    (store,), (version,) = grouped.begun()
    for number in range(3):
        (version,) = grouped.batch([store], [version], number)
        begun = grouped.query.begin(store, version)
        assert (begun.materialization_due, begun.compaction_due) == (False, False)
        grouped.query.clock.advance(INTERVAL_MS // 4 - 1)
    # a quarter sooner at most, by store
    grouped.query.clock.advance(INTERVAL_MS // 4)
    assert grouped.query.begin(store, version).materialization_due
    materialized(store, version, at_once=True)
    # until a commit refers to what was made it is not asked for again
    assert not grouped.query.begin(store, version).materialization_due
    (version,) = grouped.batch([store], [version], 3)
    assert parts(store, version) == 1
    grouped.query.clock.advance(INTERVAL_MS // 2)
    assert not grouped.query.begin(store, version).materialization_due
    grouped.query.clock.advance(INTERVAL_MS)
    assert grouped.query.begin(store, version).materialization_due


def test_the_age_of_commits_may_be_left_out_of_account() -> None:
    grouped = grouped_on("heap", changelog__materializeIntervalMs=0)
    (store,), (version,) = grouped.begun()
    (version,) = grouped.batch([store], [version], 0)
    for _ in range(2):
        assert not grouped.query.begin(store, version).materialization_due
        grouped.query.clock.advance(1 << 40)


@pytest.mark.parametrize("backend", BACKENDS)
def test_segments_of_merges_by_age_are_merged_too(backend: str) -> None:
    """Else a batch would write the whole state when a version consists of too many files."""
    grouped = grouped_on(backend, changelog__materializeIntervalMs=INTERVAL_MS, compaction__maxChain=20)
    (store,), (version,) = grouped.begun()
    most = merges = 0
    for number in range(200):
        (version,) = grouped.batch([store], [version], number)
        begun = grouped.query.begin(store, version)
        assert not begun.snapshot
        if begun.materialization_due or begun.compaction_due:
            merges += 1
            materialized(store, version, at_once=begun.materialization_due)
        manifest = store.manifest(version)
        assert manifest is not None
        most = max(most, len({one.path for one in manifest.references if one.kind != FILE}))
        grouped.query.clock.advance(INTERVAL_MS // 3)
    assert merges > 40
    assert most <= 12


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_that_changes_seldom_keeps_no_object_for_long(backend: str) -> None:
    grouped = grouped_on(backend, changelog__maxIdleBatches=30)
    (store,), (version,) = grouped.begun()
    due = []
    for number in range(5):
        (version,) = grouped.batch([store], [version], number)
        begun = grouped.query.begin(store, version)
        assert not begun.apart
        due.append(begun.materialization_due)
        # batches that brought nothing
        version = Version(version.version + 10, version.attempt)
    assert due == [False, False, False, True, True]
    materialized(store, version, at_once=True)
    # as soon as it may, since it is out of the log once a commit refers to what was merged
    assert grouped.query.begin(store, version).apart


@pytest.mark.parametrize("mode", ["rolling", "full"])
def test_a_store_that_changes_seldom_writes_its_state_whole_where_nothing_is_merged(mode: str) -> None:
    grouped = Grouped(
        Query(
            min_versions=2,
            changelog__enabled=True,
            changelog__maxIdleBatches=30,
            compaction__mode=mode,
            compaction__rollingParts=50,
            compaction__fullInterval=1000,
            compaction__maxChain=900,
        )
    )
    (store,), (version,) = grouped.begun()
    oldest = []
    for number in range(12):
        (version,) = grouped.batch([store], [version], number)
        manifest = store.manifest(version)
        assert manifest is not None
        kept = [one.end for one in manifest.references if one.is_in_log]
        oldest.append(version.version - min(kept, default=version.version))
        # batches that brought nothing
        version = Version(version.version + 10, version.attempt)
    assert 20 <= max(oldest) <= 33
    assert oldest.count(0) >= 3


@pytest.mark.parametrize("settings", [{"compaction__mode": "full", "compaction__fullInterval": 10}, {}])
def test_a_store_that_changes_in_each_batch_does_not_leave_the_log(settings: dict[str, Any]) -> None:
    """A snapshot there is of all versions since the first, and has been there for one batch."""
    query = Query(min_versions=2, changelog__enabled=True, changelog__maxIdleBatches=30, **settings)
    grouped = Grouped(query)
    (store,), (version,) = grouped.begun()
    for number in range(60):
        (version,) = grouped.batch([store], [version], number)
        begun = grouped.query.begin(store, version)
        assert (begun.apart, begun.materialization_due) == (False, False), number
        if begun.compaction_due:
            materialized(store, version)


def test_a_large_file_above_a_part_is_left_alone() -> None:
    grouped = grouped_on("heap", changelog__materializeBytes=20_000)
    (store,), (version,) = grouped.begun()
    (version,) = grouped.batch([store], [version], 0)
    version = grouped.query.commit(store, version, changed(1000))
    assert not grouped.query.begin(store, version).compaction_due


@pytest.mark.parametrize(("keys", "merges"), [(6_000, 4), (20, 0)])
def test_rows_that_change_again_and_again_are_merged_where_they_are_much_to_read(keys: int, merges: int) -> None:
    grouped = grouped_on("heap")
    (store,), (version,) = grouped.begun()
    found = most = 0
    for _ in range(20):
        version = logged(grouped, store, version, keys)
        if grouped.query.begin(store, version).compaction_due:
            found += 1
            materialized(store, version)
        manifest = store.manifest(version)
        assert manifest is not None
        most = max(most, sum(one.rows for one in manifest.references))
    assert found == merges
    assert (most <= 6 * keys) == (merges > 0)


@pytest.mark.parametrize("large_first", [True, False])
def test_files_between_commits_in_the_log_are_merged_as_without_them(large_first: bool) -> None:
    """Batches whose commit has a file of its own, each followed by one with little in it."""
    grouped = grouped_on("heap")
    (store,), (version,) = grouped.begun()
    most = merges = 0
    for number in range(40):
        for large in (large_first, not large_first):
            if large:
                rows = {b"%d-%d" % (number, one): (PUT, os.urandom(100)) for one in range(100)}
                version = grouped.query.commit(store, version, rows)
            else:
                (version,) = grouped.batch([store], [version], number)
            if grouped.query.begin(store, version).compaction_due:
                merges += 1
                materialized(store, version)
            manifest = store.manifest(version)
            assert manifest is not None
            most = max(most, sum(not one.is_in_log for one in manifest.references))
    assert merges > 5
    assert most <= 10


def test_bounds_of_stores_differ_by_up_to_a_quarter() -> None:
    stores = [StoreIdentity("checkpoint", 0, partition, "default") for partition in range(200)]
    found = [spread_over(32, store) for store in stores]
    assert set(found) == set(range(24, 33))
    # no crowd has the same one
    assert max(map(found.count, found)) < 50
    assert found == [spread_over(32, store) for store in stores]
    assert {spread_over(most, store) for most in (1, 2, 3) for store in stores} == {1, 2, 3}
    assert {spread_over(3, store) for store in stores} == {3}


@pytest.mark.parametrize(("takes_ms", "kind"), [(1_000, GROUP), (MIN_AGE_MS // 16 + 1, OWN_FILE)])
def test_a_commit_whose_looks_take_long_has_a_file_of_its_own(
    monkeypatch: pytest.MonkeyPatch, takes_ms: int, kind: str
) -> None:
    """What it is the first to refer to might be collected before its object is there."""
    grouped = grouped_on("heap")
    (store,), (version,) = grouped.begun()
    for _ in range(3):
        version = logged(grouped, store, version, 5)
    materialized(store, version, at_once=True)
    missing = store._files.missing

    def slow(names: Sequence[str]) -> set[str]:
        if names:
            assert isinstance(grouped.query.clock, ManualClock)
            grouped.query.clock.advance(takes_ms)
        return missing(names)

    monkeypatch.setattr(store._files, "missing", slow)
    accepted = grouped.accept(store, version, changed(5))
    assert AttemptId.parse(accepted.attempt).kind == kind
    grouped.seal()
    accepted.publish()
    assert parts(store, Version(version.version + 1, accepted.attempt)) <= 1
