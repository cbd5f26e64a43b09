"""The life cycle of state changes that FLIP-158 tells of, step by step, in the terms of lamina's log.

| FLIP-158 | here |
|---|---|
| sequence number `T1` | the version that an attempt makes: change sets begin and end at versions, never between |
| `lastAppendedSqn()` | the version of the attempt that was begun: it starts a new change set |
| `append(changes)` | the rows that an attempt sends (`accept`): nothing leaves the process before all are there |
| `persistDurably(after)` | `Groups.reserve` and `Place.fill`: what is there at `after` is named, the rest waits |
| the future, and the handle | `Accepted.publish`, and the manifest: it names the parts and segments of its version |
| a future that is found again | a part of an earlier object that the manifest names: it is not written again |
| materialization at `T2` | a segment of all changes up to a confirmed version, made beside the batches |
| `lastMaterializedSqn = T2` | `adopt`: the next commit names the segment in place of what it was merged from |
| `truncate(before)` | `tell_needs`: the versions up to the confirmed one that the store needs, and will ever need |
| a file that nobody refers to | `needless`: the object of which every store has said that it needs none of its parts |
| `close()` | `Groups.close`: what waits is written, and nothing more is taken |

Two things are narrower here. A checkpoint is a version, and the next one stands on a durable one ("at most 1 concurrent
checkpoint"): so CP1 is durable before `b` is persisted, and `b` is a version of its own, at which the materialization
can begin. And no change set reaches across a materialization, so that nothing in it has to be filtered: recovery leaves
out `b` by not reading it.
"""

from __future__ import annotations

import pytest

from lamina.format import log_object, paths
from lamina.format.attempt_id import AttemptId
from lamina.format.entries import PUT
from lamina.format.log_object import PartId
from lamina.format.manifest import INCREMENT, RUN
from lamina.store import Version
from lamina.store.memory.budget import unbounded
from lamina.store.model import Accepted
from lamina.store.versioned_store import VersionedStore
from lamina.testing.expect import fails_with
from tests.unit.store.aging import MIN_AGE_MS
from tests.unit.store.grouped import Grouped
from tests.unit.store.writing import Change, Query, rows_of

A: dict[bytes, Change] = {b"a": (PUT, b"1"), b"x": (PUT, b"a")}
B: dict[bytes, Change] = {b"b": (PUT, b"2"), b"x": (PUT, b"b")}
C: dict[bytes, Change] = {b"c": (PUT, b"3"), b"x": (PUT, b"c")}
D: dict[bytes, Change] = {b"d": (PUT, b"4"), b"x": (PUT, b"d")}


class Log:
    """One stateful operator, of which only the newest checkpoint is retained."""

    def __init__(self) -> None:
        self.grouped = Grouped(Query(min_versions=0))
        (self.store,), (self.t0,) = self.grouped.begun()

    def persist(self, after: Version, changes: dict[bytes, Change]) -> tuple[Accepted, Version]:
        """The future of the changes since `after`, and the version that they make."""
        future = self.grouped.accept(self.store, after, changes)
        return future, Version(after.version + 1, future.attempt)

    def completed(self, future: Accepted) -> None:
        """The object of all that waits is written, and its future is told."""
        self.grouped.seal()
        future.publish()

    def handle(self, version: Version) -> list[tuple[str, int, int]]:
        """What the version consists of, newest first: kinds, and the versions after which and up to which."""
        manifest = self.store.manifest(version)
        assert manifest is not None
        return [(reference.kind, reference.start, reference.end) for reference in manifest.references]

    def object_of(self, version: Version) -> str:
        return f"{PartId.of(AttemptId.parse(version.attempt or '')).log}.log"

    def recovered(self, version: Version) -> dict[bytes, bytes]:
        """By a process that has nothing but the files."""
        return rows_of(Grouped(self.grouped.query).open().load(version, have=None, read_only=True))

    def collect(self, confirmed: Version, *, age: bool = True) -> None:
        """And twice more when what it found may go."""
        for _ in range(2 if age else 0):
            assert self.store.collect(confirmed, dry_run=False).stopped is None
            self.grouped.query.clock.advance(MIN_AGE_MS + 60_000)  # type: ignore[attr-defined]
        assert self.store.collect(confirmed, dry_run=False).stopped is None


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_life_cycle_of_state_changes(log: Log) -> None:
    query = log.grouped.query
    t0 = log.t0

    # CP1: persist(after = T0) gives the future of (T0:T1 = a), and nothing is written before its group is sealed
    cp1, t1 = log.persist(t0, A)
    assert log.grouped.objects() == []
    with fails_with("file.missing"):
        log.recovered(t1)
    log.completed(cp1)
    assert log.handle(t1) == [(INCREMENT, 1, 2), (INCREMENT, 0, 1)]
    assert log.grouped.objects() == [log.object_of(t1)]
    log.store.confirm(t1)

    # b makes T2. What CP1 wrote is found and named again: the new object has b alone
    b, t2 = log.persist(t1, B)
    log.completed(b)
    assert parts(log, t2) == [(2, 3)]
    assert log.handle(t2) == [(INCREMENT, 2, 3), (INCREMENT, 1, 2), (INCREMENT, 0, 1)]

    # The materialization of (T0:T2 = a, b) is triggered, and goes on beside the next checkpoint
    log.store.confirm(t2)
    materialization = log.store.plan_compaction()
    assert materialization is not None

    # CP2: persist(after = T0), since the materialization has not completed. Its handle points to three objects
    cp2, t3 = log.persist(t2, C)
    log.completed(cp2)
    assert log.handle(t3) == [(INCREMENT, 3, 4), (INCREMENT, 2, 3), (INCREMENT, 1, 2), (INCREMENT, 0, 1)]
    assert parts(log, t3) == [(3, 4)]
    objects = [log.object_of(version) for version in (t1, t2, t3)]
    assert sorted(log.grouped.objects()) == sorted(objects)

    # CP1 is subsumed: nothing is removed yet, since CP2 needs all of it
    log.store.confirm(t3)
    log.collect(t3)
    assert sorted(log.grouped.objects()) == sorted(objects)

    # The materialization completes: nothing goes that CP2 consists of
    log.store.adopt(materialization.run(None, unbounded()).made)
    log.collect(t3, age=False)
    assert sorted(log.grouped.objects()) == sorted(objects)
    assert log.recovered(t3) == query.states[t3.attempt]

    # CP3: persist(after = T2) finds (T2:T3 = c), and is combined with the new (T3:T4 = d)
    cp3, t4 = log.persist(t3, D)
    log.completed(cp3)
    assert log.handle(t4) == [(INCREMENT, 4, 5), (INCREMENT, 3, 4), (RUN, 0, 3)]
    assert parts(log, t4) == [(4, 5)]

    # CP2 is subsumed: truncate(before = T2). The objects of a and of b are not referred to any more, and removed
    log.store.confirm(t4)
    log.collect(t4)
    assert sorted(log.grouped.objects()) == sorted(map(log.object_of, (t3, t4)))
    assert log.recovered(t4) == query.states[t4.attempt] == {b"first": b"row", b"a": b"1", b"b": b"2", b"c": b"3",
                                                              b"d": b"4", b"x": b"d"}  # fmt: skip


