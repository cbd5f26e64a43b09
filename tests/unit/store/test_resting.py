"""Stores that change nothing for a while leave the log objects that their commits are in, so that others are rid of
them."""

from __future__ import annotations

import os

import pytest

from lamina.format.attempt_id import FILE, GROUP, AttemptId
from lamina.format.entries import PUT
from lamina.store import Begin, Version
from lamina.store.files.locator import is_part
from lamina.store.versioned_store import VersionedStore
from tests.unit.store.aging import EMPTY, MIN_AGE_MS, compact
from tests.unit.store.grouped import Grouped, collected, materialized
from tests.unit.store.writing import Query, rows_of

MODES = {
    "heap": {},
    "rocksdb": {"backend": "rocksdb", "rocksdb__materializeEvery": 50},
    "full": {"compaction__mode": "full"},
    "rolling": {"compaction__mode": "rolling"},
}


def resting(grouped: Grouped, store: VersionedStore, version: Version, idle: int) -> tuple[Version, Begin]:
    """The version that a store without changes has so many batches later, and what the engine wants of the next."""
    base = Version(version.version + idle, version.attempt)
    return base, grouped.query.begin(store, base)


@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_rests_leaves_its_objects(mode: str) -> None:
    grouped = Grouped(Query(min_versions=2, changelog__maxIdleBatches=3, **MODES[mode]))
    (store,), versions = grouped.begun()
    for number in range(4):
        versions = grouped.batch([store], versions, number)
    (version,) = versions
    assert AttemptId.parse(version.attempt or "").kind == GROUP
    _, begun = resting(grouped, store, version, 2)
    assert not begun.apart
    assert not begun.materialization_due
    base, begun = resting(grouped, store, version, 3)
    if mode in ("heap", "rocksdb"):
        assert begun.materialization_due
        assert not begun.apart
        assert not begun.snapshot
        materialized(store, base, at_once=True)
        base, begun = resting(grouped, store, version, 4)
    assert begun.apart
    assert not begun.materialization_due
    assert begun.snapshot == (mode in ("full", "rolling"))
    accepted = grouped.accept(store, base, {})
    accepted.publish()
    assert AttemptId.parse(accepted.attempt).kind == FILE
    left = Version(base.version + 1, accepted.attempt)
    manifest = store.manifest(left)
    assert manifest is not None
    assert not [one.path for one in manifest.references if is_part(one.path or "")]
    assert rows_of(store.load(left, have=None, read_only=True)) == grouped.query.states[version.attempt]
    # and for good: it is not asked again
    _, begun = resting(grouped, store, left, 50)
    assert not begun.apart
    assert not begun.materialization_due
    resting(grouped, store, Version(left.version, left.attempt), 20)
    later = Version(left.version + 20, left.attempt)
    for _ in range(2):
        collected(grouped, store, later)
        grouped.query.clock.advance(MIN_AGE_MS + 60_000)
    collected(grouped, store, later)
    assert not [name for name in grouped.objects() if name.endswith(".log")]


def test_a_store_whose_last_commit_is_a_file_rests_too_where_older_ones_are_parts() -> None:
    grouped = Grouped(Query(min_versions=2, changelog__maxIdleBatches=3))
    (store,), versions = grouped.begun()
    for number in range(3):
        versions = grouped.batch([store], versions, number)
    version = grouped.query.commit(store, versions[0], {b"large": (PUT, b"row")})
    assert AttemptId.parse(version.attempt or "").kind == FILE
    assert resting(grouped, store, version, 3)[1].materialization_due


def test_a_merge_for_a_store_that_rests_reads_nothing_below_its_last_part() -> None:
    grouped = Grouped(Query(min_versions=2, changelog__maxIdleBatches=3))
    (store,), versions = grouped.begun()
    rows = {b"%d" % one: (PUT, os.urandom(1000)) for one in range(1000)}
    large = grouped.query.commit(store, versions[0], rows, force_snapshot=True)
    versions = grouped.batch([store], [large], 0)
    base, begun = resting(grouped, store, versions[0], 3)
    assert begun.materialization_due
    assert materialized(store, base, at_once=True) < 100_000


def test_a_commit_with_changes_of_a_store_that_has_rested_is_like_any_other() -> None:
    grouped = Grouped(Query(min_versions=2, changelog__maxIdleBatches=3))
    (store,), versions = grouped.begun()
    versions = grouped.batch([store], versions, 0)
    base = Version(versions[0].version + 5, versions[0].attempt)
    (version,) = grouped.batch([store], [base], 1)
    assert AttemptId.parse(version.attempt or "").kind == GROUP
    assert rows_of(store.load(version, have=None, read_only=True)) == grouped.query.states[version.attempt]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_store_that_rests_names_what_was_merged_of_it_and_keeps_it_young_no_longer(backend: str) -> None:
    query = Query(backend=backend, rocksdb__materializeEvery=1, min_versions=2, changelog__maxIdleBatches=30)
    store = query.open()
    version = query.run_batches(store, EMPTY, 6)[-1]
    segment = compact(query, store, version)

    def next_of(version: Version, idle: int) -> tuple[Version, Begin]:
        base = Version(version.version + idle, version.attempt)
        return base, query.begin(store, base)

    assert not next_of(version, 2)[1].apart
    base, begun = next_of(version, 3)
    assert (begun.apart, begun.snapshot) == (True, False)
    named = query.commit(store, base, {}, begun=begun)
    manifest = store.manifest(named)
    assert manifest is not None
    assert segment in [one.path for one in manifest.references]
    assert rows_of(store.load(named, have=None, read_only=True)) == query.states[version.attempt]
    # once, also where that commit is worth a merge
    base, begun = next_of(named, 50)
    assert not begun.apart
    assert not store.waiting_segments()
    if begun.compaction_due:
        compact(query, store, base)
        assert not next_of(named, 60)[1].apart


def test_a_segment_that_is_too_old_to_be_named_waits_for_its_stamp() -> None:
    query = Query(min_versions=2, changelog__maxIdleBatches=30)
    store = query.open()
    version = query.run_batches(store, EMPTY, 6)[-1]
    compact(query, store, version)
    query.clock.advance(MIN_AGE_MS)
    base = Version(version.version + 3, version.attempt)
    assert not query.begin(store, base).apart
    store.stamp_segments()
    assert query.begin(store, base).apart
