"""Commits inside log objects: found by their ids alone, read as files of their own, and never taken for another's."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina.format import log_object, paths
from lamina.format.attempt_id import GROUP, AttemptId
from lamina.format.container import verify
from lamina.format.entries import PUT
from lamina.format.log_object import PartId
from lamina.format.manifest import INCREMENT, RUN, CommitManifest
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.files import log_indexes, log_parts
from lamina.store.files.log_indexes import Found, LogIndexes
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.log_places import LogPlace
from lamina.store.files.shared_looks import HOLDS_S
from lamina.store.materialization.materializer import spread_over
from lamina.testing import Effect, Fault, FaultyBackend
from lamina.testing.damage import mutants
from lamina.testing.expect import fails_with
from tests.unit.store.grouped import Grouped, materialized, parts
from tests.unit.store.writing import Change, Query, Rows, rows_of


def test_commits_of_many_stores_are_one_object_and_restored_by_their_ids_alone(grouped: Grouped) -> None:
    stores, versions = grouped.begun(3)
    for number in range(4):
        versions = grouped.batch(stores, versions, number)
    assert len(grouped.objects()) == 4
    assert all(AttemptId.parse(version.attempt or "").kind == GROUP for version in versions)
    for partition, version in enumerate(versions):
        # by an engine that has seen none of it
        other = Grouped(grouped.query).open(partition)
        assert rows_of(other.load(version, have=None, read_only=True)) == grouped.query.states[version.attempt]
        # no other file of the store's own was written
        assert len(grouped.query.storage.list(f"0/{partition}")) == 1


def test_a_restore_reads_an_index_once_and_its_own_parts(grouped: Grouped) -> None:
    stores, versions = grouped.begun(3)
    versions = grouped.batch(stores, versions, 0)
    again = Grouped(grouped.query)
    calls = grouped.query.faults.calls
    before = len(calls)
    for partition, version in enumerate(versions):
        list(again.open(partition).load(version, have=None, read_only=True).batches)
    read = [operation for operation, path in calls[before:] if path.startswith(paths.LOG)]
    assert read.count("read_tail") == 1


def test_who_has_written_an_object_does_not_read_its_index(grouped: Grouped) -> None:
    stores, versions = grouped.begun(3)
    for number in range(3):
        versions = grouped.batch(stores, versions, number)
    asked = [operation for operation, path in grouped.query.faults.calls if path.startswith(f"{paths.LOG}/")]
    # whether what a commit stands on is there is asked all the same
    assert "size" in asked
    assert not [operation for operation in asked if operation.startswith("read")]


def test_all_who_want_an_index_at_once_wait_for_one_read(grouped: Grouped) -> None:
    stores, versions = grouped.begun(6)
    versions = grouped.batch(stores, versions, 0)
    (log,) = {PartId.of(AttemptId.parse(version.attempt or "")).log for version in versions}
    logs = LogObjects(grouped.query.storage, grouped.query.clock)
    begun, goes_on = threading.Event(), threading.Event()
    read = logs._read_at
    reads = []

    def slow(place: LogPlace, log: str) -> Found:
        reads.append(log)
        begun.set()
        goes_on.wait(60)
        if len(reads) == 1:
            raise LaminaError.from_kind("storage.failed", "slow down")
        return read(place, log)

    logs._read_at = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(logs.find, log) for _ in versions]
        begun.wait(60)
        goes_on.set()
        errors = [one.exception(60) for one in asked]
    # one that failed says little of the next: each of the others has asked for itself, or waited for one who did
    assert [error.kind for error in errors if isinstance(error, LaminaError)] == ["storage.failed"]
    assert sum(error is None for error in errors) == len(versions) - 1
    assert len(reads) <= 1 + len(versions)
    reads.clear()
    logs.forget(log)
    goes_on.clear()
    begun.clear()
    reads.append("before")
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(logs.find, log) for _ in versions]
        begun.wait(60)
        goes_on.set()
        assert {one.result(60).index.log for one in asked} == {log}
    assert reads == ["before", log]
    assert not logs._reading


def test_a_commit_whose_group_is_sealed_waits_for_no_others(grouped: Grouped) -> None:
    (store, other), (first, second) = grouped.begun(2)
    accepted = grouped.accept(store, first, {b"k": (PUT, b"v")})
    assert not grouped.publishing
    accepted.seal()
    (publish,) = grouped.publishing
    publish()
    assert accepted.publish().file
    # nothing is done to the next group by who asks late
    grouped.accept(other, second, {b"k": (PUT, b"v")})
    accepted.seal()
    accepted.hurry()
    assert grouped.publishing == [publish]
    assert grouped.groups.stats() == {"open": 1, "sealed": 0}
    assert len(grouped.objects()) == 1


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch) -> LogIndexes:
    """What a process keeps that has kept none yet."""
    mine = LogIndexes()
    monkeypatch.setattr(log_parts, "LOG_INDEXES", mine)
    return mine


def kept_of(indexes: LogIndexes) -> list[str]:
    """The objects whose indexes are kept, the one that was used last at the end."""
    assert indexes._parts == sum(len(found.index.parts) for found in indexes._found.values())
    return [log for _, log in indexes._found]


def test_indexes_of_many_parts_are_not_all_kept(
    grouped: Grouped, indexes: LogIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_indexes, "_PARTS_KEPT", 7)
    stores, versions = grouped.begun(3)
    for number in range(5):
        versions = grouped.batch(stores, versions, number)
    logs = LogObjects(grouped.query.storage, grouped.query.clock)
    for name in grouped.objects():
        logs.find(name.removesuffix(".log"))
    assert [len(found.index.parts) for found in indexes._found.values()] == [3, 3]
    assert len(kept_of(indexes)) == 2
    logs.forget(kept_of(indexes)[0])
    assert len(kept_of(indexes)) == 1
    monkeypatch.setattr(log_indexes, "_PARTS_KEPT", 1)
    logs.find(grouped.objects()[0].removesuffix(".log"))
    assert len(kept_of(indexes)) == 1


def test_all_checkpoints_of_a_process_have_one_bound_and_what_was_used_last_stays(
    grouped: Grouped, indexes: LogIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_indexes, "_KEPT", 3)
    stores, versions = grouped.begun(1)
    for number in range(3):
        versions = grouped.batch(stores, versions, number)
    first, second, third = (name.removesuffix(".log") for name in grouped.objects())
    one, other = (LogObjects(grouped.query.storage, grouped.query.clock) for _ in range(2))
    for logs, log in ((one, first), (one, second), (other, first), (one, first), (other, third)):
        logs.find(log)
    assert kept_of(indexes) == [first, first, third]


def test_what_is_not_there_any_more_keeps_no_index(grouped: Grouped, indexes: LogIndexes) -> None:
    stores, versions = grouped.begun(1)
    for number in range(2):
        versions = grouped.batch(stores, versions, number)
    logs = LogObjects(grouped.query.storage, grouped.query.clock)
    logs.parts_of(stores[0].identity)
    first, second = (name.removesuffix(".log") for name in grouped.objects())
    assert sorted(kept_of(indexes)) == sorted([first, second])
    grouped.query.storage.delete_many([logs.places.own.path(first)])
    grouped.query.clock.advance(round(1000 * log_parts._LOOK_S))
    logs.parts_of(stores[0].identity)
    assert kept_of(indexes) == [second]
    # nor does a checkpoint that nobody knows any more
    del logs
    gc.collect()
    LogObjects(grouped.query.storage, grouped.query.clock).find(second)
    assert len(kept_of(indexes)) == 1


def test_what_a_look_has_read_is_not_read_again_until_somebody_doubts_it(
    grouped: Grouped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_indexes, "_KEPT", 1)
    stores, versions = grouped.begun(2)
    for number in range(6):
        versions = grouped.batch(stores, versions, number)
    storage = Storage(grouped.query.storage.url, backend=FaultyBackend(grouped.query.storage._backend))
    logs = LogObjects(storage, grouped.query.clock)
    logs.parts_of(stores[0].identity)
    ids = [name.removesuffix(".log") for name in grouped.objects()]
    assert len(ids) == 6
    calls = storage._backend.calls  # type: ignore[attr-defined]

    def read() -> int:
        found = sum(operation.startswith("read") for operation, _ in calls)
        calls.clear()
        return found

    assert read() == 6
    assert {logs.find(id).index.log for id in ids} == set(ids)
    assert read() == 0
    logs.forget(ids[0])
    assert logs.find(ids[0]).index.log == ids[0]
    assert read() == 1


class HeldListing:
    """Lists the places of log objects in their stead: hangs until `released`, and takes a while then."""

    def __init__(self, grouped: Grouped, logs: LogObjects, takes_ms: int = 0) -> None:
        self.begun: list[float] = []
        """When each listing began."""
        self.hangs, self.released = threading.Event(), threading.Event()
        self._clock, self._list, self._takes_ms = grouped.query.clock, logs.places.list, takes_ms
        logs.places.list = self  # type: ignore[method-assign, assignment]

    def __call__(self) -> Any:
        self.begun.append(self._clock.monotonic())
        self.hangs.set()
        self.released.wait(60)
        self._clock.advance(self._takes_ms)
        return self._list()


def test_who_waits_for_a_look_that_hangs_shows_no_life_either(
    grouped: Grouped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_parts, "_WAIT_S", 0.01)
    stores, versions = grouped.begun(2)
    grouped.batch(stores, versions, 0)
    logs = LogObjects(grouped.query.storage, grouped.query.clock)
    listing = HeldListing(grouped, logs)
    signs: list[int] = []
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(logs.parts_of, stores[0].identity)
        listing.hangs.wait(60)
        second = threads.submit(logs.parts_of, stores[1].identity, progressed=lambda: signs.append(1))
        # a few hundred waits
        second_ended = wait([second], 3).done
        assert not second_ended and len(signs) <= 1
        # whoever looks goes on: so do they
        logs._went_on += 1
        wait([second], 1)
        assert len(signs) == 2
        listing.released.set()
        assert first.result(60) and second.result(60)


def test_a_look_serves_all_who_came_while_it_was_young_however_long_it_takes(
    grouped: Grouped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a collection judges by a listing that is some seconds older than its own time at most."""
    monkeypatch.setattr(log_parts, "_WAIT_S", 0.01)
    stores, versions = grouped.begun(4)
    grouped.batch(stores, versions, 0)
    clock = grouped.query.clock
    logs = LogObjects(grouped.query.storage, clock)
    listing = HeldListing(grouped, logs, takes_ms=60_000)
    started = clock.monotonic()
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(logs.parts_of, stores[0].identity)]
        listing.hangs.wait(60)
        for after_s, store in zip((log_parts._LOOK_S - 1, 2, 1), stores[1:], strict=True):
            clock.advance(round(1000 * after_s))
            waits = threading.Event()
            asked.append(threads.submit(logs.parts_of, store.identity, progressed=waits.set))
            assert waits.wait(60)
        listing.released.set()
        assert all(len(one.result(60)) == 1 for one in asked)
    # one for the two that came later
    assert [at - started for at in listing.begun] == [0.0, log_parts._LOOK_S + 62]


