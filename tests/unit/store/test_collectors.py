"""Several executors at one store: collectors, zombies and slow writers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina.format.entries import PUT
from lamina.storage import Storage
from lamina.store import Collected, Version
from lamina.store.versioned_store import VersionedStore
from lamina.testing import Effect, Fault, ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store.aging import (
    EMPTY,
    MIN_AGE_MS,
    START_MS,
    Aged,
    batches,
    compact,
    deleted,
    file,
    lost_and_won,
    snapshots,
    wait,
)
from tests.unit.store.writing import Query, names


def test_a_segment_that_is_published_after_its_inputs_were_collected_is_not_referred_to(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow maintenance process: the versions that it merged are not retained any more."""
    store, slow = query.open(), query.open()
    versions = batches(query, store, EMPTY, 6)
    slow.confirm(versions[-1])
    publish = query.faults.publish

    def late(path: str, chunks: Iterable[Any]) -> int:
        """What was merged is in memory; before it is published the query goes on, and its inputs are collected."""
        data = [bytes(chunk) for chunk in chunks]
        monkeypatch.undo()
        versions.extend(snapshots(query, store, 6, versions[-1]))
        wait(query, 2 * MIN_AGE_MS)
        gone = deleted(store.collect(versions[-1], dry_run=False))
        assert gone == {file(version) for version in versions[:8]}
        return publish(path, data)

    monkeypatch.setattr(query.faults, "publish", late)
    compacted = slow.compact()
    assert compacted is not None
    assert len(versions) == 12
    segment = str(compacted.made.name)
    assert segment in names(query.storage)
    store.adopt(compacted.made)
    versions.append(query.commit(store, versions[-1], {b"k": (PUT, b"y")}))
    manifest = store.manifest(versions[-1])
    assert manifest is not None
    assert segment not in [reference.path for reference in manifest.references]
    wait(query, MIN_AGE_MS)
    assert segment in deleted(store.collect(versions[-1], dry_run=False))
    for version in versions[-4:]:
        query.assert_restores(query.open(), version)


def test_a_segment_that_waits_is_moved_out_of_a_collectors_hands_before_it_is_named(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 6)
    segment = compact(query, store, versions[-1])
    wait(query, MIN_AGE_MS)
    planned = deleted(query.open().collect(versions[-1], dry_run=True))
    assert planned == {segment}
    versions += batches(query, store, versions[-1], 1)
    # the collector that planned before the commit deletes after it
    query.storage.delete_many([f"0/0/{name}" for name in planned])
    query.assert_restores(query.open(), versions[-1])


@dataclass(frozen=True)
class Littered:
    """A store with a file for each reason to keep or to delete one.

    Args:
        confirmed: the newest version that was built on.
        readable: retained versions, and attempts that somebody may still read or build on.
        planned: what one collector alone deletes.
    """

    query: Query
    confirmed: Version
    readable: list[Version]
    planned: set[str]


def littered(directory: Path) -> Littered:
    clock = ManualClock(START_MS)
    query = Query(Storage(str(directory), backend=Aged(directory, clock)), min_versions=6, clock=clock)
    store, zombie = query.open(), query.open()
    versions = batches(query, store, EMPTY, 6)
    merged = compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 4)
    lost = query.commit(store, versions[-2], {b"lost": (PUT, b"1")})
    orphan = compact(query, query.open(), versions[-1])
    # so large that what follows is merged without it, and all versions after it need it
    large = random.Random(0).randbytes(1 << 16)
    versions.append(query.commit(store, versions[-1], {b"large": (PUT, large)}, force_snapshot=True))
    versions += batches(query, store, versions[-1], 5)
    begun = query.begin(zombie, versions[-1])
    versions += batches(query, store, versions[-1], 1)
    wait(query, 100 * MIN_AGE_MS)
    # off the lineage and young: a reader may have opened it, and it needs a segment that nothing else does
    only_there = compact(query, zombie, versions[-2])
    late = query.commit(zombie, versions[-2], {b"late": (PUT, b"1")}, begun=begun)
    above = query.commit(store, versions[-1], {b"above": (PUT, b"1")})
    planned = deleted(query.open().collect(versions[-1], dry_run=True))
    assert planned == {merged, orphan, file(lost), *map(file, versions[:10])}
    assert only_there not in planned
    return Littered(query, versions[-1], [*versions[-7:], late, above], planned)


