"""Retention: each rule has a test that fails on the naive rule."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina.format.entries import PUT
from lamina.storage import Listed, Storage
from lamina.store import Collected, HeapStore, Version
from lamina.store.versions import file_name
from lamina.testing import Effect, Fault, FaultyBackend, ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store.writing import Query, damage, names

EMPTY = Version(0)
MIN_AGE_MS = 600_000
START_MS = 1_790_000_000_000


class Aged(FaultyBackend):
    """Local files whose time of publication is the test's clock."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(Storage(str(root))._backend)
        self.clock = clock
        self.times: dict[str, int] = {}
        self.behind_ms = 0
        self.after_listing: Callable[[], None] | None = None

    def publish(self, path: str, chunks: object) -> int:
        size = super().publish(path, chunks)  # type: ignore[arg-type]
        self.times[path] = self.clock.now_ms() - self.behind_ms
        return size

    def list(self, directory: str) -> list[Listed]:
        listed = [
            Listed(entry.name, entry.size, self.times.get(f"{directory}/{entry.name}", START_MS))
            for entry in super().list(directory)
        ]
        action, self.after_listing = self.after_listing, None
        if action is not None:
            action()
        return listed


@pytest.fixture
def query(tmp_path: Path) -> Query:
    clock = ManualClock(START_MS)
    return Query(Storage(str(tmp_path), backend=Aged(tmp_path, clock)), min_versions=3, clock=clock)


def wait(query: Query, milliseconds: int) -> None:
    assert isinstance(query.clock, ManualClock)
    query.clock.advance(milliseconds)


def batches(query: Query, store: HeapStore, base: Version, count: int, every_ms: int = 1000) -> list[Version]:
    versions = []
    for _ in range(count):
        wait(query, every_ms)
        versions += query.run_batches(store, base, 1)
        base = versions[-1]
    return versions


def compact(query: Query, store: HeapStore, version: Version) -> str:
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    store.adopt(compacted.segment)
    return str(compacted.segment.name)


def file(version: Version) -> str:
    assert version.attempt is not None
    return file_name(version.attempt)


def deleted(collected: Collected) -> set[str]:
    return {deletion.path for deletion in collected.deleted}


def test_what_a_retained_version_refers_to_stays_however_old_it_is(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 10)
    wait(query, 100 * MIN_AGE_MS)
    # no compaction: the newest versions stand on every increment since the start
    assert deleted(store.collect(versions[-1], dry_run=False)) == set()
    for version in versions:
        query.assert_restores(query.open(), version)


def test_what_left_retention_goes_and_all_retained_versions_restore(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 6)
    compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 6)
    wait(query, MIN_AGE_MS)
    gone = deleted(store.collect(versions[-1], dry_run=False))
    # retained are 12 and the three before it, which stand on the segment of 1 … 6 and the increments after it
    assert gone == {file(version) for version in versions[:6]}
    for version in versions[6:]:
        query.assert_restores(query.open(), version)


def test_exactly_the_configured_number_of_versions_before_the_newest_is_retained(query: Query) -> None:
    store = query.open()
    base = EMPTY
    versions = []
    for _ in range(10):
        base = query.commit(store, base, {b"k": (PUT, b"x")}, force_snapshot=True)
        versions.append(base)
    wait(query, 2 * MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:6]}
    wait(query, 2 * MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == set()
    for version in versions[6:]:
        query.assert_restores(query.open(), version)


def test_nothing_numbered_above_the_confirmed_version_goes(query: Query) -> None:
    """An executor that lost the store knows old news: newer files are not in its lineage and are needed."""
    stale = query.open()
    versions = batches(query, stale, EMPTY, 5)
    live = query.open()
    newer = batches(query, live, versions[-1], 10)
    segment = compact(query, live, newer[-1])
    newer += batches(query, live, newer[-1], 1)
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(stale.collect(versions[-1], dry_run=False)) == set()
    assert segment in names(query.storage)
    query.assert_restores(query.open(), newer[-1])


def test_what_a_committed_version_stands_on_stays_while_nobody_builds_on_it(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 6)
    segment = compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 1)
    # the query rests: version 7 stands on the segment of 1 … 6, and the last version that was built on is 6
    wait(query, 10 * MIN_AGE_MS)
    assert segment not in deleted(store.collect(versions[5], dry_run=False))
    versions += batches(query, store, versions[-1], 6)
    wait(query, 10 * MIN_AGE_MS)
    store.collect(versions[-1], dry_run=False)
    for version in versions[-4:]:
        query.assert_restores(query.open(), version)