def parts(log: Log, version: Version) -> list[tuple[int, int]]:
    """The ranges that the index of the version's object has."""
    name = log.object_of(version)
    data = log.grouped.query.storage.read(f"{paths.LOG}/{name}")
    return [(part.after, part.to) for part in log_object.verify(data, name.removesuffix(".log"), name).parts]


def test_recovery_reads_no_change_that_is_materialized(log: Log) -> None:
    """Of (T1:T3 = b, c) b is left out: it may be damaged, and CP3 comes back."""
    query = log.grouped.query
    versions = [log.t0]
    for changes in (A, B):
        future, version = log.persist(versions[-1], changes)
        log.completed(future)
        versions.append(version)
    log.store.confirm(versions[-1])
    materialized = log.store.compact()
    assert materialized is not None
    for changes in (C, D):
        if changes is D:
            log.store.adopt(materialized.made)
        future, version = log.persist(versions[-1], changes)
        log.completed(future)
        versions.append(version)
    _, _, t2, t3, t4 = versions
    path = f"{paths.LOG}/{log.object_of(t2)}"
    data = bytearray(bytes(query.storage.read(path)))
    data[60] ^= 0xFF
    query.storage.publish(path, bytes(data))
    query.faults.calls.clear()
    assert log.recovered(t4) == query.states[t4.attempt]
    read = {
        path for operation, path in query.faults.calls if operation.startswith("read") and path.startswith(paths.LOG)
    }
    assert read == {f"{paths.LOG}/{log.object_of(version)}" for version in (t3, t4)}
    # CP2, which has b, goes around it by the segment
    assert log.recovered(t3) == query.states[t3.attempt]


def test_what_a_declined_checkpoint_wrote_is_persisted_again_from_the_one_before_it(log: Log) -> None:
    """Changes before `after` must not be dropped while a checkpoint may be declined."""
    query = log.grouped.query
    cp1, t1 = log.persist(log.t0, A)
    log.completed(cp1)
    declined, lost = log.persist(t1, B)
    log.completed(declined)
    again, t2 = log.persist(t1, {**B, b"again": (PUT, b"1")})
    log.completed(again)
    assert log.object_of(lost) != log.object_of(t2)
    cp3, t3 = log.persist(t2, C)
    log.completed(cp3)
    assert log.handle(t3) == [(INCREMENT, 3, 4), (INCREMENT, 2, 3), (INCREMENT, 1, 2), (INCREMENT, 0, 1)]
    assert log.recovered(t3) == query.states[t3.attempt]
    log.store.confirm(t3)
    materialized = log.store.compact()
    assert materialized is not None
    log.store.adopt(materialized.made)
    cp4, t4 = log.persist(t3, D)
    log.completed(cp4)
    log.store.confirm(t4)
    log.collect(t4)
    assert log.grouped.objects() == [log.object_of(t4)]


def test_close_writes_what_was_persisted_and_loses_what_was_not(log: Log) -> None:
    groups = log.grouped.groups
    cp1, t1 = log.persist(log.t0, A)
    appended = groups.reserve()
    groups.close()
    # whoever has a place keeps the others waiting until it is filled or dropped
    assert log.grouped.publishing == []
    appended.drop()
    (publish,) = log.grouped.publishing
    publish()
    cp1.publish()
    assert parts(log, t1) == [(1, 2)]
    with fails_with("store.closed"):
        groups.reserve()
    assert log.recovered(t1) == log.grouped.query.states[t1.attempt]


def test_two_checkpoints_of_one_store_do_not_wait_at_the_same_time(log: Log) -> None:
    """What nobody knows to be durable is no base: the next one is asked for the whole state."""
    store: VersionedStore = log.store
    cp1, t1 = log.persist(log.t0, A)
    assert log.grouped.query.begin(store, t1).lost
    log.completed(cp1)
    assert not log.grouped.query.begin(store, t1).lost