def test_groups_and_own_files_take_turns_on_one_chain(grouped: Grouped) -> None:
    """Switching it on and off at any restart needs nothing else."""
    _, versions = grouped.begun()
    for number in range(12):
        with_groups = number // 3 % 2 == 0
        store = grouped.open(groups=with_groups)
        versions += grouped.batch([store], versions[-1:], number)
        assert (AttemptId.parse(versions[-1].attempt or "").kind == GROUP) is with_groups
        # by an engine that has seen none of it
        again = Grouped(grouped.query).open(groups=with_groups)
        for version in versions:
            assert rows_of(again.load(version, have=None, read_only=True)) == grouped.query.states[version.attempt]
    manifest = grouped.open().manifest(versions[-1])
    assert manifest is not None
    assert len(manifest.references) == 13


def test_parts_are_merged_into_a_segment(grouped: Grouped) -> None:
    (store,), (version,) = grouped.begun()
    for number in range(6):
        (version,) = grouped.batch([store], [version], number)
    store.confirm(version)
    made = store.compact()
    assert made is not None
    store.adopt(made.made)
    (version,) = grouped.batch([store], [version], 7)
    manifest = store.manifest(version)
    assert manifest is not None
    assert [one.kind for one in manifest.references] == [INCREMENT, RUN]
    assert rows_of(grouped.open().load(version, have=None, read_only=True)) == grouped.query.states[version.attempt]