def test_the_retained_set_follows_the_lineage_and_not_the_largest_number(query: Query) -> None:
    """Leftovers of a run that was rewound have larger numbers; what the confirmed version needs is older."""
    store = query.open()
    versions = batches(query, store, EMPTY, 3)
    batches(query, store, versions[-1], 20)
    rewound = Query(query.storage, run="rewound", min_versions=3, clock=query.clock)
    rewound.states = query.states
    again = rewound.open()
    branch = batches(rewound, again, versions[-1], 2)
    wait(query, 100 * MIN_AGE_MS)
    gone = deleted(again.collect(branch[-1], dry_run=False))
    assert not gone & {file(version) for version in [*versions, *branch]}
    for version in [*versions[1:], *branch]:
        rewound.assert_restores(rewound.open(), version)


def test_a_store_of_an_older_run_deletes_nothing(query: Query) -> None:
    """Its confirmed version may be one that the newer run, rewound, executed again."""
    older = query.open()
    versions = batches(query, older, EMPTY, 3)
    mine = batches(query, older, versions[-1], 6)
    newer = Query(query.storage, run="newer", min_versions=3, clock=query.clock)
    newer.states = query.states
    theirs = batches(newer, newer.open(), versions[-1], 3)
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(older.collect(mine[-1], dry_run=False)) == set()
    newer.assert_restores(newer.open(), theirs[-1])


def test_a_newer_run_that_has_written_nothing_yet_stops_the_older_one(query: Query) -> None:
    """It may have been rewound to a version that the older run does not retain."""
    older = query.open()
    base = EMPTY
    versions = []
    for _ in range(10):
        base = query.commit(older, base, {b"k": (PUT, b"x")}, force_snapshot=True)
        versions.append(base)
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(older.collect(versions[-1], dry_run=True)) != set()
    Query(query.storage, run="newer", clock=query.clock).open()
    assert deleted(older.collect(versions[-1], dry_run=False)) == set()


def test_a_newer_run_is_known_by_its_files_too(query: Query) -> None:
    older = query.open()
    versions = batches(query, older, EMPTY, 6)
    newer = Query(query.storage, run="newer", min_versions=3, clock=query.clock)
    newer.states = query.states
    theirs = batches(newer, newer.open(), versions[2], 1)
    for entry in query.storage.list("_lamina/runs"):
        if entry.name.endswith("newer"):
            query.storage.delete_many([f"_lamina/runs/{entry.name}"])
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(older.collect(versions[-1], dry_run=False)) == set()
    assert file(theirs[-1]) in names(query.storage)


def test_files_of_every_epoch_that_the_run_or_an_older_one_claimed_stop_nothing(query: Query) -> None:
    """Two executors of a run may have claimed an epoch each; neither is a newer run than the other."""
    query.storage.publish("_lamina/runs/1_before", b"{}")
    second = query.open()
    versions = batches(query, second, EMPTY, 1)
    query.storage.publish("_lamina/runs/1_run", b"{}")
    first = query.open()
    lost = query.commit(second, versions[-1], {b"lost": (PUT, b"1")})
    won = query.commit(first, versions[-1], {b"won": (PUT, b"1")})
    assert [version.attempt.split(".")[2] for version in (lost, won) if version.attempt] == ["2", "1"]
    wait(query, MIN_AGE_MS)
    assert deleted(first.collect(won, dry_run=False)) == {file(lost)}
    lost = query.commit(second, versions[-1], {b"again": (PUT, b"1")})
    wait(query, MIN_AGE_MS)
    # a run after it in the order, of a smaller epoch than its second claim
    query.storage.publish("_lamina/runs/1_sequel", b"{}")
    newer = Query(query.storage, run="sequel", min_versions=3, clock=query.clock)
    assert deleted(newer.open().collect(won, dry_run=False)) == {file(lost)}


def test_of_attempts_of_one_version_the_one_that_was_built_on_stays(query: Query) -> None:
    store = query.open()
    base = batches(query, store, EMPTY, 1)[-1]
    lost = query.commit(store, base, {b"lost": (PUT, b"1")})
    won = query.commit(store, base, {b"won": (PUT, b"1")})
    after = query.commit(store, won, {b"after": (PUT, b"1")})
    wait(query, MIN_AGE_MS - 1)
    assert deleted(store.collect(after, dry_run=False)) == set()
    wait(query, 1)
    assert deleted(store.collect(after, dry_run=False)) == {file(lost)}
    query.assert_restores(query.open(), after)


