"""Recovery: a broken file is named, and another way to the same state is taken where there is one."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

import lamina
from lamina.format.entries import PUT
from lamina.format.manifest import SNAPSHOT
from lamina.format.paths import is_immutable
from lamina.storage import LocalCache, Storage
from lamina.storage.cache import CachingBackend
from lamina.store import Version
from lamina.store.files.store_files import StoreFiles
from lamina.store.restore import detours
from lamina.store.versioned_store import VersionedStore
from lamina.store.versions.chain import Segment
from lamina.store.versions.resolution import Versions
from lamina.testing import Fault
from lamina.testing.expect import fails_with
from tests.unit.store.meeting import Meeting
from tests.unit.store.writing import Query, damage, file_name, rows_of

EMPTY = Version(0)


def path(version: Version) -> str:
    assert version.attempt is not None
    return f"0/0/{file_name(version.attempt)}"


def compacted(query: Query, version: Version) -> Segment:
    """A segment as another executor makes it."""
    store = query.open()
    store.confirm(version)
    found = store.compact()
    assert found is not None
    return found.made


def segment_path(segment: Segment) -> str:
    return f"0/0/{segment.name}"


def on_a_damaged_segment(newer: int) -> tuple[Query, VersionedStore, list[Version], Segment]:
    """Six versions, so many newer ones that refer to a segment of them, and that segment, which is damaged."""
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 6)
    used = compacted(query, versions[-1])
    store.adopt(used)
    versions += query.run_batches(store, versions[-1], newer)
    damage(query.storage, segment_path(used), 40)
    return query, store, versions, used


def break_file(query: Query, path: str, how: str) -> None:
    if how == "damaged":
        damage(query.storage, path, 40)
    elif how == "unreadable":
        for operation in ("read", "read_range", "read_tail"):
            query.faults.inject(Fault(operation, path, times=1_000, errno=errno.EIO))
    else:
        query.storage.delete_many([path])


@pytest.mark.parametrize("how", ["damaged", "missing", "unreadable"])
def test_a_broken_segment_is_replaced_by_another_one_that_was_merged_from_the_same_files(how: str) -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 6)
    used, spare = compacted(query, versions[-1]), compacted(query, versions[-1])
    store.adopt(used)
    versions += query.run_batches(store, versions[-1], 2)
    break_file(query, segment_path(used), how)
    # the increments that both were merged from are gone, but for the manifest that lists them
    merged = [f"0/0/{reference.path}" for reference in used.manifest.inputs]
    assert path(versions[5]) == merged[0]
    query.storage.delete_many(merged[1:])
    for version in versions[6:]:
        query.assert_restores(query.open(), version)
    query.storage.delete_many([segment_path(spare)])
    with fails_with("file.damaged", "file.missing") as caught:
        rows_of(query.open().load(versions[-1], have=None, read_only=True))
    assert segment_path(used) in caught.error.message


def far(query: Query) -> Meeting:
    """Its storage, on another machine from here on."""
    backend = Meeting(query.faults)
    query.storage = Storage(query.storage.url, backend=backend)
    return backend


def test_the_manifests_that_lead_around_a_broken_file_are_read_side_by_side() -> None:
    query = Query(compaction__maxChain=900)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 6)
    merged = compacted(query, versions[-1])
    store.adopt(merged)
    versions += query.run_batches(store, versions[-1], 20)
    storage = far(query)
    files = StoreFiles(query.storage, store.identity)
    newest = files.open_commit(versions[-1].attempt or "")
    (broken,) = (detours.place(one) for one in newest.references if one.path == str(merged.name))
    storage.expected = 8
    walk = [*Versions(files).down(newest)]
    assert [one.manifest.attempt for one in walk] == [version.attempt for version in reversed(versions)]
    assert storage.most["read_tail"] >= 8
    around = detours.alternatives(walk, files, frozenset({broken}))
    assert [one.path for one in around] == [path(version).rpartition("/")[2] for version in reversed(versions)]


def test_no_way_leads_beyond_a_version_that_stands_on_nothing() -> None:
    """Its lineage names what it took the place of."""
    query = Query(compaction__maxChain=900)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    # as the shim does, which writes such a version whole
    begun = replace(query.begin(store, versions[-1], load_empty=True), snapshot=True)
    alone = query.commit(store, versions[-1], {b"fresh": (PUT, b"1")}, begun=begun, before={})
    versions += [alone, *query.run_batches(store, alone, 2)]
    with fails_with("state.base", "by increments alone"):
        query.open().replay(versions[2], versions[-1])
    for start in (EMPTY, alone):
        assert rows_of(query.open().replay(start, versions[-1])) == query.states[versions[-1].attempt]
    manifest = query.open().manifest(alone)
    assert manifest is not None
    (section,) = (one for one in manifest.sections if one.name == SNAPSHOT)
    damage(query.storage, path(alone), section.offset + section.length // 2)
    with fails_with("file.damaged", path(alone)):
        rows_of(query.open().load(alone, have=None, read_only=True))


def test_versions_are_replayed_from_manifests_that_are_read_side_by_side() -> None:
    query = Query(compaction__maxChain=900)
    versions = query.run_batches(query.open(), EMPTY, 40)
    storage = far(query)
    store = query.open()
    assert store.manifest(versions[-1]) is not None
    storage.expected = 8
    load = store.replay(versions[2], versions[-1])
    assert storage.most["read_tail"] >= 8
    assert rows_of(load) == query.states[versions[-1].attempt]


def test_a_replay_over_a_version_that_is_not_retained_says_so() -> None:
    query = Query(compaction__maxChain=900, min_versions=2)
    versions = query.run_batches(query.open(), EMPTY, 8)
    query.storage.delete_many([path(version) for version in versions[:5]])
    with fails_with("state.not-retained", path(versions[4])):
        query.open().replay(versions[2], versions[-1])


def test_an_increment_that_broke_after_it_was_merged_is_replaced_by_the_segment_when_the_task_is_tried_again() -> None:
    """The segment holds newer changes too, and those were handed out already when the increment turned out broken."""
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 6)
    compacted(query, versions[-1])
    damage(query.storage, path(versions[4]), 40)
    store = query.open()
    with fails_with("file.damaged"):
        rows_of(store.load(versions[-1], have=None, read_only=True))
    query.assert_restores(store, versions[-1])
    # no segment ends at version 5
    for _ in range(2):
        with fails_with("file.damaged"):
            rows_of(store.load(versions[4], have=None, read_only=True))


def test_a_segment_of_another_lineage_does_not_replace_what_is_broken() -> None:
    """It covers the same versions, and holds other rows."""
    query = Query()
    store = query.open()
    base = query.run_batches(store, EMPTY, 3)[-1]
    lost = query.run_batches(store, query.commit(store, base, {b"lost": (PUT, b"1")}), 2)[-1]
    compacted(query, lost)
    won = query.run_batches(store, query.commit(store, base, {b"won": (PUT, b"1")}), 2)
    damage(query.storage, path(won[-1]), 40)
    with fails_with("file.damaged") as caught:
        rows_of(query.open().load(won[-1], have=None, read_only=True))
    assert path(won[-1]) in caught.error.message


def test_older_segments_with_the_increments_after_them_stand_in_for_a_newer_one() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 6)
    store.adopt(compacted(query, versions[-1]))
    base = query.commit(store, versions[-1], {b"large": (PUT, bytes(range(256)) * 40)})
    versions.append(base)
    versions += query.run_batches(store, base, 12)
    newer = compacted(query, versions[-1])
    store.adopt(newer)
    versions += query.run_batches(store, versions[-1], 1)
    damage(query.storage, segment_path(newer), 40)
    query.storage.delete_many([path(version) for version in versions[:5]])
    query.assert_restores(query.open(), versions[-1])


def test_a_compaction_that_meets_a_broken_file_makes_the_next_version_do_without_it() -> None:
    query, store, versions, used = on_a_damaged_segment(12)
    mended = compacted(query, versions[-1])
    assert (mended.manifest.start, mended.manifest.end) == (0, versions[-1].version)
    store.adopt(mended)
    versions += query.run_batches(store, versions[-1], 1)
    query.storage.delete_many([segment_path(used), *(path(version) for version in versions[:-1])])
    query.assert_restores(query.open(), versions[-1])


def test_what_a_load_went_around_is_written_anew_while_the_rows_are_here(caplog: pytest.LogCaptureFixture) -> None:
    query, _, versions, used = on_a_damaged_segment(2)
    again = query.open()
    query.assert_restores(again, versions[-1])
    assert [str(used.name) in record.getMessage() for record in caplog.records] == [True]
    begun = query.begin(again, versions[-1])
    # also of a store that has nothing to say
    assert begun.snapshot and begun.lost
    versions.append(query.commit(again, versions[-1], {b"k": (PUT, b"v")}, begun=begun))
    assert not query.begin(again, versions[-1]).lost
    query.storage.delete_many([segment_path(used), *(path(version) for version in versions[:-1])])
    query.assert_restores(query.open(), versions[-1])


def test_a_list_that_takes_the_place_of_what_is_broken_is_enough() -> None:
    query, _, versions, _ = on_a_damaged_segment(12)
    again = query.open()
    query.assert_restores(again, versions[-1])
    again.adopt(compacted(query, versions[-1]))
    begun = query.begin(again, versions[-1])
    assert not begun.snapshot and not begun.lost


def test_a_merge_goes_around_a_file_also_where_only_a_load_from_the_beginning_can() -> None:
    """A segment over the broken increment and newer ones leads to the state, but not from where a merge has read."""
    query, store, versions, _ = only_from_the_beginning()
    store.confirm(versions[-1])
    made = store.compact()
    assert made is not None
    store.adopt(made.made)
    versions += query.run_batches(store, versions[-1], 1)
    query.assert_restores(query.open(), versions[-1])


def test_a_load_that_cannot_go_around_says_that_the_next_one_can() -> None:
    query, store, versions, broken = only_from_the_beginning()
    with fails_with("file.damaged") as caught:
        rows_of(store.load(versions[-1], have=None, read_only=True))
    assert broken in caught.error.message and "try once more" in caught.error.message
    assert "older batch" not in caught.error.message
    query.assert_restores(store, versions[-1])


def test_a_store_that_is_opened_directly_goes_around_by_itself() -> None:
    query, _, versions, _ = only_from_the_beginning()
    opened = lamina.open_store(query.storage.url.removesuffix("/state"), storage=query.storage)
    assert opened.version.version == versions[-1].version


def only_from_the_beginning() -> tuple[Query, VersionedStore, list[Version], str]:
    """A store, fresh, of eight versions of which the fifth's increment is damaged, and beside it a segment of the first
    six that none refers to; the name of what is damaged."""
    query = Query()
    writer = query.open()
    versions = query.run_batches(writer, EMPTY, 6)
    compacted(query, versions[-1])
    versions += query.run_batches(writer, versions[-1], 2)
    damage(query.storage, path(versions[4]), 40)
    return query, query.open(), versions, path(versions[4])


@pytest.mark.parametrize("how", ["damaged", "missing"])
@pytest.mark.parametrize("which", [1, 3])
def test_a_broken_file_without_another_way_says_what_to_do(how: str, which: int) -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 4)
    broken = path(versions[which])
    if how == "damaged":
        data = bytes(query.storage.read(broken))
        query.storage.publish(broken, data[:-1])
    else:
        query.storage.delete_many([broken])
    with fails_with(f"file.{how}") as caught:
        rows_of(query.open().load(versions[-1], have=None, read_only=True))
    assert broken in caught.error.message
    assert "restart the query from an older batch" in caught.error.message
    assert "lamina fsck" in caught.error.message


def test_a_caller_that_has_the_rows_needs_no_broken_file_and_its_next_commit_brings_a_snapshot() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    damage(query.storage, path(versions[-1]), 40)
    query.storage.publish(path(versions[-1]), bytes(query.storage.read(path(versions[-1])))[:-1])
    again = query.open()
    begun = query.begin(again, versions[-1], have=True)
    assert begun.snapshot
    mended = query.commit(again, versions[-1], {b"k": (PUT, b"v")}, begun=begun)
    query.assert_restores(query.open(), mended)


def test_a_local_copy_of_damaged_bytes_does_not_outlive_the_damage(tmp_path: Path) -> None:
    inner = Storage(str(tmp_path / "remote"))
    cache = LocalCache(str(tmp_path / "copies"), 64 << 20, is_immutable)
    writer = Query(inner)
    version = writer.run_batches(writer.open(), EMPTY, 1)[-1]
    whole = bytes(inner.read(path(version)))
    damage(inner, path(version))
    writer.storage = Storage(inner.url, backend=CachingBackend(inner._backend, cache, inner.url))
    with fails_with("file.damaged"):
        writer.assert_restores(writer.open(), version)
    inner.publish(path(version), whole)
    writer.assert_restores(writer.open(), version)
    assert cache.stats()["damaged"] == 0


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_good_local_copy_stands_in_for_what_broke_on_the_storage_and_a_compaction_mends_it(
    tmp_path: Path, how: str
) -> None:
    """Who has no copies cannot restore the version, until a commit by who has them does without the broken file."""
    inner = Storage(str(tmp_path / "remote"))
    cache = LocalCache(str(tmp_path / "copies"), 64 << 20, is_immutable)
    query = Query(Storage(inner.url, backend=CachingBackend(inner._backend, cache, inner.url)))
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    elsewhere = Query(inner)
    elsewhere.states = query.states
    broken = path(versions[1])
    break_file(elsewhere, broken, how)
    for version in versions[2:]:
        query.assert_restores(query.open(), version)
    with fails_with(f"file.{how}") as caught:
        elsewhere.assert_restores(elsewhere.open(read_only=True), versions[-1])
    assert broken in caught.error.message
    store.adopt(compacted(query, versions[-1]))
    mended = query.run_batches(store, versions[-1], 1)[0]
    elsewhere.assert_restores(elsewhere.open(read_only=True), mended)
    assert cache.stats()["damaged"] == 0