def test_nothing_is_committed_on_a_part_whose_object_is_gone_for_a_moment(grouped: Grouped) -> None:
    (store,), versions = grouped.begun()
    versions = grouped.batch([store], versions, 0)
    list(store.load(versions[0], have=None, read_only=True).batches)
    grouped.query.storage.delete_many([f"{paths.LOG}/{name}" for name in grouped.objects()])
    grouped.query.clock.advance(round(1000 * HOLDS_S))
    assert grouped.query.begin(store, versions[0]).lost


def test_what_the_storage_refuses_is_told_to_each_commit(grouped: Grouped) -> None:
    stores, first = grouped.begun(2)
    accepted = [
        grouped.accept(store, version, {b"k": (PUT, b"v")}) for store, version in zip(stores, first, strict=True)
    ]
    grouped.query.faults.inject(Fault("publish", paths.LOG, times=10))
    grouped.seal()
    for one in accepted:
        with fails_with("storage.failed"):
            one.publish()
    # and the next attempt of each is like any other
    grouped.query.faults.heal()
    versions = grouped.batch(stores, first, 0)
    assert rows_of(stores[0].load(versions[0], have=None, read_only=True)) == grouped.query.states[versions[0].attempt]


def test_an_id_whose_object_is_not_there_or_lacks_it_is_missing(grouped: Grouped) -> None:
    (store,), (first,) = grouped.begun()
    lost = grouped.accept(store, first, {b"k": (PUT, b"v")})
    with fails_with("file.missing") as caught:
        grouped.open().load(Version(2, lost.attempt), have=None, read_only=True)
    assert PartId.of(AttemptId.parse(lost.attempt)).log in caught.error.message
    grouped.seal()
    id = PartId.of(AttemptId.parse(lost.attempt))
    other = AttemptId.parse(lost.attempt).within(f"{id.log}-{id.number + 1}")
    with fails_with("file.missing") as caught:
        grouped.open().load(Version(2, str(other)), have=None, read_only=True)
    assert f"part {id.number + 1}" in caught.error.message
    with fails_with("attempt-id.unknown"):
        grouped.open().load(Version(2, str(other.within("elsewhere"))), have=None, read_only=True)