def collect_with(
    found: Littered, known: bool, call: int, meanwhile: Callable[[], None]
) -> tuple[VersionedStore, Collected]:
    """A collection, before whose storage call number `call` something else happens; the collector too."""
    store = found.query.open()
    if known:
        store.collect(store.lineage(found.confirmed)[2], dry_run=True)
    found.query.faults._wait = lambda _: meanwhile()
    found.query.faults.inject(Fault(effect=Effect.DELAY, skip=call))
    try:
        return store, store.collect(found.confirmed, dry_run=False)
    finally:
        found.query.faults.heal()


def collected_at(found: Littered, known: bool, call: int) -> bool:
    query, other = found.query, found.query.open()
    before = names(query.storage)
    theirs: list[Collected] = []
    store, ours = collect_with(found, known, call, lambda: theirs.append(other.collect(found.confirmed, dry_run=False)))
    assert names(query.storage) == before - found.planned
    assert ours.stopped is None
    if not theirs:
        assert deleted(ours) == found.planned
        return False
    assert deleted(theirs[0]) == found.planned
    assert deleted(ours) in (found.planned, set())
    for version in found.readable:
        query.assert_restores(query.open(), version)
    for collector in (store, other, query.open()):
        assert deleted(collector.collect(found.confirmed, dry_run=False)) == set()
    return True


def outdated_at(found: Littered, known: bool, call: int) -> bool:
    query, other = found.query, found.query.open()
    versions = [found.confirmed]
    left: list[set[str]] = []

    def go_on() -> None:
        versions.extend(batches(query, other, versions[-1], 3))
        compact(query, other, versions[-1])
        versions.extend(batches(query, other, versions[-1], 8))
        wait(query, 2 * MIN_AGE_MS)
        assert file(versions[0]) in deleted(other.collect(versions[-1], dry_run=False))
        left.append(names(query.storage))

    try:
        collect_with(found, known, call, go_on)
    except LaminaError as error:
        # what it takes for retained is not there any more
        if error.kind not in ("file.missing", "state.not-retained"):
            raise
    if not left:
        return False
    assert names(query.storage) == left[0]
    for version in versions[-7:]:
        query.assert_restores(query.open(), version)
    return True


def at_every_call(happens: Callable[[Littered, bool, int], bool], directory: Path, known: bool) -> None:
    """Lets it happen before each storage call of a collection, in a store of its own, until there are no more calls."""
    call = 0
    while happens(littered(directory / str(call)), known, call):
        call += 1
    assert call > 5


@pytest.mark.parametrize("known", [False, True], ids=["new collector", "one that collected before"])
def test_a_whole_collection_by_another_executor_between_any_two_calls_of_a_collection_changes_nothing(
    tmp_path: Path, known: bool
) -> None:
    at_every_call(collected_at, tmp_path, known)


@pytest.mark.parametrize("known", [False, True], ids=["new collector", "one that collected before"])
def test_a_collector_whose_news_grow_old_between_any_two_calls_deletes_nothing_that_is_needed_now(
    tmp_path: Path, known: bool
) -> None:
    """The query goes on, and another executor collects what this one still takes for retained."""
    at_every_call(outdated_at, tmp_path, known)


def test_a_deletion_that_fails_is_repeated_by_the_next_collection(query: Query) -> None:
    store = query.open()
    lost, won = lost_and_won(query, store)
    query.faults.inject(Fault("delete_many"))
    with fails_with("storage.failed"):
        store.collect(won, dry_run=False)
    assert deleted(store.collect(won, dry_run=False)) == {file(lost)}


@pytest.mark.parametrize("whole", [False, True], ids=["increment", "snapshot"])
@pytest.mark.parametrize("format_version", [1, 2])
def test_a_slow_writer_that_publishes_after_its_version_was_collected_harms_nothing(
    query: Query, format_version: int, whole: bool
) -> None:
    query.format_version = format_version
    store, slow = query.open(), query.open()
    versions = snapshots(query, store, 2)
    begun = query.begin(slow, versions[0], force_snapshot=whole)
    versions += snapshots(query, store, 8, versions[-1])
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:6]}
    before = query.states[versions[0].attempt]
    late = query.commit(slow, versions[0], {b"late": (PUT, b"1")}, begun=begun, before=before)
    for version in versions[6:]:
        query.assert_restores(query.open(), version if format_version == 2 else Version(version.version))
    for gone in (Version(2), versions[1]) if format_version == 1 else versions[1:2]:
        with fails_with("state.not-retained") as caught:
            query.open().load(gone, have=None, read_only=True)
        assert "the oldest file left is of version 7" in caught.error.message
    wait(query, MIN_AGE_MS - 1)
    for collector in (store, query.open()):
        assert deleted(collector.collect(versions[-1], dry_run=False)) == set()
    wait(query, 1)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(late)}
    for version in versions[6:]:
        query.assert_restores(query.open(), version)


