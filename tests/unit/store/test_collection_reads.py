"""What a collection reads: each manifest once, of a remote storage many at once, and no more than so many."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import LaminaError
from lamina.format.entries import PUT
from lamina.format.paths import PINS
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.collection import footprints
from lamina.store.collection.footprints import READS, Footprints
from lamina.store.collection.known_others import KnownOthers
from lamina.store.versioned_store import VersionedStore
from lamina.testing import FaultyBackend, ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store.aging import START_MS, Aged, deleted, file, wait
from tests.unit.store.writing import Query, names

EMPTY = Version(0)
VERSIONS = 3 * READS


class Remote(FaultyBackend):
    """A storage whose first reads after `meet` wait until so many are there at once."""

    remote = True
    ALONE_S = 20
    """How long a read waits for others before it is sure that they do not come."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._counting = threading.Lock()
        self._together: threading.Barrier | None = None
        self._expected = 0

    @property
    def met(self) -> bool:
        return self._together is not None and self._expected == 0 and not self._together.broken

    def meet(self, reads: int) -> None:
        self._together, self._expected = threading.Barrier(reads), reads

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        with self._counting:
            waits = self._expected > 0
            self._expected -= waits
        if waits and self._together is not None:
            self._together.wait(self.ALONE_S)
        return super().read_tail(path, length)


@pytest.fixture
def query() -> Query:
    query = Query(min_versions=VERSIONS)
    query.storage = Storage(query.storage.url, backend=Remote(query.faults._inner))
    return query


def remote(query: Query) -> Remote:
    assert isinstance(query.faults, Remote)
    return query.faults


def test_a_cold_collection_reads_many_manifests_at_once(query: Query) -> None:
    version = query.run_batches(query.open(), EMPTY, VERSIONS)[-1]
    cold = query.open()
    cold.lineage(version)  # the ends of the lineage are read before what is between them
    remote(query).meet(READS)
    collected = cold.collect(version, dry_run=True)
    assert remote(query).met
    local = Query(Storage(query.storage.url), min_versions=VERSIONS, clock=query.clock)
    assert collected == local.open().collect(version, dry_run=True)


def test_what_many_attempts_off_the_lineage_refer_to_is_read_at_once(query: Query) -> None:
    store = query.open()
    version = query.run_batches(store, EMPTY, 2)[-1]
    for _ in range(READS):
        query.run_batches(store, version, 1)
    cold = query.open()
    cold.collect(version, dry_run=True)  # its second collection has nothing else to read
    cold._collector._footprints.keep(lambda _: False)
    remote(query).meet(READS)
    cold.collect(version, dry_run=True)
    assert remote(query).met


def test_a_manifest_that_cannot_be_read_among_those_read_ahead_stops_the_collection(query: Query) -> None:
    versions = query.run_batches(query.open(), EMPTY, VERSIONS)
    before = names(query.storage)
    path = f"0/0/{versions[5].version}_"
    whole = next(name for name in before if f"0/0/{name}".startswith(path))
    query.storage.publish(f"0/0/{whole}", bytes(query.storage.read(f"0/0/{whole}"))[:-1])
    with pytest.raises(LaminaError) as caught:
        query.open().collect(versions[-1], dry_run=False)
    assert (caught.value.kind, whole in caught.value.message) == ("file.damaged", True)
    assert names(query.storage) == before


def test_no_more_manifests_are_read_ahead_than_have_room_whatever_their_number(query: Query) -> None:
    store = query.open()
    versions = query.run_batches(store, EMPTY, VERSIONS)
    query.faults.calls.clear()
    reads = Footprints(store._files).read([str(version.attempt) for version in versions])
    next(reads)()
    reads.close()
    assert 0 < len(query.faults.calls) <= READS


MODES: list[tuple[str, dict[str, Any]]] = [
    ("background", {}),
    ("full", {"compaction__fullInterval": 7}),
    ("rolling", {"compaction__rollingParts": 4}),
]


class AgedRemote(Aged):
    remote = True


