"""Readers of what leaves retention: they have the minimum age, and are told so after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.format.entries import PUT
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.versioned_store import VersionedStore
from lamina.testing import ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store.aging import EMPTY, MIN_AGE_MS, START_MS, Aged, batches, compact, deleted, file, snapshots, wait
from tests.unit.store.writing import Query


def with_an_old_segment(query: Query) -> tuple[VersionedStore, list[Version], str]:
    """A store, its versions, of which the last one is a snapshot, and the segment that those before it stand on."""
    store = query.open()
    versions = batches(query, store, EMPTY, 4)
    old = compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 4)
    wait(query, 100 * MIN_AGE_MS)
    versions.append(query.commit(store, versions[-1], {b"s": (PUT, b"1")}, force_snapshot=True))
    return store, versions, old


def test_an_old_snapshot_that_just_became_unreferenced_stays_for_its_readers(query: Query) -> None:
    """Its own age says nothing: a reader may have opened the last version on it a moment ago."""
    store, versions, old = with_an_old_segment(query)
    reader = query.open(read_only=True)
    opened = reader.load(versions[-2], have=None, read_only=True)
    versions += batches(query, store, versions[-1], 4)
    assert old not in deleted(store.collect(versions[-1], dry_run=False))
    assert sum(batch.num_rows for batch in opened.batches) > 0
    wait(query, MIN_AGE_MS)
    assert old in deleted(store.collect(versions[-1], dry_run=False))
    query.assert_restores(query.open(), versions[-1])


def test_readers_have_the_minimum_age_however_many_versions_follow_in_that_time(query: Query) -> None:
    """What left retention is known from the lineage, of which a manifest lists only a part."""
    store, versions, old = with_an_old_segment(query)
    reader = query.open(read_only=True)
    opened = reader.load(versions[7], have=None, read_only=True)
    versions += batches(query, store, versions[-1], 100, every_ms=1000)
    # the last four versions before the pause, and those that the snapshot ended, left a moment ago
    gone = deleted(query.open().collect(versions[-1], dry_run=False))
    assert gone == {file(version) for version in versions[:4]}
    assert sum(batch.num_rows for batch in opened.batches) > 0
    query.assert_restores(query.open(), versions[7])
    # version 8 left when version 9 + 3 was there
    wait(query, MIN_AGE_MS - 97_000 - 1)
    assert old not in deleted(query.open().collect(versions[-1], dry_run=True))
    wait(query, 1)
    assert {old, file(versions[7])} <= deleted(query.open().collect(versions[-1], dry_run=False))
    query.assert_restores(query.open(), versions[-1])


def reads(store: VersionedStore, version: Version) -> dict[str, Iterator[object]]:
    """All ways to read a version over time; each of them from files that nothing after it needs."""
    older = store.lineage(version)[-3]
    return {
        "from empty": store.load(version, have=None, read_only=True).batches,
        "on top of what the caller has": store.load(version, have=older, read_only=True).batches,
        "replay": store.replay(older, version).batches,
        "feed": store.feed(1, version, None).batches,
    }


@pytest.mark.parametrize("how", ["from empty", "on top of what the caller has", "replay", "feed"])
@pytest.mark.parametrize("format_version", [1, 2])
def test_a_reader_that_outlives_the_minimum_age_is_told_so(query: Query, format_version: int, how: str) -> None:
    query.format_version = format_version
    store = query.open()
    versions = batches(query, store, EMPTY, 20)
    read = reads(query.open(read_only=True), versions[-1])[how]
    assert next(read)
    after = snapshots(query, store, 5, versions[-1])
    wait(query, MIN_AGE_MS)
    # a reader has the time until now
    assert next(read)
    assert deleted(store.collect(after[-1], dry_run=False)) == {file(version) for version in (*versions, after[0])}
    with fails_with("state.not-retained") as caught:
        list(read)
    message = caught.error.message
    assert "retention.minAgeMs" in message
    assert "put the file back" not in message
    assert any(file(version) in message for version in versions)
    # the feed names the version of the change that it came to, a replay the one that it began with
    assert ("version 20" in message) == (how not in ("feed", "replay"))


def test_a_replay_up_to_a_retained_version_is_told_so_too_where_it_began_with_one_that_is_not(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    storage = Storage(str(tmp_path), backend=Aged(tmp_path, clock))
    query = Query(storage, min_versions=3, clock=clock, compaction__mode="full", compaction__fullInterval=1)
    store = query.open()
    versions = batches(query, store, EMPTY, 20)
    read = query.open(read_only=True).replay(versions[1], versions[-1]).batches
    assert next(read)
    wait(query, MIN_AGE_MS)
    assert {file(version) for version in versions[1:10]} <= deleted(store.collect(versions[-1], dry_run=False))
    with fails_with("state.not-retained") as caught:
        list(read)
    assert f"version {versions[1].version} left retention" in caught.error.message
    query.assert_restores(query.open(), versions[-1])


def test_a_reader_is_told_so_where_newer_versions_still_need_the_versions_own_file(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    storage = Storage(str(tmp_path), backend=Aged(tmp_path, clock))
    settings = {"compaction__mode": "rolling", "compaction__rollingParts": 2}
    query = Query(storage, min_versions=3, clock=clock, **settings)
    store = query.open()
    versions = batches(query, store, EMPTY, 12)
    opened = query.open(read_only=True).load(versions[7], have=None, read_only=True)
    wait(query, 2 * MIN_AGE_MS)
    gone = deleted(store.collect(versions[-1], dry_run=False))
    assert file(versions[6]) in gone
    assert file(versions[7]) not in gone
    with fails_with("state.not-retained") as caught:
        list(opened.batches)
    assert file(versions[6]) in caught.error.message


@pytest.mark.parametrize("age_ms", [0, 3_600_000])
def test_a_lost_file_of_a_retained_version_is_not_taken_for_a_collected_one(tmp_path: Path, age_ms: int) -> None:
    """With an age a version may be retained that the number does not."""
    clock = ManualClock(START_MS)
    storage = Storage(str(tmp_path), backend=Aged(tmp_path, clock))
    query = Query(storage, min_versions=3, clock=clock, retention__minVersionAgeMs=age_ms)
    versions = batches(query, query.open(), EMPTY, 12)
    read = versions[-4 if age_ms == 0 else -6]
    opened = query.open(read_only=True).load(read, have=None, read_only=True)
    query.storage.delete_many([f"0/0/{file(versions[0])}"])
    with fails_with("file.missing") as caught:
        list(opened.batches)
    assert "put the file back" in caught.error.message