@pytest.mark.parametrize("number", [2, 6], ids=["long ago", "the last one that left"])
@pytest.mark.parametrize("format_version", [1, 2])
def test_a_name_that_was_collected_and_is_there_again_harms_nothing(
    query: Query, format_version: int, number: int
) -> None:
    """A publication that was sent twice, or a copy that was put back: the bytes are those of the version."""
    query.format_version = format_version
    store = query.open()
    versions = snapshots(query, store, 10)
    again = versions[number - 1]
    path = f"0/0/{file(again)}"
    data = bytes(query.storage.read(path))
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:6]}
    query.storage.publish(path, data)
    for version in (again, *versions[6:]):
        query.assert_restores(query.open(), version if format_version == 2 else Version(version.version))
    after = snapshots(query, query.open(), 1, versions[-1])[0]
    wait(query, MIN_AGE_MS)
    assert deleted(store.collect(after, dry_run=False)) == {file(again), file(versions[6])}
    for version in (*versions[7:], after):
        query.assert_restores(query.open(), version)


def test_a_collector_that_sleeps_after_its_listing_deletes_no_segment_adopted_meanwhile(query: Query) -> None:
    store, collector = query.open(), query.open(read_only=False)
    versions = batches(query, store, EMPTY, 8)
    segment = compact(query, store, versions[-1])
    backend = query.storage._backend
    assert isinstance(backend, Aged)

    def commit_and_sleep() -> None:
        versions.extend(batches(query, store, versions[-1], 1))
        wait(query, MIN_AGE_MS + 60_000)

    backend.after_listing = commit_and_sleep
    collected = collector.collect(versions[-1], dry_run=False)
    assert len(versions) == 9
    assert segment not in deleted(collected)
    query.assert_restores(query.open(), versions[-1])


def test_a_segment_that_a_clock_ahead_of_the_storages_lets_another_executor_collect_is_not_referred_to(
    query: Query,
) -> None:
    backend = query.storage._backend
    assert isinstance(backend, Aged)
    backend.behind_ms = MIN_AGE_MS + 60_000
    store, collector = query.open(), query.open()
    versions = batches(query, store, EMPTY, 8)
    segment = compact(query, store, versions[-1])
    assert segment in deleted(collector.collect(versions[-1], dry_run=False))
    with fails_with("state.base"):
        batches(query, store, versions[-1], 1)
    versions += batches(query, store, versions[-1], 1)
    query.assert_restores(query.open(), versions[-1])


def test_a_segment_collected_before_its_commit_was_published_fails_the_commit(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 8)
    segment = compact(query, store, versions[-1])
    begun = query.begin(store, versions[-1])
    query.storage.delete_many([f"0/0/{segment}"])
    with fails_with("state.base") as caught:
        query.commit(store, versions[-1], {b"k": (PUT, b"x")}, begun=begun)
    assert segment in caught.error.message
    query.commit(store, versions[-1], {b"k": (PUT, b"x")})


def test_a_segment_that_somebody_else_collected_is_merged_anew(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 8)
    segment = compact(query, store, versions[-1])
    query.storage.delete_many([f"0/0/{segment}"])
    versions += batches(query, query.open(), versions[-1], 1)
    assert compact(query, store, versions[-1]) != segment


def test_a_file_that_one_listing_leaves_out_is_retained_by_the_next_collections(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.min_versions = 8
    store = query.open()
    versions = batches(query, store, EMPTY, 6)
    compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 2)
    wait(query, MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == set()
    listed, left_out = query.faults.list, file(versions[2])
    monkeypatch.setattr(query.faults, "list", lambda path: [entry for entry in listed(path) if entry.name != left_out])
    versions += batches(query, store, versions[-1], 1)
    store.collect(versions[-1], dry_run=False)
    monkeypatch.undo()
    versions += batches(query, store, versions[-1], 1)
    assert left_out not in deleted(store.collect(versions[-1], dry_run=False))
    query.assert_restores(query.open(), versions[2])


def test_a_run_that_begins_while_a_collection_looks_stops_it_before_it_deletes(query: Query) -> None:
    store = query.open()
    lost, won = lost_and_won(query, store)
    newer = Query(query.storage, run="newer", clock=query.clock, ids=query.ids)
    assert isinstance(query.faults, Aged)
    opened: list[VersionedStore] = []
    query.faults.after_listing = lambda: opened.append(newer.open())
    collected = store.collect(won, dry_run=False)
    assert collected.stopped is not None
    assert "newer" in collected.stopped
    assert deleted(collected) == set()
    assert {file(lost), file(won)} <= names(query.storage)