def test_every_change_of_a_log_object_is_detected(grouped: Grouped) -> None:
    stores, versions = grouped.begun(2)
    versions = grouped.batch(stores, versions, 0)
    (name,) = grouped.objects()
    path = f"{paths.LOG}/{name}"
    data = bytes(grouped.query.storage.read(path))
    expected: list[Rows] = [grouped.query.states[version.attempt] for version in versions]
    for what, changed in mutants(data, (0x01,)):
        grouped.query.storage.publish(path, changed)
        found = []
        for partition, version in enumerate(versions):
            try:
                load = Grouped(grouped.query).open(partition).load(version, have=None, read_only=True)
                assert rows_of(load) == expected[partition], what
            except LaminaError as error:
                assert error.kind in ("file.damaged", "file.version", "file.missing", "file.identity"), what  # noqa: PT017
                assert name in error.message, what  # noqa: PT017
                found.append(error)
        if not found:
            # of a part that nobody restored here, or between them: whoever verifies all of it sees it
            with fails_with("file.damaged", "file.version"):
                index = log_object.verify(changed, name.removesuffix(".log"), name)
                for part in index.parts:
                    manifest = verify(changed[part.offset : part.offset + part.length], name)
                    assert isinstance(manifest, CommitManifest)


def test_a_torn_object_is_detected(grouped: Grouped) -> None:
    stores, versions = grouped.begun()
    grouped.query.faults.inject(Fault("publish", paths.LOG, effect=Effect.TRUNCATE))
    (version,) = grouped.batch(stores, versions, 0)
    with fails_with("file.damaged"):
        Grouped(grouped.query).open().load(version, have=None, read_only=True)


def test_an_object_under_the_name_of_another_is_detected(grouped: Grouped) -> None:
    (store,), begun = grouped.begun()
    first = grouped.batch([store], begun, 0)
    second = grouped.batch([store], first, 1)
    mine, other = (PartId.of(AttemptId.parse(one[0].attempt or "")).log for one in (first, second))
    grouped.query.storage.publish(paths.log_path(mine), bytes(grouped.query.storage.read(paths.log_path(other))))
    with fails_with("file.identity"):
        Grouped(grouped.query).open().load(first[0], have=None, read_only=True)


def test_large_commits_are_files_of_their_own(grouped: Grouped) -> None:
    (store,), (first,) = grouped.begun()
    rows: dict[bytes, Change] = {b"%06d" % number: (PUT, b"%d" % (number * 7919 % 10**9)) for number in range(3000)}
    accepted = grouped.query.accept(store, first, rows, most_held=1000)
    accepted.publish()
    assert AttemptId.parse(accepted.attempt).kind != GROUP
    assert grouped.objects() == []


def test_parts_are_left_alone_until_a_version_consists_of_so_many() -> None:
    query = Query(min_versions=2, changelog__enabled=True, changelog__materializeParts=12)
    grouped = Grouped(query)
    (store,), versions = grouped.begun()
    most = spread_over(12, store.identity)
    for number in range(most - 1):
        versions = grouped.batch([store], versions, number)
        store.confirm(versions[0])
        assert store.compact() is None, number
        assert not query.begin(store, versions[0]).compaction_due
    versions = grouped.batch([store], versions, most)
    assert query.begin(store, versions[0]).compaction_due
    materialized(store, versions[0])
    (version,) = grouped.batch([store], versions, most + 1)
    assert parts(store, version) == 1
    assert rows_of(store.load(version, have=None, read_only=True)) == query.states[version.attempt]