def test_an_old_snapshot_that_just_became_unreferenced_stays_for_its_readers(query: Query) -> None:
    """Its own age says nothing: a reader may have opened the last version on it a moment ago."""
    store = query.open()
    versions = batches(query, store, EMPTY, 4)
    old = compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 4)
    wait(query, 100 * MIN_AGE_MS)
    versions.append(query.commit(store, versions[-1], {b"s": (PUT, b"1")}, force_snapshot=True))
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
    store = query.open()
    versions = batches(query, store, EMPTY, 4)
    old = compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 4)
    wait(query, 100 * MIN_AGE_MS)
    versions.append(query.commit(store, versions[-1], {b"s": (PUT, b"1")}, force_snapshot=True))
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


def reads(store: HeapStore, version: Version) -> dict[str, Iterator[object]]:
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


def test_versions_are_retained_by_their_age_too(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    storage = Storage(str(tmp_path), backend=Aged(tmp_path, clock))
    query = Query(storage, min_versions=3, clock=clock, retention__minVersionAgeMs=3_600_000, retention__minAgeMs=0)
    store = query.open()
    base = EMPTY
    versions = []
    for number in range(60):
        wait(query, 120_000)
        base = query.commit(store, base, {b"k": (PUT, b"%d" % number)}, force_snapshot=True)
        versions.append(base)
    # versions 30 … 60 were the newest ones within the last hour: 31 was published 58 minutes ago, 30 an hour ago
    assert deleted(query.open().collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:29]}
    for version in versions[29:]:
        query.assert_restores(query.open(), version)
    # the age goes on without new versions, down to what the number retains
    wait(query, 7_200_000)
    gone = deleted(store.collect(versions[-1], dry_run=False))
    assert gone == {file(version) for version in versions[29:56]}
    assert deleted(store.collect(versions[-1], dry_run=False)) == set()


def test_a_lineage_that_breaks_off_among_versions_retained_by_age_stops_a_collection(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    storage = Storage(str(tmp_path), backend=Aged(tmp_path, clock))
    query = Query(storage, min_versions=3, clock=clock, retention__minVersionAgeMs=3_600_000)
    store = query.open()
    store._commits._lineage_length = 1
    versions = batches(query, store, EMPTY, 12)
    lost = query.commit(store, versions[-2], {b"lost": (PUT, b"1")})
    query.storage.delete_many([f"0/0/{file(versions[6])}"])
    wait(query, 1_800_000)
    collected = query.open().collect(versions[-1], dry_run=False)
    assert collected.verdicts == ()
    assert "lineage" in str(collected.stopped)
    assert file(lost) in names(query.storage)


def test_the_next_collection_reads_the_manifests_of_new_versions_only(query: Query) -> None:
    store, collector = query.open(), query.open()
    versions = batches(query, store, EMPTY, 20)
    collector.collect(versions[-1], dry_run=False)
    versions += batches(query, store, versions[-1], 2)
    query.faults.calls.clear()
    collector.collect(versions[-1], dry_run=False)
    read = [path for operation, path in query.faults.calls if operation.startswith("read")]
    assert set(read) == {f"0/0/{file(version)}" for version in versions[-2:]}


def test_a_collection_tells_after_each_manifest_that_it_goes_on(query: Query) -> None:
    store = query.open()
    store._commits._lineage_length = 1
    versions = batches(query, store, EMPTY, 12)
    for _ in range(12):
        query.commit(store, versions[-1], {b"above": (PUT, b"1")})
    reads: list[int] = []
    query.faults.calls.clear()

    def looked() -> None:
        reads.append(sum(operation.startswith("read") for operation, _ in query.faults.calls))

    query.open().collect(versions[-1], dry_run=False, looked=looked)
    assert reads[-1] >= 24
    assert max(after - before for before, after in pairwise([0, *reads])) <= 2
    calls = [operation for operation, _ in query.faults.calls]
    assert sum(operation.startswith("read") for operation in calls) == reads[-1]


def test_a_lineage_that_was_rewound_is_followed_anew(query: Query) -> None:
    """What the registry knows of the versions that were given up must not decide about those that count again."""
    store = query.open()
    versions = batches(query, store, EMPTY, 4)
    segment = compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 8)
    collector = query.open()
    collector.collect(versions[-1], dry_run=True)
    branch = query.commit(store, versions[5], {b"again": (PUT, b"1")})
    branch = batches(query, store, branch, 1)[-1]
    wait(query, 100 * MIN_AGE_MS)
    gone = deleted(collector.collect(branch, dry_run=False))
    assert segment not in gone
    assert gone == {file(version) for version in versions[:4]}
    query.assert_restores(query.open(), branch)


