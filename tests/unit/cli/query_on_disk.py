"""A checkpoint as a query with state in lamina leaves it: Spark's logs from the golden files, state by a store."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lamina.components import RandomIds, SystemClock
from lamina.format import PUT, SCHEMA, ColumnFamily, Count, paths
from lamina.format.attempt_id import AttemptId
from lamina.format.log_object import PartId
from lamina.settings import PREFIX, Settings, readable_roots
from lamina.storage import Storage
from lamina.store import CheckpointState, CommitRequest, StoreConf, StoreId, Version
from lamina.store.changelog.groups import Groups, Policy
from lamina.store.factory import make_store
from lamina.store.files.log_places import LogPlaces
from lamina.store.files.store_files import Opened
from lamina.store.model import Accepted
from lamina.store.versioned_store import VersionedStore
from lamina.testing.log_objects import publisher

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "spark-4.3" / "aggregation-rocksdb-v2"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LAMINA = "org.apache.spark.sql.lamina.LaminaStateStoreProvider"
PARTITIONS = 2


class QueryOnDisk:
    """One stateful operator with two partitions; every batch puts rows into each of them.

    Args:
        format_version: Spark's checkpoint format, 1 or 2.
        min_versions: Spark's `minVersionsToRetain`.
        grouped: whether the commits of a batch become one log object, but for the first, which are files.
        settings: of lamina; two underscores stand for a dot.
    """

    def __init__(
        self,
        directory: Path,
        format_version: int = 2,
        *,
        min_versions: int = 100,
        grouped: bool = False,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.format_version = format_version
        self.min_versions = min_versions
        self.grouped = grouped
        self.attempts: list[list[str]] = []
        self.process: Any = {}
        """What log objects say of the process that writes them."""
        self._stores: list[VersionedStore] = []
        (directory / "offsets").mkdir(parents=True)
        (directory / "commits").mkdir()
        shutil.copy(GOLDEN / "metadata", directory / "metadata")
        shutil.copytree(GOLDEN / "state", directory / "state")
        self.restart("run-1", **settings)

    def restart(self, run_id: str, **settings: Any) -> None:
        """A new run of the query, with these settings only."""
        parsed = Settings.parse({PREFIX + key.replace("__", "."): str(value) for key, value in settings.items()})
        url = f"{self.directory}/state"
        storage, clock, ids = Storage(url, roots=readable_roots(parsed)), SystemClock(), RandomIds()
        state = CheckpointState.open(storage, run_id=run_id, read_only=False, clock=clock, ids=ids)

        self.place = LogPlaces(storage).take(parsed.changelog_path, state.uuid or "", ids)
        publish = publisher(self.place, state.uuid, clock, process=lambda: self.process)
        self._groups = Groups(Policy(60.0, 60.0, 60.0, 1 << 20), publish, lambda call: call(), clock, ids)
        self._stores = [
            make_store(
                state,
                StoreId(url, 0, partition, "default"),
                StoreConf(parsed, self.format_version, "4.3.0", self.min_versions),
                clock=clock,
                ids=ids,
                groups=self._groups if self.grouped else None,
            )
            for partition in range(PARTITIONS)
        ]

    @property
    def version(self) -> int:
        """The newest version that Spark committed."""
        return len(self.attempts)

    def plan(self) -> None:
        """Spark writes the offset log of the next batch."""
        text = (GOLDEN / "offsets" / "1").read_text().replace(ROCKSDB, LAMINA)
        (self.directory / "offsets" / str(self.version)).write_text(text)

    def execute(self, rows: int = 10, *, task_attempt: int = 0) -> list[str]:
        """The tasks of the next batch commit their stores; the attempt ids by partition."""
        accepted = [self._accept(store, partition, rows, task_attempt) for partition, store in enumerate(self._stores)]
        self._groups.seal()
        for one in accepted:
            one.publish()
        return [one.attempt for one in accepted]

    def finish(self, attempts: Sequence[str]) -> None:
        """Spark writes the commit log of the batch."""
        entry: dict[str, object] = {"nextBatchWatermarkMs": 0}
        if self.format_version == 2:
            entry["stateUniqueIds"] = {"0": [[attempt] for attempt in attempts]}
        path = self.directory / "commits" / str(self.version)
        written = path.with_name(f".{path.name}.tmp")
        written.write_text(f"v{self.format_version}\n{json.dumps(entry)}")
        written.rename(path)
        self.attempts.append(list(attempts))

    def run(self, batches: int, rows: int = 10) -> None:
        """Whole batches."""
        for _ in range(batches):
            self.plan()
            self.finish(self.execute(rows))

    def materialize(self) -> None:
        """Each store's newest version becomes a base, which the next batch stands on."""
        for store, attempt in zip(self._stores, self.attempts[-1], strict=True):
            store.confirm(Version(self.version, attempt))
            compacted = store.compact()
            assert compacted is not None
            store.adopt(compacted.made)

    def forget(self, kept: int) -> None:
        """Spark removes all but the newest entries of its logs."""
        for log in ("offsets", "commits"):
            for path in (self.directory / log).iterdir():
                if int(path.name) < self.version - kept:
                    path.unlink()

    def age(self, seconds: int) -> None:
        """Every file of the state becomes older; their order in time stays."""
        for path in (self.directory / "state").rglob("*"):
            if path.is_file():
                stat = path.stat()
                os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))

    def file(self, attempt: str, partition: int = 0) -> Path:
        """The file of an attempt."""
        return self.directory / "state" / "0" / str(partition) / f"{attempt.split('.')[1]}_{attempt}.lam"

    def log_object(self, attempt: str) -> Path:
        """The log object that an attempt's commit is in."""
        return self.directory / "state" / paths.log_path(PartId.of(AttemptId.parse(attempt)).log)

    def replace(self, partition: int, rows: int = 10) -> Opened:
        """A version that is built from nothing after the newest one, by who knows the number of that one alone."""
        store = self._stores[partition]
        accepted = self._accept(store, partition, rows, task_attempt=0, load_empty=True)
        accepted.publish()
        return store._versions.open(accepted.attempt)

    def _accept(
        self, store: VersionedStore, partition: int, rows: int, task_attempt: int, load_empty: bool = False
    ) -> Accepted:
        known = self.format_version == 2 and self.version > 0 and not load_empty
        base = Version(self.version, self.attempts[-1][partition] if known else None)
        begin = store.begin(base, task_attempt=task_attempt, load_empty=load_empty, force_snapshot=False, have=True)
        sections = {"increment": [_puts([self.version], rows)]}
        if begin.snapshot:
            sections["snapshot"] = [_puts(range(self.version + 1), rows)]
        live = rows * (self.version + 1)
        return store.accept(
            CommitRequest(
                attempt=begin.attempt,
                version=base.version + 1,
                base=Version(base.version, begin.base_attempt),
                counts={0: Count(live, live * 8)},
                column_families=(ColumnFamily(0, "default"),),
                next_column_family=1,
                task_attempt=task_attempt,
            ),
            sections,
            most_held=1 << 20 if self.grouped else 0,
        )


def _puts(batches: Iterable[int], rows: int) -> pa.RecordBatch:
    """The rows of `batches`, if each had as many."""
    keys = [f"{batch}-{row}".encode() for batch in batches for row in range(rows)]
    columns = [[0] * len(keys), [PUT] * len(keys), keys, [b"value"] * len(keys)]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
