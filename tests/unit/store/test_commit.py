"""Begin and commit: what an attempt stands on, what its manifest says, and what a failure leaves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from lamina.format.entries import DELETE, PUT
from lamina.format.manifest import Count
from lamina.store import Accepted, CommitRequest, Version
from lamina.store.versioned_store import VersionedStore
from lamina.testing import Fault, FaultyBackend
from lamina.testing.expect import fails_with
from tests.unit.store.writing import FAMILY, Query, damage, entries, file_name, names

EMPTY = Version(0)
NEVER_WRITTEN = f"L1.0.3.e.-.{'0f' * 16}"


def manifest(store: VersionedStore, version: Version) -> Any:
    found = store.manifest(version)
    assert found is not None
    return found


def test_a_commit_is_one_file_whose_manifest_says_what_the_version_consists_of() -> None:
    query = Query()
    store = query.open()
    first = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    second = query.commit(store, first, {b"b": (PUT, b"2")})
    assert first.attempt is not None
    assert second.attempt is not None
    assert names(query.storage) == {file_name(first.attempt), file_name(second.attempt)}
    found = manifest(query.open(), second)
    assert found.attempt == second.attempt
    assert (found.base.version, found.base.attempt) == (1, first.attempt)
    assert found.lineage == ((first.attempt, 1),)
    own, older = found.references
    assert (own.path, own.kind, own.start, own.end) == (None, "increment", 1, 2)
    assert (older.path, older.start, older.end) == (file_name(first.attempt), 0, 1)
    assert older.size == query.storage.size(f"0/0/{file_name(first.attempt)}")
    assert found.counts[0].rows == 2
    assert found.run.epoch == 1


def test_two_attempts_of_one_version_are_both_relative_to_its_base() -> None:
    query = Query()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    first = query.commit(store, base, {b"a": (DELETE, b"")})
    second = query.commit(store, base, {b"b": (PUT, b"2")})
    for attempt in (first, second):
        after = query.commit(store, attempt, {b"c": (PUT, b"3")})
        query.assert_restores(query.open(), attempt)
        query.assert_restores(query.open(), after)


def test_retained_versions_on_both_sides_of_a_failed_attempt_restore() -> None:
    query = Query()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    query.faults.inject(Fault("publish"))
    with fails_with("storage.failed"):
        query.commit(store, base, {b"a": (PUT, b"failed")})
    after = query.commit(store, base, {b"a": (PUT, b"2")})
    for version in (base, after):
        query.assert_restores(query.open(), version)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_begin_fails_where_the_file_of_the_base_is_lost_names_it_and_says_what_to_do(how: str) -> None:
    query = Query()
    base = query.commit(query.open(), EMPTY, {b"a": (PUT, b"1")})
    assert base.attempt is not None
    name = f"0/0/{file_name(base.attempt)}"
    query.storage.delete_many([name])
    if how == "damaged":
        query.storage.publish(name, [b"not a commit"])
    with fails_with(f"file.{how}") as caught:
        query.begin(query.open(), base, have=False)
    assert file_name(base.attempt) in caught.error.message
    assert "restart the query from an older batch" in caught.error.message


def test_begin_looks_for_the_file_of_the_base_although_its_manifest_is_known() -> None:
    query = Query()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    assert base.attempt is not None
    query.storage.delete_many([f"0/0/{file_name(base.attempt)}"])
    with fails_with("file.missing"):
        query.begin(store, base, have=False)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_lost_base_whose_rows_the_caller_has_is_replaced_by_a_snapshot(how: str) -> None:
    query = Query()
    store = query.open()
    base = query.run_batches(store, EMPTY, 3)[-1]
    assert base.attempt is not None
    path = f"0/0/{file_name(base.attempt)}"
    if how == "missing":
        query.storage.delete_many([path])
    else:
        damage(query.storage, path, query.storage.size(path) - 70)
    other = query.open()
    begun = query.begin(other, base, have=True)
    assert begun.snapshot and begun.lost
    with fails_with("state.base"):
        request = CommitRequest(begun.attempt, 4, base, {}, (FAMILY,), 1, 1)
        other.commit(request, {"increment": [entries([])]})
    before = query.states[base.attempt]
    query.states[begun.attempt] = {**before, b"z": b"1"}
    request = CommitRequest(begun.attempt, 4, base, {}, (FAMILY,), 1, 1)
    rows = entries((0, PUT, key, value) for key, value in query.states[begun.attempt].items())
    other.commit(request, {"increment": [entries([(0, PUT, b"z", b"1")])], "snapshot": [rows]})
    version = Version(4, begun.attempt)
    query.assert_restores(query.open(), version)
    found = manifest(query.open(), version)
    assert found.base is None
    # retention still follows the lineage behind it
    assert found.lineage[0] == (base.attempt, 3)


def test_a_forced_snapshot_has_no_base_and_keeps_the_lineage() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 3)
    forced = query.commit(store, versions[-1], {b"x": (PUT, b"y")}, force_snapshot=True)
    found = manifest(query.open(), forced)
    assert found.base is None
    assert [reference.kind for reference in found.references] == ["snapshot"]
    assert [version for _, version in found.lineage] == [3, 2, 1]
    query.assert_restores(query.open(), forced)
    query.assert_restores(query.open(), query.commit(store, forced, {b"x": (DELETE, b"")}))


def test_load_empty_builds_a_version_from_nothing() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 3)
    begun = query.begin(store, versions[-1], load_empty=True)
    assert begun.base_attempt is None
    assert not begun.snapshot and not begun.lost
    emptied = query.commit(store, versions[-1], {b"x": (PUT, b"y")}, begun=begun, load_empty=True)
    found = manifest(query.open(), emptied)
    assert found.base is None
    assert [(reference.start, reference.end) for reference in found.references] == [(0, 4)]
    assert query.states[emptied.attempt] == {b"x": b"y"}
    query.assert_restores(query.open(), emptied)


def test_full_compaction_asks_every_interval_for_a_snapshot() -> None:
    query = Query(compaction__mode="full", compaction__fullInterval=4)
    store = query.open()
    base = EMPTY
    asked = []
    for number in range(1, 13):
        begun = query.begin(store, base)
        asked.append(begun.snapshot)
        base = query.commit(store, base, {b"k": (PUT, b"%d" % number)}, begun=begun)
        query.assert_restores(query.open(), base)
    assert [number for number, snapshot in enumerate(asked, start=1) if snapshot] == [4, 8, 12]
    assert manifest(store, base).base is not None


def test_full_compaction_asks_the_first_version_that_changes_anything_after_a_missed_multiple() -> None:
    query = Query(compaction__mode="full", compaction__fullInterval=4)
    store = query.open()
    base = EMPTY
    asked = []
    for number in range(1, 25):
        begun = query.begin(store, base)
        if number in (4, 8, 16, 17, 18, 20):
            # nothing changed: the version has the id of its base, whatever `begin` asked for
            base = Version(number, base.attempt)
            continue
        if begun.snapshot:
            asked.append(number)
        base = query.commit(store, base, {b"k": (PUT, b"%d" % number)}, begun=begun)
        query.assert_restores(query.open(), base)
        assert len(manifest(store, base).references) <= 4
    assert asked == [5, 9, 12, 19, 21, 24]


def test_all_attempts_of_a_version_after_a_missed_multiple_are_asked_for_a_snapshot() -> None:
    query = Query(compaction__mode="full", compaction__fullInterval=4)
    store = query.open()
    third = query.run_batches(store, EMPTY, 3)[-1]
    fourth = Version(4, third.attempt)
    for _ in range(2):
        begun = query.begin(store, fourth)
        assert begun.snapshot
        query.assert_restores(query.open(), query.commit(store, fourth, {b"k": (PUT, b"5")}, begun=begun))


def test_a_chain_that_passes_its_limit_asks_for_a_snapshot() -> None:
    query = Query(compaction__maxChain=5)
    store = query.open()
    base = EMPTY
    lengths = []
    for _ in range(14):
        base = query.run_batches(store, base, 1)[0]
        lengths.append(len(manifest(store, base).references))
        query.assert_restores(query.open(), base)
    assert lengths == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4]


def test_a_finished_segment_spares_the_snapshot_of_a_long_chain() -> None:
    query = Query(compaction__maxChain=5)
    store = query.open()
    base = query.run_batches(store, EMPTY, 5)[-1]
    store.confirm(base)
    compacted = store.compact()
    assert compacted is not None
    store.adopt(compacted.made)
    assert not query.begin(store, base).snapshot


def test_an_unchanged_version_is_reported_by_the_id_of_its_base_and_opens() -> None:
    query = Query()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    skipped = Version(4, base.attempt)
    query.assert_restores(query.open(), skipped)
    after = query.commit(store, skipped, {b"b": (PUT, b"2")})
    found = manifest(query.open(), after)
    assert found.version == 5
    assert (found.base.version, found.base.attempt) == (1, base.attempt)
    assert [(reference.start, reference.end) for reference in found.references] == [(1, 5), (0, 1)]
    query.assert_restores(query.open(), after)


def test_an_id_that_says_that_nothing_was_ever_written_opens_an_empty_store_and_reads_no_file() -> None:
    query = Query()
    store = query.open()
    assert query.begin(store, EMPTY).base_attempt is None
    skipped = Version(3, NEVER_WRITTEN)
    query.faults.calls.clear()
    load = query.open(read_only=True).load(skipped, have=None, read_only=True)
    assert list(load.batches) == []
    assert (load.version, load.rows) == (0, 0)
    assert not [path for _, path in query.faults.calls if not path.startswith("_lamina")]
    after = query.commit(store, skipped, {b"a": (PUT, b"1")})
    assert manifest(store, after).base is None
    assert query.begin(store, skipped).base_attempt == NEVER_WRITTEN
    query.assert_restores(query.open(), after)


def test_format_2_lists_no_directory_to_open_begin_and_commit() -> None:
    query = Query()
    store = query.open()
    base = query.run_batches(store, EMPTY, 2)[-1]
    query.faults.calls.clear()
    other = query.open(read_only=True)
    list(other.load(base, have=None, read_only=True).batches)
    query.run_batches(store, base, 1)
    assert [call for call in query.faults.calls if call[0] == "list"] == []


def test_a_commit_that_was_not_begun_is_refused() -> None:
    query = Query()
    store = query.open()
    begun = query.begin(query.open(), EMPTY)
    request = CommitRequest(begun.attempt, 1, None, {}, (FAMILY,), 1, 1)
    with fails_with("store.state"):
        store.commit(request, {"increment": [entries([])]})


def test_a_commit_on_another_base_than_it_was_begun_on_is_refused() -> None:
    query = Query()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    other = query.commit(store, EMPTY, {b"a": (PUT, b"2")})
    begun = query.begin(store, base)
    request = CommitRequest(begun.attempt, 2, other, {}, (FAMILY,), 1, 1)
    with fails_with("state.base"):
        store.commit(request, {"increment": [entries([])]})


def test_an_attempt_is_committed_once() -> None:
    query = Query()
    store = query.open()
    begun = query.begin(store, EMPTY)
    query.commit(store, EMPTY, {b"a": (PUT, b"1")}, begun=begun)
    with fails_with("store.state"):
        query.commit(store, EMPTY, {b"a": (PUT, b"2")}, begun=begun)


def test_other_rows_than_announced_publish_nothing() -> None:
    query = Query()
    store = query.open()
    with fails_with("engine.protocol"):
        query.commit(store, EMPTY, {b"a": (PUT, b"1")}, rows={"increment": 2})
    assert names(query.storage) == set()


def test_entries_that_stop_half_way_publish_nothing_and_the_cause_is_not_hidden() -> None:
    query = Query()
    store = query.open()
    begun = query.begin(store, EMPTY)
    request = CommitRequest(begun.attempt, 1, EMPTY, {}, (FAMILY,), 1, 1)

    def cut_off() -> Iterator[pa.RecordBatch]:
        yield entries([(0, PUT, b"a", b"1")])
        raise ConnectionResetError("the shim went away")

    with pytest.raises(ConnectionResetError):
        store.commit(request, {"increment": cut_off()})
    assert names(query.storage) == set()


def accepted(query: Query, store: VersionedStore, most_held: int, value: bytes = b"1") -> Accepted:
    """A first version that was received."""
    begun = query.begin(store, EMPTY)
    request = CommitRequest(begun.attempt, 1, EMPTY, {0: Count(1, 2)}, (FAMILY,), 1, 1)
    query.states[begun.attempt] = {b"a": value}
    return store.accept(request, {"increment": [entries([(0, PUT, b"a", value)])]}, most_held=most_held)


def test_a_commit_that_was_accepted_has_its_final_id_and_waits_until_it_is_published() -> None:
    query = Query()
    store = query.open()
    waiting = accepted(query, store, most_held=1 << 20)
    assert names(query.storage) == set()
    committed = waiting.publish()
    assert committed.bytes == waiting.held_bytes
    assert names(query.storage) == {committed.file}
    query.assert_restores(query.open(), Version(1, waiting.attempt))


def test_a_commit_that_is_too_large_to_wait_is_published_while_it_arrives() -> None:
    query = Query()
    committed = accepted(query, query.open(), most_held=1000, value=os.urandom(5000))
    assert names(query.storage) == {committed.publish().file}
    assert committed.held_bytes == 0
    query.assert_restores(query.open(), Version(1, committed.attempt))


def test_what_a_commit_that_waits_fails_for_is_said_when_it_is_published() -> None:
    query = Query()
    waiting = accepted(query, query.open(), most_held=1 << 20)
    query.faults.inject(Fault("publish", "0/0/1_"))
    with fails_with("storage.failed"):
        waiting.publish()
    assert names(query.storage) == set()


def test_a_commit_whose_answer_was_lost_is_looked_up_and_counts() -> None:
    query = Query()
    store = query.open()
    query.faults.inject(Fault("publish", "0/0/1_", after=True))
    version = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    query.assert_restores(query.open(), version)


def test_a_commit_that_was_sent_and_did_not_arrive_is_not_assumed() -> None:
    class Losing(FaultyBackend):
        def publish(self, path: str, chunks: Iterable[Any]) -> int:
            for _ in chunks:
                pass
            raise OSError("the connection broke at the last byte")

    query = Query()
    store = query.open()
    begun = query.begin(store, EMPTY)
    backend, query.storage._backend = query.storage._backend, Losing(query.storage._backend)
    with fails_with("storage.failed"):
        query.commit(store, EMPTY, {b"a": (PUT, b"1")}, begun=begun)
    query.storage._backend = backend
    assert names(query.storage) == set()
    query.assert_restores(query.open(), query.commit(store, EMPTY, {b"a": (PUT, b"1")}, begun=begun))


def test_a_commit_that_failed_is_not_assumed() -> None:
    query = Query()
    store = query.open()
    begun = query.begin(store, EMPTY)
    query.faults.inject(Fault("publish", "0/0/1_"))
    with fails_with("storage.failed"):
        query.commit(store, EMPTY, {b"a": (PUT, b"1")}, begun=begun)
    # the same attempt may be tried again: nothing of it was published
    version = query.commit(store, EMPTY, {b"a": (PUT, b"1")}, begun=begun)
    query.assert_restores(query.open(), version)


def test_a_store_opened_for_reading_writes_nothing_and_refuses_to_begin() -> None:
    query = Query()
    version = query.run_batches(query.open(), EMPTY, 3)[-1]
    query.faults.calls.clear()
    reader = query.open(read_only=True)
    list(reader.load(version, have=None, read_only=True).batches)
    list(reader.feed(1, version, None).batches)
    reader.versions()
    reader.lineage(version)
    reader.collect(version, dry_run=True)
    for refused in (lambda: query.begin(reader, version), lambda: reader.collect(version, dry_run=False)):
        with fails_with("store.state"):
            refused()
    assert not {operation for operation, _ in query.faults.calls} & {"publish", "publish_if_absent", "delete_many"}


def test_a_reader_of_a_checkpoint_in_which_nothing_was_written_makes_no_file() -> None:
    query = Query()
    reader = query.open(read_only=True)
    assert list(reader.load(EMPTY, have=None, read_only=True).batches) == []
    assert query.storage.list("_lamina") == []


def test_stores_of_one_checkpoint_do_not_see_each_other() -> None:
    query = Query()
    first, second = query.open(0), query.open(1)
    query.commit(first, EMPTY, {b"a": (PUT, b"1")})
    assert second.versions() == []
    assert len(first.versions()) == 1