def snapshots(query: Query, store: HeapStore, count: int, base: Version = EMPTY) -> list[Version]:
    """Versions that need no file but their own."""
    versions = []
    for _ in range(count):
        wait(query, 1000)
        base = query.commit(store, base, {b"k": (PUT, b"x")}, force_snapshot=True)
        versions.append(base)
    return versions


def test_versions_that_were_collected_before_a_rewind_stop_no_collection(query: Query) -> None:
    store = query.open()
    versions = snapshots(query, store, 10)
    wait(query, MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:6]}
    rewound = Query(query.storage, run="rewound", min_versions=3, clock=query.clock)
    rewound.states = query.states
    again = rewound.open()
    branch = rewound.commit(again, versions[7], {b"again": (PUT, b"1")}, force_snapshot=True)
    wait(query, MIN_AGE_MS)
    # of the retained versions 6 … 9 the sixth is gone; of what was given up 9 goes, and 10 is above what is confirmed
    assert deleted(again.collect(branch, dry_run=False)) == {file(versions[8])}
    for version in (versions[6], versions[7], branch):
        rewound.assert_restores(rewound.open(), version)
    after = rewound.commit(again, branch, {b"again": (PUT, b"2")}, force_snapshot=True)
    wait(query, MIN_AGE_MS)
    assert deleted(again.collect(after, dry_run=False)) == {file(versions[9])}


@pytest.mark.parametrize("retained", [1, 2, 3])
def test_a_manifest_that_is_not_there_and_has_an_older_one_below_it_stops_a_collection(
    query: Query, retained: int
) -> None:
    versions = snapshots(query, query.open(), 10)
    wait(query, 100 * MIN_AGE_MS)
    query.storage.delete_many([f"0/0/{file(versions[-1 - retained])}"])
    with fails_with("file.missing"):
        query.open().collect(versions[-1], dry_run=False)


def test_the_oldest_manifest_that_is_not_there_and_is_referred_to_stops_a_collection(query: Query) -> None:
    """It was lost: a collector keeps what retained versions refer to."""
    store = query.open()
    versions = snapshots(query, store, 7)
    versions += batches(query, store, versions[-1], 3)
    other = query.commit(store, versions[-2], {b"other": (PUT, b"1")})
    wait(query, MIN_AGE_MS - 1)
    assert deleted(query.open().collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:5]}
    query.storage.delete_many([f"0/0/{file(version)}" for version in versions[5:7]])
    wait(query, 100 * MIN_AGE_MS)
    with fails_with("file.missing"):
        query.open().collect(versions[-1], dry_run=False)
    assert file(other) in names(query.storage)


def test_the_newest_version_alone_is_never_taken_for_collected(query: Query) -> None:
    store = query.open()
    version = snapshots(query, store, 1)[0]
    other = query.commit(store, EMPTY, {b"other": (PUT, b"1")})
    wait(query, 100 * MIN_AGE_MS)

    def gone() -> None:
        query.storage.delete_many([f"0/0/{file(version)}"])

    with fails_with("file.missing"):
        query.open().collect(version, dry_run=False, looked=gone)
    assert file(other) in names(query.storage)


def test_what_an_attempt_above_the_confirmed_version_refers_to_stays(query: Query) -> None:
    """A zombie's, or the one that Spark commits: nobody knows before somebody builds on it."""
    store, zombie = query.open(), query.open()
    versions = batches(query, store, EMPTY, 6)
    begun = query.begin(zombie, versions[-1])
    segment = compact(query, zombie, versions[-1])
    snapshot = query.commit(store, versions[-1], {b"s": (PUT, b"1")}, force_snapshot=True)
    late = query.commit(zombie, versions[-1], {b"late": (PUT, b"1")}, begun=begun)
    wait(query, 100 * MIN_AGE_MS)
    collected = store.collect(versions[-1], dry_run=False)
    assert not deleted(collected) & {segment, file(late), file(snapshot)}
    query.assert_restores(query.open(), late)
    query.assert_restores(query.open(), snapshot)


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
    segment = str(compacted.segment.name)
    assert segment in names(query.storage)
    store.adopt(compacted.segment)
    versions.append(query.commit(store, versions[-1], {b"k": (PUT, b"y")}))
    manifest = store.manifest(versions[-1])
    assert manifest is not None
    assert segment not in [reference.path for reference in manifest.references]
    wait(query, MIN_AGE_MS)
    assert segment in deleted(store.collect(versions[-1], dry_run=False))
    for version in versions[-4:]:
        query.assert_restores(query.open(), version)


