"""What is retained and what goes: each rule has a test that fails on the naive rule."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from lamina.format.entries import PUT
from lamina.storage import Storage
from lamina.store import Version
from lamina.testing import ManualClock
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
    versions = snapshots(query, store, 10)
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
    store._attempts._lineage_length = 1
    versions = batches(query, store, EMPTY, 12)
    for _ in range(12):
        query.commit(store, versions[-1], {b"above": (PUT, b"1")})
    reads: list[int] = []
    query.faults.calls.clear()

    def looked() -> None:
        reads.append(sum(operation.startswith("read") for operation, _ in query.faults.calls))

    query.open().collect(versions[-1], dry_run=False, progressed=looked)
    assert reads[-1] >= 24
    assert max(after - before for before, after in pairwise([0, *reads])) <= 2
    calls = [operation for operation, _ in query.faults.calls]
    assert sum(operation.startswith("read") for operation in calls) == reads[-1]


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
    assert deleted(store.collect(versions[-1], dry_run=False)) == {str(compacted.made.name)}


def test_a_segment_that_a_commit_hours_later_is_the_first_to_name_is_there(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 6)
    store.confirm(versions[-1])
    compacted = store.compact()
    assert compacted is not None
    store.adopt(compacted.made)
    wait(query, 10 * MIN_AGE_MS)
    other = query.open()
    # the other executor deletes it while this one is about to commit
    collected = deleted(other.collect(versions[-1], dry_run=False))
    assert str(compacted.made.name) in collected
    versions += batches(query, store, versions[-1], 1)
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
    # a publication that goes on may have begun its file as long ago
    wait(query, 6 * MIN_AGE_MS - 1)
    assert deleted(store.collect(versions[-1], dry_run=False)) == set()
    wait(query, 1)
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
    lost, won = lost_and_won(query, store)
    before = names(query.storage)
    collected = store.collect(won, dry_run=True)
    (deletion,) = collected.deleted
    assert (deletion.path, deletion.age_ms) == (file(lost), MIN_AGE_MS)
    assert deletion.reason
    assert deletion.size == query.storage.size(f"0/0/{file(lost)}")
    assert collected.dry_run
    assert names(query.storage) == before


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
            store.adopt(compacted.made)
        store.collect(version, dry_run=False)
        counts.append(len(os.listdir(tmp_path / "0" / "0")))
    assert max(counts[60:]) <= max(counts[30:60]) + 4
    query.assert_restores(query.open(), version)


def test_a_finished_segment_waits_for_the_next_commit_however_long_that_takes(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 8)
    segment = compact(query, store, versions[-1])
    wait(query, 3 * MIN_AGE_MS)
    assert segment not in deleted(store.collect(versions[-1], dry_run=False))
    versions += batches(query, store, versions[-1], 1)
    query.assert_restores(query.open(), versions[-1])
