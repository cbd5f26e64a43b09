"""Loads: from empty, on top of what the caller has, around damaged files, and replays."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lamina.format.entries import PUT
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.restore import stream
from lamina.testing import Effect, Fault, FaultyBackend
from lamina.testing.expect import fails_with
from tests.unit.store.writing import Query, damage, file_name, names, rows_of, triples

EMPTY = Version(0)


def path(version: Version) -> str:
    assert version.attempt is not None
    return f"0/0/{file_name(version.attempt)}"


def test_every_version_of_a_chain_restores() -> None:
    query = Query()
    store = query.open()
    for version in query.run_batches(store, EMPTY, 25):
        query.assert_restores(query.open(), version)


def test_a_load_says_how_much_it_brings() -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 4)
    load = query.open().load(versions[-1], have=None, read_only=True)
    assert load.start == "empty"
    assert load.version == 4
    assert load.rows == len(query.states[versions[-1].attempt])
    assert load.files == 4
    assert load.bytes_read > 0
    assert load.next_column_family == 1
    assert [family.name for family in load.column_families] == ["default"]


@pytest.mark.parametrize(("size", "threads"), [(8, False), (1 << 18, True)])
def test_small_local_files_are_read_and_decoded_without_threads(tmp_path: Path, size: int, threads: bool) -> None:
    query = Query(Storage(str(tmp_path)))
    store = query.open()
    newest = EMPTY
    for _ in range(6):
        newest = query.commit(store, newest, {b"a": (PUT, os.urandom(size))})
    seen: set[str] = set()
    for _ in query.open().load(newest, have=None, read_only=True).batches:
        seen.update(thread.name for thread in threading.enumerate() if thread.name.startswith("lamina-restore"))
    assert {name.split("_")[0] for name in seen} == (
        {"lamina-restore-fetch", "lamina-restore-decode"} if threads else set()
    )


@pytest.mark.parametrize(("remote", "files", "size"), [(False, 4, 1 << 18), (True, 24, 8)])
def test_a_version_comes_newest_first_and_its_files_are_read_at_the_same_time(
    remote: bool, files: int, size: int
) -> None:
    together = threading.Barrier(files)
    inner = Storage("memory://store-tests/together")
    backend = FaultyBackend(inner._backend, wait=lambda _ms: together.wait(timeout=30))
    backend.remote = remote
    query = Query(Storage(inner.url, backend=backend))
    store = query.open()
    newest = EMPTY
    values = [os.urandom(size) for _ in range(files)]
    for value in values:
        newest = query.commit(store, newest, {b"a": (PUT, value)})
    load = query.open().load(newest, have=None, read_only=True)
    waits = Fault("read", ".lam", effect=Effect.DELAY, times=files)  # each until all of them have begun
    backend.inject(waits)
    assert [value for _, _, value in triples(load.batches)] == values[::-1]
    assert waits.times == 0


@pytest.mark.parametrize("distance", [0, 1, 2, 5])
def test_who_has_an_older_version_gets_only_what_came_after_it(distance: int) -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 8)
    have, wanted = versions[-1 - distance], versions[-1]
    load = query.open().load(wanted, have=have, read_only=True)
    assert (load.start, load.files) == ("have", distance)
    assert rows_of(load, query.states[have.attempt]) == query.states[wanted.attempt]


def test_what_came_after_it_is_verified_at_the_same_time_where_a_read_is_a_round_trip() -> None:
    distance = 6
    together = threading.Barrier(distance)
    inner = Storage("memory://store-tests/verified-together")
    backend = FaultyBackend(inner._backend, wait=lambda _ms: together.wait(timeout=30))
    backend.remote = True
    query = Query(Storage(inner.url, backend=backend))
    versions = query.run_batches(query.open(), EMPTY, 8)
    have, wanted = versions[-1 - distance], versions[-1]
    reader = query.open()
    # what its manifests say is known
    assert reader.load(wanted, have=have, read_only=True).files == distance
    waits = Fault("read", ".lam", effect=Effect.DELAY, times=distance)
    backend.inject(waits)
    load = reader.load(wanted, have=have, read_only=True)
    assert waits.times == 0
    assert rows_of(load, query.states[have.attempt]) == query.states[wanted.attempt]


def test_increments_are_used_where_the_references_were_compacted_over_the_version_that_the_caller_has() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    store.confirm(versions[-1])
    compacted = store.compact()
    assert compacted is not None
    store.adopt(compacted.made)
    wanted = query.run_batches(store, versions[-1], 1)[-1]
    manifest = store.manifest(wanted)
    assert manifest is not None
    assert [(reference.start, reference.end) for reference in manifest.references] == [(4, 5), (0, 4)]
    load = query.open().load(wanted, have=versions[1], read_only=True)
    assert load.start == "have"
    assert rows_of(load, query.states[versions[1].attempt]) == query.states[wanted.attempt]


def test_what_a_caller_has_of_another_lineage_is_of_no_use() -> None:
    query = Query()
    store = query.open()
    base = query.run_batches(store, EMPTY, 2)[-1]
    sibling = query.commit(store, base, {b"x": (PUT, b"sibling")})
    wanted = query.commit(store, query.commit(store, base, {b"y": (PUT, b"1")}), {b"z": (PUT, b"2")})
    load = query.open().load(wanted, have=sibling, read_only=True)
    assert load.start == "empty"
    assert rows_of(load) == query.states[wanted.attempt]


def test_a_damaged_increment_on_the_way_from_what_the_caller_has_leads_to_a_load_from_empty() -> None:
    query = Query(compaction__mode="full", compaction__fullInterval=4)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    # the increment is the first section; the snapshot of the same file is whole
    damage(query.storage, path(versions[-1]), 40)
    load = query.open().load(versions[-1], have=versions[-2], read_only=True)
    assert load.start == "empty"
    assert rows_of(load) == query.states[versions[-1].attempt]


def test_a_damaged_file_without_another_way_fails_and_is_named() -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 4)
    damage(query.storage, path(versions[1]), 40)
    for version in versions[1:]:
        with fails_with("file.damaged") as caught:
            rows_of(query.open().load(version, have=None, read_only=True))
        assert path(versions[1]) in caught.error.message
    query.assert_restores(query.open(), versions[0])


def test_a_missing_file_of_a_chain_fails_and_is_named() -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 4)
    query.storage.delete_many([path(versions[1])])
    with fails_with("file.missing") as caught:
        rows_of(query.open().load(versions[-1], have=None, read_only=True))
    assert path(versions[1]) in caught.error.message


def compacted_query() -> tuple[Query, list[Version], str]:
    """Versions 1 … 8, the last of which refers to a segment of versions 1 … 6; its name."""
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 6)
    store.confirm(versions[-1])
    compacted = store.compact()
    assert compacted is not None
    store.adopt(compacted.made)
    versions += query.run_batches(store, versions[-1], 2)
    manifest = store.manifest(versions[-1])
    assert manifest is not None
    assert [reference.kind for reference in manifest.references] == ["increment", "increment", "run"]
    return query, versions, str(compacted.made.name)


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_broken_segment_is_worked_around_with_the_increments_it_was_merged_from(how: str) -> None:
    query, versions, segment = compacted_query()
    if how == "damaged":
        damage(query.storage, f"0/0/{segment}", 40)
    else:
        query.storage.delete_many([f"0/0/{segment}"])
    for version in versions:
        query.assert_restores(query.open(), version)


def test_a_broken_segment_without_its_increments_fails_by_its_own_name() -> None:
    query, versions, segment = compacted_query()
    damage(query.storage, f"0/0/{segment}", 40)
    query.storage.delete_many([path(versions[2])])
    with fails_with("file.damaged") as caught:
        rows_of(query.open().load(versions[-1], have=None, read_only=True))
    assert segment in caught.error.message


def test_a_broken_snapshot_is_worked_around_with_the_chain_below_it() -> None:
    query = Query(compaction__mode="full", compaction__fullInterval=5)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 7)
    found = store.manifest(versions[4])
    assert found is not None
    snapshot = found.section("snapshot")
    assert snapshot is not None
    damage(query.storage, path(versions[4]), snapshot.offset + snapshot.length // 2)
    # version 5 has its increment and the chain of 4; versions 6 and 7 stand on it
    for version in versions:
        query.assert_restores(query.open(), version)


def test_no_byte_of_a_chain_can_be_flipped_without_being_noticed() -> None:
    """Every byte of every file, seen by a restore: right rows or an error that names the file, never wrong rows."""
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 2, keys=2)
    for version in versions:
        whole = bytes(query.storage.read(path(version)))
        for position in range(len(whole)):
            changed = bytearray(whole)
            changed[position] ^= 0x10
            query.storage.publish(path(version), bytes(changed))
            with fails_with("file.damaged", "file.version") as caught:
                rows_of(query.open().load(versions[-1], have=None, read_only=True))
            assert path(version) in caught.error.message
        query.storage.publish(path(version), whole)
    query.assert_restores(query.open(), versions[-1])


def test_a_file_of_another_store_under_the_right_name_is_refused() -> None:
    query = Query()
    mine = query.run_batches(query.open(0), EMPTY, 1)[0]
    other = query.run_batches(query.open(1), EMPTY, 1)[0]
    assert other.attempt is not None
    query.storage.publish(path(mine), bytes(query.storage.read(f"0/1/{file_name(other.attempt)}")))
    with fails_with("file.identity") as caught:
        query.open().load(mine, have=None, read_only=True)
    assert path(mine) in caught.error.message


def test_a_file_of_another_store_that_is_referred_to_is_refused_although_its_entries_are_the_same() -> None:
    query = Query()
    # two stores whose files have one length, which follows from how well their checksums compress
    files: dict[int, tuple[int, Version, str]] = {}
    for partition in range(100):
        version = query.commit(query.open(partition % 10), EMPTY, {b"a": (PUT, b"%d" % (partition // 10))})
        assert version.attempt is not None
        file = f"0/{partition % 10}/{file_name(version.attempt)}"
        length = len(query.storage.read(file))
        if length in files and files[length][0] != partition % 10:
            break
        files[length] = partition % 10, version, file
    own, first, named = files[length]
    store = query.open(own)
    store.confirm(first)
    second = query.commit(store, first, {b"b": (PUT, b"2")})
    query.storage.publish(named, bytes(query.storage.read(file)))
    with fails_with("file.identity") as caught:
        rows_of(query.open(own).load(second, have=None, read_only=True))
    assert named in caught.error.message


def test_two_files_of_one_store_that_were_swapped_are_refused() -> None:
    query = Query()
    store = query.open()
    first, second, third = query.run_batches(store, EMPTY, 3)
    one, two = bytes(query.storage.read(path(first))), bytes(query.storage.read(path(second)))
    query.storage.publish(path(first), two)
    query.storage.publish(path(second), one)
    for version in (first, second, third):
        with fails_with("file.identity", "file.damaged"):
            rows_of(query.open().load(version, have=None, read_only=True))


def test_a_checkpoint_whose_uuid_changed_does_not_accept_files_of_the_old_one() -> None:
    query = Query()
    version = query.run_batches(query.open(), EMPTY, 1)[0]
    query.storage.delete_many(
        ["_lamina/checkpoint", *(f"_lamina/runs/{one.name}" for one in query.storage.list("_lamina/runs"))]
    )
    with fails_with("file.identity"):
        query.open().load(version, have=None, read_only=True)


def test_a_version_that_was_collected_is_not_retained_and_one_that_never_was_is_missing() -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 3)
    query.storage.delete_many([path(versions[0])])
    with fails_with("state.not-retained") as caught:
        query.open().load(versions[0], have=None, read_only=True)
    assert path(versions[0]) in caught.error.message
    never = Version(3, "L1.3.1.o.-." + "f" * 32)
    with fails_with("file.missing"):
        query.open().load(never, have=None, read_only=True)


@pytest.mark.parametrize("attempt", ["L9.1.1.o.-." + "0" * 32, "L1.1.1.g.group." + "0" * 32, "rocksdb-id"])
def test_an_attempt_id_that_this_release_cannot_open_is_named(attempt: str) -> None:
    with fails_with("attempt-id.unknown") as caught:
        Query().open().load(Version(1, attempt), have=None, read_only=True)
    assert attempt in caught.error.message


def test_an_attempt_of_a_newer_version_than_asked_for_is_refused() -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 3)
    with fails_with("state.base"):
        query.open().load(Version(2, versions[-1].attempt), have=None, read_only=True)


def test_only_a_streaming_load_confirms() -> None:
    query = Query()
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    store = query.open()
    list(store.load(version, have=None, read_only=True).batches)
    assert store.compact() is None
    list(store.load(version, have=None, read_only=False).batches)
    assert store.compact() is not None


def test_a_replay_goes_from_a_version_by_increments() -> None:
    query, versions, _ = compacted_query()
    for start in (0, 2, 5, 6):
        for end in (6, 7, 8):
            load = query.open().replay(versions[start - 1] if start else EMPTY, versions[end - 1])
            assert rows_of(load) == query.states[versions[end - 1].attempt]
            assert load.start == "empty"


def test_a_replay_from_a_version_of_another_lineage_is_refused() -> None:
    query = Query()
    store = query.open()
    base = query.run_batches(store, EMPTY, 2)[-1]
    sibling = query.commit(store, base, {b"x": (PUT, b"sibling")})
    wanted = query.run_batches(store, base, 2)[-1]
    with fails_with("state.base"):
        query.open().replay(sibling, wanted)


def test_an_abandoned_load_reads_no_further(tmp_path: Path) -> None:
    backend = FaultyBackend(Storage(str(tmp_path))._backend)
    query = Query(Storage(str(tmp_path), backend=backend))
    version = query.run_batches(query.open(), EMPTY, 40)[-1]
    load = query.open().load(version, have=None, read_only=True)
    backend.calls.clear()
    next(load.batches)
    load.batches.close()  # type: ignore[attr-defined]
    assert len({called for operation, called in backend.calls if operation == "read"}) < 20


def test_a_storage_that_fails_while_loading_fails_the_load_and_not_the_file() -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 3)
    store = query.open()
    load = store.load(versions[-1], have=None, read_only=True)
    query.faults.inject(Fault("read", path(versions[0])))
    with fails_with("storage.failed"):
        rows_of(load)
    query.assert_restores(store, versions[-1])


def test_versions_are_listed_with_their_files() -> None:
    query = Query()
    versions = query.run_batches(query.open(), EMPTY, 3)
    infos = query.open(read_only=True).versions()
    assert [(info.version, info.attempt) for info in infos] == [(known.version, known.attempt) for known in versions]
    assert {file_name(info.attempt) for info in infos} == names(query.storage)
    assert all(info.size == query.storage.size(f"0/0/{file_name(info.attempt)}") for info in infos)


class AddedMeanwhile(frozenset[stream.Place]):
    """Broken places; while they are added to those that are known, another load adds its own, if it is let."""

    other: threading.Thread

    def __ror__(self, known: frozenset[stream.Place]) -> frozenset[stream.Place]:  # type: ignore[override]
        self.other.start()
        self.other.join(0.1)
        return known.union(self)


def test_what_concurrent_loads_find_broken_is_remembered_of_all_of_them() -> None:
    loader = Query().open()._loader
    ours = AddedMeanwhile({(None, "file", 1)})
    ours.other = threading.Thread(target=loader._remember_broken, args=(frozenset({(None, "file", 2)}),))
    loader._remember_broken(ours)
    ours.other.join()
    assert loader._found.places == {(None, "file", 1), (None, "file", 2)}