def test_a_collection_counts_by_action_and_class(query: Query) -> None:
    store = query.open()
    base = batches(query, store, EMPTY, 1)[-1]
    lost = query.commit(store, base, {b"lost": (PUT, b"1")})
    won = query.commit(store, base, {b"won": (PUT, b"1")})
    size = query.storage.size(f"0/0/{file(lost)}")
    wait(query, MIN_AGE_MS)
    metrics = store.collect(won, dry_run=False).metrics()
    assert metrics["delete_files"] == metrics["delete_commit_files"] == 1
    assert metrics["delete_bytes"] == size
    assert metrics["keep_files"] == 2


def test_the_age_of_a_referred_file_counts_from_the_manifest_that_ended_its_retention(query: Query) -> None:
    store = query.open()
    base = EMPTY
    versions = []
    for _ in range(6):
        wait(query, 100_000)
        base = query.commit(store, base, {b"k": (PUT, b"x")}, force_snapshot=True)
        versions.append(base)
    # version 2 is not needed once 3 + min_versions = 6 is there, published just now
    wait(query, MIN_AGE_MS - 1)
    assert file(versions[1]) not in deleted(store.collect(versions[-1], dry_run=True))
    wait(query, 1)
    assert file(versions[1]) in deleted(store.collect(versions[-1], dry_run=True))


def test_versions_that_changed_nothing_keep_the_newest_file_below_them(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 2)
    forced = query.commit(store, versions[-1], {b"k": (PUT, b"x")}, force_snapshot=True)
    after = query.commit(store, Version(50, forced.attempt), {b"k": (PUT, b"y")}, force_snapshot=True)
    wait(query, 100 * MIN_AGE_MS)
    gone = deleted(store.collect(after, dry_run=False))
    # of the retained versions 48 … 50 the newest file is that of version 3
    assert file(forced) not in gone
    assert {file(version) for version in versions} == gone
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(store.collect(after, dry_run=False)) == set()
    query.assert_restores(query.open(), Version(49, forced.attempt))


def test_files_that_leave_retention_by_versions_without_a_file_wait_for_the_minimum_age(query: Query) -> None:
    """Version 9 has no manifest that tells when version 1 left: it counts from when a collector saw it."""
    store = query.open()
    first = query.commit(store, EMPTY, {b"k": (PUT, b"x")}, force_snapshot=True)
    second = query.commit(store, first, {b"k": (PUT, b"y")}, force_snapshot=True)
    wait(query, 100 * MIN_AGE_MS)
    idle = Version(9, second.attempt)
    assert deleted(store.collect(idle, dry_run=False)) == set()
    wait(query, MIN_AGE_MS - 1)
    assert deleted(store.collect(idle, dry_run=False)) == set()
    wait(query, 1)
    assert deleted(store.collect(idle, dry_run=False)) == {file(first)}
    query.assert_restores(query.open(), idle)


def test_a_segment_that_nobody_referred_to_goes_by_its_own_age(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 6)
    store.confirm(versions[-1])
    compacted = store.compact()
    assert compacted is not None
    wait(query, MIN_AGE_MS - 1)
    assert deleted(store.collect(versions[-1], dry_run=False)) == set()
    wait(query, 1)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {str(compacted.segment.name)}


def test_a_segment_that_a_commit_hours_later_is_the_first_to_name_is_there(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 6)
    store.confirm(versions[-1])
    compacted = store.compact()
    assert compacted is not None
    store.adopt(compacted.segment)
    wait(query, 10 * MIN_AGE_MS)
    other = query.open()
    # the other executor deletes it while this one is about to commit
    collected = deleted(other.collect(versions[-1], dry_run=False))
    assert str(compacted.segment.name) in collected
    versions += batches(query, store, versions[-1], 1)
    query.assert_restores(query.open(), versions[-1])


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


