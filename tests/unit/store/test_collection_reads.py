"""How a collection reads manifests of a remote storage: many at once, and no more than so many."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import LaminaError
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.collection.footprints import READS, footprints
from lamina.testing import FaultyBackend
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
    cold._collector._others.clear()
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
    reads = footprints(store._files, [str(version.attempt) for version in versions])
    next(reads)()
    reads.close()
    assert 0 < len(query.faults.calls) <= READS
