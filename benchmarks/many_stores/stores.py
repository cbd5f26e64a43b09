"""Many stores without Spark: the calls that the engine makes for a batch, with rows that are ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from lamina.components import RandomIds, SystemClock
from lamina.engine.reports import known_to_json
from lamina.format.entries import PUT, SCHEMA
from lamina.format.manifest import ColumnFamily, Count
from lamina.settings import Settings
from lamina.storage import Storage
from lamina.store import CheckpointState, CommitRequest, Store, StoreConf, StoreId, Version
from lamina.store.factory import make_store
from lamina.store.restore.broken import BrokenPlaces

KEY_BYTES, VALUE_BYTES = 40, 32
GROUPS = 5
"""A store has so many times the rows of a commit; each commit changes the next of these groups."""
FAMILY = ColumnFamily(0, "default", {"multi_value": False})


class Rows:
    """What commits of so many rows bring, made once."""

    def __init__(self, rows: int) -> None:
        self._increments = [_puts(group * rows, rows) for group in range(GROUPS)]
        self._all = pa.Table.from_batches(self._increments).combine_chunks().to_batches()
        total = rows * GROUPS
        self.counts = {0: Count(total, total * (KEY_BYTES + VALUE_BYTES))}

    def sections(self, version: int, snapshot: bool) -> dict[str, Iterable[pa.RecordBatch]]:
        """Those of the commit of a version."""
        increment: dict[str, Iterable[pa.RecordBatch]] = {"increment": [self._increments[version % GROUPS]]}
        return {**increment, "snapshot": self._all} if snapshot else increment


class Stores:
    """Stores 0 … count of one checkpoint, each at the version of its last commit."""

    run = "benchmark"

    def __init__(
        self, storage: Storage, count: int, rows: int, settings: Mapping[str, str], min_versions: int = 100
    ) -> None:
        clock, ids = SystemClock(), RandomIds()
        self.checkpoint = CheckpointState.open(storage, run_id=self.run, read_only=False, clock=clock, ids=ids)
        conf = StoreConf(Settings.parse(settings), 2, "4.3.0", min_versions)
        self._stores: list[Store] = [
            make_store(self.checkpoint, StoreId(storage.url, 0, number, "default"), conf, clock=clock, ids=ids)
            for number in range(count)
        ]
        self._rows = Rows(rows)
        self.versions = [Version(0)] * count

    def commit(self, number: int) -> None:
        """The next version of one store."""
        store, base = self._stores[number], self.versions[number]
        begun = store.begin(base, task_attempt=1, load_empty=False, force_snapshot=False, have=True)
        version = Version(base.version + 1, begun.attempt)
        counts = self._rows.counts
        request = CommitRequest(begun.attempt, version.version, base, counts, (FAMILY,), 1, task_attempt=1)
        store.commit(request, self._rows.sections(version.version, begun.snapshot))
        self.versions[number] = version

    def compact(self) -> None:
        """What the maintenance process does meanwhile: a manifest lists no more files than in a query."""
        for store in self._stores:
            compacted = store.compact()
            if compacted is not None:
                store.adopt(compacted.made)

    def known(self, number: int) -> dict[str, Any]:
        """What the engine tells a job that collects the store."""
        return known_to_json(self._stores[number], BrokenPlaces(), collects=True)

    def forget(self, number: int) -> None:
        """Gives back what a store keeps of its manifests, as an engine that has not written them."""
        self._stores[number].rest()
        self._stores[number].take_footprints()


def _puts(first: int, rows: int) -> pa.RecordBatch:
    keys = [b"%0*d" % (KEY_BYTES, first + row) for row in range(rows)]
    values = [b"%0*d" % (VALUE_BYTES, (first + row) * 0x9E3779B97F4A7C15) for row in range(rows)]
    values = [value[-VALUE_BYTES:] for value in values]
    arrays = [pa.array([0] * rows, pa.uint16()), pa.array([PUT] * rows, pa.uint8())]
    return pa.RecordBatch.from_arrays(
        [*arrays, pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=SCHEMA
    )