def test_publications_that_were_cut_off_go_by_age(query: Query, tmp_path: Path) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 1)
    left = tmp_path / "0" / "0" / f".{file(versions[0])}.1-1.tmp"
    left.write_bytes(b"half")
    backend = query.storage._backend
    assert isinstance(backend, Aged)
    backend.times[f"0/0/{left.name}"] = query.clock.now_ms()
    assert deleted(store.collect(versions[-1], dry_run=False)) == set()
    wait(query, MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {left.name}


def test_files_that_are_not_ours_stay(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 1)
    for name in ("notes.txt", "1.delta", "_SUCCESS"):
        query.storage.publish(f"0/0/{name}", b"x")
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == set()


def test_a_dry_run_deletes_nothing_and_says_what_and_why(query: Query) -> None:
    store = query.open()
    base = batches(query, store, EMPTY, 1)[-1]
    lost = query.commit(store, base, {b"lost": (PUT, b"1")})
    won = query.commit(store, base, {b"won": (PUT, b"1")})
    wait(query, MIN_AGE_MS)
    before = names(query.storage)
    collected = store.collect(won, dry_run=True)
    (deletion,) = collected.deleted
    assert (deletion.path, deletion.age_ms) == (file(lost), MIN_AGE_MS)
    assert deletion.reason
    assert deletion.size == query.storage.size(f"0/0/{file(lost)}")
    assert collected.dry_run
    assert names(query.storage) == before


def test_a_lineage_that_cannot_be_followed_stops_a_collection(query: Query) -> None:
    """Without the manifests between, nobody knows what the retained versions need."""
    store = query.open()
    store._commits._lineage_length = 1
    versions = batches(query, store, EMPTY, 8)
    lost = query.commit(store, versions[-2], {b"lost": (PUT, b"1")})
    wait(query, 100 * MIN_AGE_MS)
    query.storage.delete_many([f"0/0/{file(versions[-2])}"])
    assert deleted(query.open().collect(versions[-1], dry_run=False)) == set()
    assert file(lost) in names(query.storage)


def test_a_lineage_longer_than_its_manifest_lists_is_followed_on(query: Query) -> None:
    store = query.open()
    store._commits._lineage_length = 1
    versions = batches(query, store, EMPTY, 8)
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(query.open().collect(versions[-1], dry_run=False)) == set()
    for version in versions:
        query.assert_restores(query.open(), version)


def test_a_retained_version_that_is_damaged_stops_a_collection(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 8)
    path = f"0/0/{file(versions[-2])}"
    query.storage.publish(path, bytes(query.storage.read(path))[:-1])
    wait(query, 100 * MIN_AGE_MS)
    with fails_with("file.damaged"):
        query.open().collect(versions[-1], dry_run=False)


@pytest.mark.parametrize("how", ["the system cannot read it now", "it is damaged"])
def test_a_waiting_commit_that_cannot_be_read_stops_collections_until_it_is_old(query: Query, how: str) -> None:
    """Whoever opened it before may read what it refers to."""
    store, zombie = query.open(), query.open()
    versions = batches(query, store, EMPTY, 6)
    begun = query.begin(zombie, versions[-1])
    segment = compact(query, zombie, versions[-1])
    lost = query.commit(zombie, versions[-1], {b"lost": (PUT, b"1")}, begun=begun)
    wait(query, 100 * MIN_AGE_MS)
    base = versions[-1]
    for _ in range(6):
        base = query.commit(store, base, {b"k": (PUT, b"x")}, force_snapshot=True)
    backend = query.storage._backend
    assert isinstance(backend, Aged)
    backend.times[f"0/0/{file(lost)}"] = query.clock.now_ms()
    assert segment not in deleted(store.collect(base, dry_run=True))
    if how == "it is damaged":
        path = f"0/0/{file(lost)}"
        damage(query.storage, path, len(bytes(query.storage.read(path))) - 20)
    else:
        query.faults.inject(Fault("read_tail", file(lost), errno=errno.EIO))
    before = names(query.storage)
    with fails_with("file.damaged") as caught:
        query.open().collect(base, dry_run=False)
    assert file(lost) in caught.error.message
    assert names(query.storage) == before
    wait(query, MIN_AGE_MS)
    assert {file(lost), segment} <= deleted(query.open().collect(base, dry_run=False))


def test_a_clock_that_went_back_makes_nothing_old(query: Query) -> None:
    store = query.open()
    base = batches(query, store, EMPTY, 1)[-1]
    query.commit(store, base, {b"lost": (PUT, b"1")})
    won = query.commit(store, base, {b"won": (PUT, b"1")})
    wait(query, -3_600_000)
    assert deleted(store.collect(won, dry_run=False)) == set()


def test_a_storage_that_tells_no_times_loses_nothing(query: Query) -> None:
    store = query.open()
    base = batches(query, store, EMPTY, 1)[-1]
    lost = query.commit(store, base, {b"lost": (PUT, b"1")})
    won = query.commit(store, base, {b"won": (PUT, b"1")})
    backend = query.storage._backend
    assert isinstance(backend, Aged)
    backend.times[f"0/0/{file(lost)}"] = 0
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(store.collect(won, dry_run=False)) == set()


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


def collect_with(found: Littered, known: bool, call: int, meanwhile: Callable[[], None]) -> tuple[HeapStore, Collected]:
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


@pytest.mark.parametrize("known", [False, True], ids=["new collector", "one that collected before"])
def test_a_whole_collection_by_another_executor_between_any_two_calls_of_a_collection_changes_nothing(
    tmp_path: Path, known: bool
) -> None:
    call = 0
    while collected_at(littered(tmp_path / str(call)), known, call):
        call += 1
    assert call > 5


@pytest.mark.parametrize("known", [False, True], ids=["new collector", "one that collected before"])
def test_a_collector_whose_news_grow_old_between_any_two_calls_deletes_nothing_that_is_needed_now(
    tmp_path: Path, known: bool
) -> None:
    """The query goes on, and another executor collects what this one still takes for retained."""
    call = 0
    while outdated_at(littered(tmp_path / str(call)), known, call):
        call += 1
    assert call > 5


def test_a_deletion_that_fails_is_repeated_by_the_next_collection(query: Query) -> None:
    store = query.open()
    base = batches(query, store, EMPTY, 1)[-1]
    lost = query.commit(store, base, {b"lost": (PUT, b"1")})
    won = query.commit(store, base, {b"won": (PUT, b"1")})
    wait(query, MIN_AGE_MS)
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


def test_an_empty_store_has_nothing_to_collect(query: Query) -> None:
    store = query.open()
    assert store.collect(EMPTY, dry_run=False).deleted == ()
    never_written = Version(4, f"L1.0.1.e.-.{'0f' * 16}")
    assert store.collect(never_written, dry_run=False).deleted == ()


def test_files_do_not_pile_up_over_many_versions(query: Query, tmp_path: Path) -> None:
    store = query.open()
    version = EMPTY
    counts = []
    for _ in range(120):
        version = batches(query, store, version, 1, every_ms=MIN_AGE_MS // 4)[-1]
        store.confirm(version)
        compacted = store.compact()
        if compacted is not None:
            store.adopt(compacted.segment)
        store.collect(version, dry_run=False)
        counts.append(len(os.listdir(tmp_path / "0" / "0")))
    assert max(counts[60:]) <= max(counts[30:60]) + 4
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


def test_a_finished_segment_waits_for_the_next_commit_however_long_that_takes(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 8)
    segment = compact(query, store, versions[-1])
    wait(query, 3 * MIN_AGE_MS)
    assert segment not in deleted(store.collect(versions[-1], dry_run=False))
    versions += batches(query, store, versions[-1], 1)
    query.assert_restores(query.open(), versions[-1])


def test_a_segment_that_somebody_else_collected_is_merged_anew(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 8)
    segment = compact(query, store, versions[-1])
    query.storage.delete_many([f"0/0/{segment}"])
    versions += batches(query, query.open(), versions[-1], 1)
    assert compact(query, store, versions[-1]) != segment


@pytest.mark.parametrize("kind", ["file.version", "file.damaged"])
def test_a_newer_commit_that_cannot_be_read_stops_the_collection(
    query: Query, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store, collector = query.open(), query.open()
    versions = batches(query, store, EMPTY, 8)
    compact(query, store, versions[-1])
    batches(query, store, versions[-1], 1)
    before = names(query.storage)
    wait(query, 3 * MIN_AGE_MS)

    def unreadable(files: object, attempt: str) -> list[str]:
        raise LaminaError.from_kind(kind, attempt)

    monkeypatch.setattr("lamina.store.retention.footprint", unreadable)
    with fails_with(kind):
        collector.collect(versions[-1], dry_run=False)
    assert names(query.storage) == before