@dataclass
class Counted:
    """A query that compacts, forces snapshots and leaves attempts behind, and a collector of its store.

    `versions` are those that count; Spark has committed the last one, and nobody has built on it yet.
    """

    query: Query
    store: VersionedStore = field(init=False)
    collector: VersionedStore = field(init=False)
    others: KnownOthers = field(init=False)
    versions: list[Version] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.store, self.collector = self.query.open(), self.query.open()
        self.others = KnownOthers(self.collector._checkpoint, self.query.clock)

    def commit(self, count: int) -> None:
        for _ in range(count):
            base = self.versions[-1] if self.versions else EMPTY
            number = base.version + 1
            if number % 5 == 0:
                self.query.run_batches(self.store, base, 1)  # an attempt that does not count
            forced = number % 17 == 0
            self.versions.append(self.query.commit(self.store, base, {b"k": (PUT, b"x")}, force_snapshot=forced))
            if number % 3 == 0:
                self.store.confirm(base)
                compacted = self.store.compact()
                if compacted is not None:
                    self.store.adopt(compacted.made)

    def collect(self) -> tuple[int, int, int]:
        """A collection as the maintenance process makes it, which deletes what one that remembers nothing would.

        How many manifests it read, how often it listed the store, and how many files it deleted.
        """
        wait(self.query, 5_000)
        forgetful = self.query.open()
        for collector in (forgetful, self.collector):
            collector.set_waiting_segments(self.store.waiting_segments())
        due = deleted(forgetful.judge(self.versions[-2], self.others).collected)
        self.query.faults.calls.clear()
        judged = self.collector.judge(self.versions[-2], self.others)
        assert judged.collected.stopped is None
        judged.delete()
        assert deleted(judged.done()) == due
        self.collector.rest()
        calls = [operation for operation, path in self.query.faults.calls if path.startswith("0/0")]
        return sum(operation.startswith("read") for operation in calls), calls.count("list"), len(due)

    def commits(self) -> set[str]:
        return {name for name in names(self.query.storage) if name.endswith(".lam")}


@pytest.fixture(params=MODES, ids=[mode for mode, _ in MODES])
def counted(request: pytest.FixtureRequest, tmp_path: Path) -> Counted:
    mode, settings = request.param
    clock = ManualClock(START_MS)
    storage = Storage(str(tmp_path), backend=AgedRemote(tmp_path, clock))
    settings = {"compaction__mode": mode, "retention__minAgeMs": 0, **settings}
    return Counted(Query(storage, min_versions=10, clock=clock, **settings))


@pytest.mark.parametrize("every", [1, 2, 20], ids=lambda every: f"every {every} versions")
def test_a_collection_reads_each_new_commit_once_and_lists_once(counted: Counted, every: int) -> None:
    """Also one that does not count, and one that nobody has built on yet: it is not read again once somebody has."""
    counted.commit(30)
    seen: set[str] = set()
    gone = 0
    for _ in range(5):
        new = counted.commits() - seen
        reads, listings, files = counted.collect()
        assert (reads <= len(new), listings) == (True, 1)
        gone += files
        seen |= new
        counted.commit(every)
    assert gone > 0


def test_a_collection_without_a_new_commit_reads_nothing(counted: Counted) -> None:
    counted.commit(30)
    counted.collect()
    assert counted.collect()[:2] == (0, 1)


def test_a_collector_that_knows_nothing_reads_each_commit_once_whose_lineage_is_in_parts(counted: Counted) -> None:
    """A manifest lists a part of it, and the oldest one listed goes on."""
    counted.store._attempts._lineage_length = 3
    counted.commit(30)
    commits = len(counted.commits())
    reads, listings, _ = counted.collect()
    assert (reads <= commits, listings) == (True, 1)


def test_of_the_lineage_no_manifest_is_remembered(counted: Counted) -> None:
    for _ in range(5):
        counted.commit(20)
        counted.collect()
        remembered = counted.collector._collector._footprints._known.keys()
        assert counted.versions[-1].attempt in remembered
        assert not remembered & {version.attempt for version in counted.versions[:-1]}


def test_a_version_that_was_read_before_it_counted_and_is_lost_since_stops_the_collection(counted: Counted) -> None:
    counted.commit(30)
    counted.collect()
    lost = counted.versions[-1]
    counted.commit(5)
    counted.query.storage.delete_many([f"0/0/{file(lost)}"])
    before = names(counted.query.storage)
    with fails_with("file.missing") as caught:
        counted.collector.judge(counted.versions[-2], counted.others)
    assert file(lost) in caught.error.message
    assert names(counted.query.storage) == before


def test_what_is_told_of_commits_is_not_kept_without_end_where_no_collection_comes_to_its_own(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is read, once there is one."""
    monkeypatch.setattr(footprints, "MOST_KNOWN", 8)
    writer, store = query.open(), query.open()
    query.storage.publish(f"{PINS}/damaged", [b"no pin"])
    version = EMPTY
    for _ in range(10):
        version = query.run_batches(writer, version, 5)[-1]
        store.note_footprints(writer.take_footprints())
        with fails_with("file.damaged"):
            store.collect(version, dry_run=False)
        assert len(store._collector._footprints._known) <= 8 + 5
    query.storage.delete_many([f"{PINS}/damaged"])
    assert len(store.collect(version, dry_run=False).verdicts) == 50
