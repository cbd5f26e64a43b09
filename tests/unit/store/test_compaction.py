"""Compaction: what is merged, how few files remain, and when a segment may be referred to."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina.format.container import verify
from lamina.format.entries import APPEND, DELETE, PUT
from lamina.format.manifest import Reference, SegmentManifest, StoreIdentity
from lamina.storage import Storage
from lamina.store import Compacted, Version
from lamina.store.materialization.compaction import Compaction
from lamina.store.materialization.tiers import pick
from lamina.store.memory.budget import MemoryBudget
from lamina.store.versioned_store import VersionedStore
from lamina.store.versions import chain
from lamina.store.versions.chain import Segment
from lamina.testing import Effect, Fault, FaultyBackend, ManualClock, MemoryBackend
from lamina.testing.expect import fails_with
from tests.unit.store.writing import Query, damage, names, rows_of, triples

EMPTY = Version(0)
STORE = StoreIdentity("uuid", 0, 0, "default")


def reference(start: int, end: int, length: int, rows: int = 0) -> Reference:
    return Reference(None, f"{start}-{end}", 16, length, length + 100, "0" * 32, "run", start, end, rows, STORE)


def compact(store: VersionedStore, version: Version) -> Compacted:
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    return compacted


def references(store: VersionedStore, version: Version) -> list[tuple[int, int]]:
    manifest = store.manifest(version)
    assert manifest is not None
    return [(one.start, one.end) for one in manifest.references]


def merged(
    lengths: Iterable[int],
    *,
    rewritten: list[int] | None = None,
    rows: int = 0,
    live: int = 1,
    passing: Callable[[Sequence[Reference]], int] = lambda _: 0,
) -> Iterator[list[Reference]]:
    """The references of each version whose increments have these lengths, merged as the policy says, before merging.

    A merge is asked for by the commit that stands on a version, so that one has no segment of it. So many versions as
    `passing` says pass after it while references are merged; the one after those names the segment.
    """
    found: list[Reference] = []
    working: tuple[int, Sequence[Reference]] | None = None
    for version, length in enumerate(lengths, start=1):
        if working and working[0] <= version:
            picked, working = working[1], None
            first = found.index(picked[0])
            total = sum(one.length for one in picked)
            found[first : first + len(picked)] = [reference(picked[-1].start, picked[0].end, total, rows)]
            if rewritten is not None:
                rewritten.append(total)
        found.insert(0, reference(version - 1, version, length, rows))
        yield list(found)
        if working is None and (picked := pick(found, live)):
            working = version + 2 + passing(picked), picked


def test_a_version_consists_of_few_files_whatever_the_sizes_of_its_increments() -> None:
    numbers = random.Random(7)
    for lengths in ([100] * 1024, [numbers.choice([1, 10, 100, 1000]) for _ in range(1024)], list(range(1, 1025))):
        longest = 0
        for version, references in enumerate(merged(lengths), start=1):
            assert len(references) <= 2 + math.log2(version)
            longest = max(longest, len(references))
        assert longest > 8


def test_a_version_consists_of_few_files_although_one_more_comes_while_a_long_merge_goes_on() -> None:
    def passing(picked: Sequence[Reference]) -> int:
        return 1 if picked[0].end - picked[-1].start >= 32 else 0

    for lengths in ([100] * 4096, list(range(1, 1025))):
        counts = [len(references) for references in merged(lengths, passing=passing)]
        over = [count - 2 - math.log2(version) for version, count in enumerate(counts, start=1)]
        assert max(over) <= 1
        assert sum(one > 0 for one in over) <= 0.015 * len(over)


def test_the_files_do_not_grow_without_end_although_several_versions_pass_each_merge() -> None:
    for lengths in ([100] * 4096, list(range(5000, 904, -1))):
        for passing in (1, 2, 4):
            rewritten: list[int] = []
            counts = [len(one) for one in merged(lengths, rewritten=rewritten, passing=lambda _, n=passing: n)]
            over = [count - 2 - math.log2(version) for version, count in enumerate(counts, start=1)]
            assert max(over) <= 2 * passing + 2
            assert sum(rewritten) <= sum(lengths) * 0.6 * math.log2(len(lengths))


def test_entries_are_rewritten_less_often_than_the_logarithm_of_the_versions() -> None:
    for versions in (100, 500, 4096):
        rewritten: list[int] = []
        list(merged([100] * versions, rewritten=rewritten))
        assert sum(rewritten) <= 100 * versions * 0.6 * math.log2(versions)


def test_lists_that_grow_every_version_are_rewritten_no_more_often_than_other_entries() -> None:
    """Every version appends to the same keys: more rows than live ones, and none of them is dead."""
    rewritten: list[int] = []
    list(merged([100] * 500, rewritten=rewritten, rows=1000, live=1000))
    assert sum(rewritten) <= 100 * 500 * math.log2(500)


def test_the_large_increments_of_a_preload_are_left_alone_until_as_much_was_written_after_them() -> None:
    large, small = 100 << 20, 1 << 20
    rewritten: list[int] = []
    for references in merged([large] * 4 + [small] * 96, rewritten=rewritten):
        assert [one.length for one in references][-4:] == [large] * min(4, len(references))
        assert len(references) <= 11
    assert 0 < sum(rewritten) < 4 * large + 96 * small


def test_small_increments_after_a_preload_are_not_merged_again_with_every_commit() -> None:
    for preload, rows in ((7 << 20, 0), (1 << 20, 100_000)):
        small = 80 << 10
        rewritten: list[int] = []
        list(merged([preload] * 4 + [small] * 40, rewritten=rewritten, rows=rows, live=10 * rows))
        assert sum(rewritten) <= 40 * small * 0.6 * math.log2(44)


def test_a_large_segment_is_not_merged_again_and_again_with_the_small_increments_after_it() -> None:
    small = 20 << 10
    for large, times in ((3, 7), (4, 11), (5, 24)):
        rewritten: list[int] = []
        list(merged([100 << 20] * large + [small] * 1000, rewritten=rewritten))
        assert sum(rewritten) <= times * 1000 * small


def test_small_increments_after_six_or_seven_large_files_are_not_merged_for_ever_in_what_room_is_left() -> None:
    """Until they are as large as one of the files together."""
    large = 100 << 20
    for count, ratio, times in ((7, 200, 25), (6, 2000, 30), (7, 2000, 35)):
        rewritten: list[int] = []
        increments = [large] * count + [large // ratio] * ratio
        for version, references in enumerate(merged(increments, rewritten=rewritten), start=1):
            assert len(references) <= max(11, 2 + math.log2(version))
        assert sum(rewritten) <= times * large


def test_large_files_are_rewritten_once_and_no_sooner_than_as_much_was_lost_for_want_of_room() -> None:
    large, small = 100 << 20, 50 << 10
    for count in (6, 7):
        rewritten: list[int] = []
        list(merged([large] * count + [small] * 2000, rewritten=rewritten))
        first = next(index for index, length in enumerate(rewritten) if length >= large)
        assert sum(rewritten[:first]) >= 2 * large
        assert sum(length >= large for length in rewritten) == 1


def test_the_next_two_files_are_merged_once_room_for_one_file_more_would_have_saved_their_bytes() -> None:
    """500 versions by twos: 21 rewrites at least in two files, and 10 in three."""
    large = [reference(start, start + 1, 100 << 20) for start in reversed(range(7))]
    for length, merges in ((18 << 20, 3), (19 << 20, 10)):
        newer = [reference(506, 507, 0), reference(505, 506, 0), reference(7, 505, length)]
        assert len(pick([*newer, *large], live_rows=1)) == merges


def test_versions_that_changed_nothing_do_not_count_for_what_room_would_have_saved() -> None:
    """20 increments in 900 versions, and one in each of them."""
    large = [reference(start, start + 1, 100 << 20) for start in reversed(range(7))]
    for increment, merges in ((1 << 20, 3), (20 << 10, 10)):
        newer = [reference(890, 900, increment), reference(880, 890, increment), reference(7, 880, 19 << 20)]
        assert len(pick([*newer, *large], live_rows=1)) == merges


def test_a_chain_most_of_whose_rows_are_dead_is_merged_although_it_is_large_and_short() -> None:
    chain_of_two = [reference(1, 2, 10, rows=10), reference(0, 1, 1000, rows=1000)]
    assert list(pick(chain_of_two, live_rows=900)) == []
    assert pick(chain_of_two, live_rows=100) == chain_of_two


def test_a_single_reference_is_left_alone() -> None:
    assert list(pick([reference(0, 1, 1000, rows=1000)], live_rows=0)) == []
    assert list(pick([], live_rows=0)) == []


def test_a_segment_is_named_checked_and_sorted() -> None:
    query = Query()
    store = query.open()
    version = query.run_batches(store, EMPTY, 8)[-1]
    compacted = compact(store, version)
    assert str(compacted.made.name) in names(query.storage)
    path = f"0/0/{compacted.made.name}"
    manifest = verify(query.storage.read(path), path)
    assert isinstance(manifest, SegmentManifest)
    assert (manifest.start, manifest.end, len(manifest.inputs)) == (0, 8, compacted.replaces)
    query.storage.delete_many([f"0/0/{name}" for name in names(query.storage) if name.endswith(".lam")])
    content = list(triples(store._files.entries(compacted.made.reference())))
    assert [key for key, _, _ in content] == sorted(key for key, _, _ in content)
    assert {key: value for key, _, value in content} == query.states[version.attempt]


def test_compaction_changes_no_published_file() -> None:
    query = Query()
    store = query.open()
    version = query.run_batches(store, EMPTY, 8)[-1]
    before = {name: bytes(query.storage.read(f"0/0/{name}")) for name in names(query.storage)}
    segment = compact(store, version).made
    after = {name: bytes(query.storage.read(f"0/0/{name}")) for name in names(query.storage)}
    assert after == {**before, str(segment.name): after[str(segment.name)]}


def test_the_next_commit_refers_to_the_segment_and_all_versions_restore() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    store.adopt(compact(store, versions[-1]).made)
    versions += query.run_batches(store, versions[-1], 2)
    assert references(store, versions[-1]) == [(5, 6), (4, 5), (0, 4)]
    for version in versions:
        query.assert_restores(query.open(), version)


def test_a_segment_that_is_finished_late_still_replaces_what_it_was_merged_from() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    segment = compact(store, versions[-1]).made
    versions += query.run_batches(store, versions[-1], 3)
    store.adopt(segment)
    versions += query.run_batches(store, versions[-1], 1)
    assert references(store, versions[-1]) == [(7, 8), (6, 7), (5, 6), (4, 5), (0, 4)]
    query.assert_restores(query.open(), versions[-1])


def test_every_attempt_on_a_base_may_refer_to_the_segment() -> None:
    query = Query()
    store = query.open()
    base = query.run_batches(store, EMPTY, 4)[-1]
    store.adopt(compact(store, base).made)
    for _ in range(2):
        attempt = query.run_batches(store, base, 1)[-1]
        assert references(store, attempt) == [(4, 5), (0, 4)]


def test_a_segment_of_an_attempt_that_lost_is_not_referred_to() -> None:
    query = Query()
    store = query.open()
    base = query.run_batches(store, EMPTY, 3)[-1]
    lost = query.commit(store, base, {b"lost": (PUT, b"1")})
    store.adopt(compact(store, lost).made)
    won = query.commit(store, base, {b"won": (PUT, b"1")})
    after = query.commit(store, won, {b"after": (PUT, b"1")})
    assert references(store, after) == [(4, 5), (3, 4), (2, 3), (1, 2), (0, 1)]
    query.assert_restores(query.open(), after)


def test_a_segment_of_part_of_a_chain_keeps_deletes_and_appends() -> None:
    query = Query()
    store = query.open()
    base = query.commit(
        store, EMPTY, {**{b"k%d" % key: (PUT, os.urandom(200)) for key in range(50)}, b"list": (PUT, b"0")}
    )
    version = base
    changes: list[dict[bytes, Any]] = [
        {b"k1": (DELETE, b""), b"list": (APPEND, b"1")},
        {b"list": (APPEND, b"2")},
        {b"k2": (DELETE, b"")},
    ]
    for change in changes:
        version = query.commit(store, version, change)
    compacted = compact(store, version)
    assert (compacted.made.manifest.start, compacted.made.manifest.end) == (1, 4)
    content = {key: (op, value) for key, op, value in triples(store._files.entries(compacted.made.reference()))}
    assert content == {b"k1": (DELETE, b""), b"k2": (DELETE, b""), b"list": (APPEND, b"12")}
    store.adopt(compacted.made)
    query.assert_restores(query.open(), query.commit(store, version, {b"z": (PUT, b"z")}))


def unmerged() -> tuple[Query, ManualClock, VersionedStore, Version]:
    """A store of four versions."""
    clock = ManualClock(1_790_000_000_000)
    query = Query(Storage("files:/state", backend=FaultyBackend(MemoryBackend(clock))), clock=clock)
    store = query.open()
    return query, clock, store, query.run_batches(store, EMPTY, 4)[-1]


def waiting() -> tuple[Query, ManualClock, VersionedStore, Version, Segment]:
    """The same, and the segment that its next commit is to refer to."""
    query, clock, store, base = unmerged()
    segment = compact(store, base).made
    store.adopt(segment)
    return query, clock, store, base, segment


def names_waiting(store: VersionedStore) -> list[str]:
    return [str(segment.name) for segment in store.waiting_segments()]


def written(query: Query, calls: int) -> list[str]:
    """What was published since `calls` calls."""
    return [path for operation, path in query.faults.calls[calls:] if operation == "publish"]


@pytest.mark.parametrize("waited", [0.51, 5, -1])
def test_a_commit_writes_no_segment_anew_however_long_it_waited(waited: float) -> None:
    """It does without one that a collector may be about to delete, and the segment goes on waiting."""
    query, clock, store, base, segment = waiting()
    clock.advance(int(waited * query.settings.retention_min_age_ms))
    calls = len(query.faults.calls)
    version = query.run_batches(store, base, 1)[-1]
    assert [path.endswith(".lam") for path in written(query, calls)] == [True]
    assert len(references(store, version)) == 5
    assert names_waiting(store) == [str(segment.name)]
    query.assert_restores(query.open(), version)


def test_a_segment_that_is_stamped_in_time_is_referred_to_hours_later_and_never_written_again() -> None:
    query, clock, store, base, segment = waiting()
    calls = len(query.faults.calls)
    for _ in range(20):
        clock.advance(query.settings.retention_min_age_ms * 2 // 5)
        assert [name for name, stamped in store.stamp_segments() if stamped] == [str(segment.name)]
    assert written(query, calls) == []
    version = query.run_batches(store, base, 1)[-1]
    assert references(store, version) == [(4, 5), (0, 4)]
    query.assert_restores(query.open(), version)


def test_a_segment_that_is_asked_for_each_quarter_of_the_minimum_age_is_stamped_and_never_written_again() -> None:
    """Also where each time it is a millisecond too early for a quarter: the next one would come too late."""
    query, clock, store, _, segment = waiting()
    calls = len(query.faults.calls)
    for _ in range(20):
        clock.advance(query.settings.retention_min_age_ms // 4 - 1)
        store.stamp_segments()
        clock.advance(1)
    assert written(query, calls) == []
    assert names_waiting(store) == [str(segment.name)]


def test_a_stamp_is_a_new_time_of_publication_so_that_collectors_let_the_file_be(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)))
    store = query.open()
    base = query.run_batches(store, EMPTY, 4)[-1]
    segment = compact(store, base).made
    path = tmp_path / "0" / "0" / str(segment.name)
    os.utime(path, (1, 1))
    assert store._files.stamp(path.name)
    assert path.stat().st_mtime > 1


def slow(query: Query, part: float, times: int = 1) -> None:
    """The next segments take that part of the minimum age to be written."""
    assert isinstance(query.clock, ManualClock)
    query.faults._wait = query.clock.advance
    delay_ms = int(part * query.settings.retention_min_age_ms)
    query.faults.inject(Fault("publish", ".seg", effect=Effect.DELAY, delay_ms=delay_ms, times=times))


@pytest.mark.parametrize("part", [0.1, 0.3, 0.6, 0.74])
def test_a_segment_that_takes_long_to_write_is_stamped_when_it_is_there(part: float) -> None:
    query, clock, store, base = unmerged()
    slow(query, part)
    segment = compact(store, base).made
    store.adopt(segment)
    clock.advance(query.settings.retention_min_age_ms * 2 // 5)
    version = query.run_batches(store, base, 1)[-1]
    assert references(store, version) == [(4, 5), (0, 4)]


def test_a_segment_whose_stamp_fails_is_as_old_as_it_is() -> None:
    query, _, store, base = unmerged()
    slow(query, 0.4)
    query.faults.inject(Fault("stamp"))
    store.adopt(compact(store, base).made)
    assert references(store, query.run_batches(store, base, 1)[-1]) == [(4, 5), (0, 4)]


@pytest.mark.parametrize(("part", "stamps"), [(0.76, True), (5, True), (0.6, False)])
def test_a_segment_that_took_too_long_for_a_stamp_is_copied_at_once(part: float, stamps: bool) -> None:
    query, _, store, base = unmerged()
    calls = len(query.faults.calls)
    slow(query, part)
    with pytest.MonkeyPatch.context() as patch:
        if not stamps:
            patch.setattr(FaultyBackend, "stamp", lambda self, path: False)
        store.adopt(compact(store, base).made)
    assert len(written(query, calls)) == 2
    version = query.run_batches(store, base, 1)[-1]
    assert references(store, version) == [(4, 5), (0, 4)]
    query.assert_restores(query.open(), version)


def test_a_merge_whose_copy_takes_too_long_too_fails_by_the_settings_name() -> None:
    query, _, store, base = unmerged()
    slow(query, 0.8, times=2)
    with fails_with("storage.failed", ".seg", "retention.minAgeMs"):
        compact(store, base)
    store.adopt(compact(store, base).made)
    assert references(store, query.run_batches(store, base, 1)[-1]) == [(4, 5), (0, 4)]


def test_a_segment_whose_copy_takes_too_long_is_given_up_and_merged_anew() -> None:
    query, clock, store, base, segment = waiting()
    clock.advance(query.settings.retention_min_age_ms)
    slow(query, 0.8)
    assert store.stamp_segments() == [(str(segment.name), None)]
    assert store.stamp_segments() == []
    base = query.run_batches(store, base, 1)[-1]
    assert len(references(store, base)) == 5
    store.adopt(compact(store, base).made)
    assert references(store, query.run_batches(store, base, 1)[-1]) == [(5, 6), (0, 5)]


def test_a_young_segment_is_not_stamped() -> None:
    query, clock, store, _, segment = waiting()
    clock.advance(query.settings.retention_min_age_ms // 8)
    assert store.stamp_segments() == []
    assert names_waiting(store) == [str(segment.name)]


@pytest.mark.parametrize("waited", [0.51, 5, -1])
def test_a_segment_that_was_stamped_too_late_gets_a_name_that_no_collector_has(waited: float) -> None:
    """A collector may be about to delete the file that nobody ever referred to; also when the clock went back."""
    query, clock, store, base, segment = waiting()
    clock.advance(int(waited * query.settings.retention_min_age_ms))
    assert [name for name, _ in store.stamp_segments()] == [str(segment.name)]
    query.storage.delete_many([f"0/0/{segment.name}"])
    version = query.run_batches(store, base, 1)[-1]
    assert references(store, version) == [(4, 5), (0, 4)]
    query.assert_restores(query.open(), version)


def test_a_storage_that_knows_no_stamps_gets_a_copy() -> None:
    query, clock, store, base, segment = waiting()
    assert isinstance(query.storage._backend, FaultyBackend)
    clock.advance(query.settings.retention_min_age_ms * 2 // 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FaultyBackend, "stamp", lambda self, path: False)
        changed = store.stamp_segments()
    assert [name for name, _ in changed] == [str(segment.name)]
    assert names_waiting(store) != [str(segment.name)]
    version = query.run_batches(store, base, 1)[-1]
    assert references(store, version) == [(4, 5), (0, 4)]
    query.assert_restores(query.open(), version)


def test_a_stamp_that_took_so_long_that_it_may_have_come_too_late_counts_for_nothing() -> None:
    query, clock, store, _, segment = waiting()
    clock.advance(query.settings.retention_min_age_ms * 2 // 5)
    query.faults._wait = clock.advance
    query.faults.inject(Fault("stamp", effect=Effect.DELAY, delay_ms=query.settings.retention_min_age_ms // 2))
    assert [name for name, _ in store.stamp_segments()] == [str(segment.name)]
    assert names_waiting(store) != [str(segment.name)]


def test_a_segment_that_was_lost_while_it_waited_is_not_referred_to() -> None:
    query, clock, store, base, segment = waiting()
    query.storage.delete_many([f"0/0/{segment.name}"])
    clock.advance(query.settings.retention_min_age_ms)
    assert store.stamp_segments() == [(str(segment.name), None)]
    assert names_waiting(store) == []
    version = query.run_batches(store, base, 1)[-1]
    assert len(references(store, version)) == 5
    query.assert_restores(query.open(), version)


def test_a_segment_that_cannot_be_stamped_now_goes_on_waiting() -> None:
    query, clock, store, base, _ = waiting()
    clock.advance(query.settings.retention_min_age_ms)
    query.faults.inject(Fault("publish", ".seg"))
    assert store.stamp_segments() == []
    version = query.run_batches(store, base, 1)[-1]
    assert len(references(store, version)) == 5
    store.stamp_segments()
    version = query.run_batches(store, version, 1)[-1]
    assert references(store, version) == [(5, 6), (4, 5), (0, 4)]
    query.assert_restores(query.open(), version)


def test_a_segment_merged_from_one_that_is_too_old_waits_with_it() -> None:
    query, clock, store, base, segment = waiting()
    clock.advance(query.settings.retention_min_age_ms * 2 // 5)
    version = query.run_batches(query.open(), base, 12)[-1]
    newer = compact(store, version).made
    assert str(segment.name) in {reference.path for reference in newer.manifest.inputs}
    store.adopt(newer)
    clock.advance(query.settings.retention_min_age_ms // 5)
    assert len(references(store, query.run_batches(store, version, 1)[-1])) == 17
    assert names_waiting(store) == [str(segment.name), str(newer.name)]


def test_only_a_confirmed_version_is_compacted() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    # the last begin confirmed version 3; version 4 may still lose
    compacted = store.compact()
    assert compacted is not None
    assert compacted.made.manifest.end == versions[2].version


def test_full_compaction_leaves_nothing_for_the_background() -> None:
    query = Query(compaction__mode="full")
    store = query.open()
    store.confirm(query.run_batches(store, EMPTY, 8)[-1])
    assert store.compact() is None


def test_a_damaged_input_stops_a_compaction_and_publishes_nothing() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 6)
    assert versions[2].attempt is not None
    name = next(name for name in names(query.storage) if name.startswith("3_"))
    damage(query.storage, f"0/0/{name}", 40)
    before = names(query.storage)
    with fails_with("file.damaged") as caught:
        compact(store, versions[-1])
    assert name in caught.error.message
    assert names(query.storage) == before


def test_progress_counts_the_rows_read() -> None:
    query = Query()
    store = query.open()
    store.confirm(query.run_batches(store, EMPTY, 8)[-1])
    seen: list[tuple[int, int]] = []
    compacted = store.compact(lambda done, total: seen.append((done, total)))
    assert compacted is not None
    assert seen[-1] == (compacted.rows_read, compacted.rows_read)
    assert seen == sorted(seen)


def test_five_hundred_versions_with_compaction_stay_short_small_and_right(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)), min_versions=5)
    store = query.open()
    numbers = random.Random(3)
    version = EMPTY
    for number in range(1, 501):
        changes: dict[bytes, Any] = {b"%04d" % numbers.randrange(300): (PUT, os.urandom(40)) for _ in range(20)}
        changes[b"%04d" % numbers.randrange(300)] = (DELETE, b"")
        version = query.commit(store, version, changes)
        store.confirm(version)
        compacted = store.compact()
        if compacted is not None:
            store.adopt(compacted.made)
        assert len(references(store, version)) <= 2 + max(1, math.log2(number))
    manifest = store.manifest(version)
    assert manifest is not None
    live = sum(count.bytes for count in manifest.counts.values())
    assert sum(one.length for one in manifest.references) <= 2.5 * live + 20_000
    query.assert_restores(query.open(), version)


def test_a_chain_that_does_not_add_up_is_refused() -> None:
    good = [reference(4, 6, 1), reference(1, 4, 1), reference(0, 1, 1)]
    chain.check(good, 6, lambda: "f")
    for wrong in (good[1:], good[:2], [good[0], good[2]], [*good, reference(0, 0, 1)], []):
        with fails_with("file.damaged"):
            chain.check(wrong, 6, lambda: "f")


def test_only_references_that_begin_at_a_version_lead_on_from_it() -> None:
    good = [reference(4, 6, 1), reference(1, 4, 1), reference(0, 1, 1)]
    assert chain.since(good, 4) == (good[0],)
    assert chain.since(good, 1) == (good[0], good[1])
    assert chain.since(good, 6) == ()
    assert chain.since(good, 3) is None


def test_rows_are_the_same_whichever_way_a_version_was_built() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 9)
    plain = rows_of(query.open().load(versions[-1], have=None, read_only=True))
    store.adopt(compact(store, versions[-1]).made)
    after = query.commit(store, versions[-1], {})
    assert rows_of(query.open().load(after, have=None, read_only=True)) == plain


def test_a_merge_takes_room_for_what_it_reads_and_no_more_than_it_can_need(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query()
    store = query.open()
    version = query.run_batches(store, Version(0), 6)[-1]
    peaks = []
    for most in (1 << 20, 700):
        monkeypatch.setattr("lamina.store.materialization.materializer.MERGE_BYTES", most)
        budget = MemoryBudget()
        again = query.open()
        again.confirm(version)
        merge = again.plan_compaction()
        assert merge is not None and merge.bytes > 0
        merge.run(None, budget.share())
        peaks.append(budget.stats()["peak_bytes"])
        assert budget.stats()["held_bytes"] == 0
    assert peaks[0] > 700
    assert peaks[1] == 700


def test_a_merge_that_fails_gives_its_room_back() -> None:
    query = Query()
    store = query.open()
    store.confirm(query.run_batches(store, Version(0), 6)[-1])
    merge, budget = store.plan_compaction(), MemoryBudget()
    assert merge is not None
    query.faults.inject(Fault("publish"))
    with fails_with("storage.failed"):
        merge.run(None, budget.share())
    assert budget.stats()["peak_bytes"] > 0
    assert budget.stats()["held_bytes"] == 0


def test_a_version_that_is_built_around_a_broken_file_takes_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query()
    store = query.open()
    store.confirm(query.run_batches(store, Version(0), 6)[-1])
    merge, budget = store.plan_compaction(), MemoryBudget()
    assert merge is not None

    def broken(*_: object) -> Compacted:
        raise LaminaError.from_kind("file.damaged", "an increment")

    monkeypatch.setattr(Compaction, "_run", broken)
    assert merge.run(None, budget.share()).made.manifest.start == 0
    assert budget.stats()["peak_bytes"] > 0
    assert budget.stats()["held_bytes"] == 0
