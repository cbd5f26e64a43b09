"""Writes Spark's logs of a checkpoint, from what `CheckpointLogs` reads, byte for byte as Spark does.

Each file is published whole, and never replaced: where one is, it must have the same bytes. Who makes a checkpoint
writes what Spark reads first last: `metadata`, schemas, operators, and then `offsets` before `commits` of each batch.

Spark keeps no checksums of its own for its logs (`spark.sql.streaming.checkpoint.fileChecksum.enabled` is about the
files of its state stores). Hadoop's local file system keeps one in a hidden file `.<name>.crc`, and is content with a
log that has none. One that is left over from another file makes Hadoop refuse the log, so it goes before the log is
written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lamina.checkpoint.batch_logs import CommitEntry, OffsetEntry, commit_bytes, offsets_bytes
from lamina.checkpoint.log_paths import QUERY, commit_path, offsets_path, operator_path, schema_path
from lamina.checkpoint.operators import OperatorMetadata, StoreMetadata, operator_bytes
from lamina.checkpoint.reading import read_if_there
from lamina.checkpoint.state_schemas import StateSchema, state_schema_bytes
from lamina.checkpoint.writing import json_text
from lamina.errors import StateError
from lamina.format.paths import directory_and_name, join
from lamina.storage import Storage

_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/.*[^/]")


class CheckpointLogWriter:
    """Writes the logs of the checkpoint whose directory is the root of `storage`.

    Every method may raise LaminaError `file.version` for a version that this release does not know,
    `state.superseded` where the file is there with other bytes, and `storage.*`; and ValueError for an entry that its
    version cannot hold.

    Args:
        location: how Spark names that directory, with a scheme, such as `file:/data/flights` or `s3a://bucket/flights`:
            operator metadata v2 says where schema files are, and Spark looks for them there.
    """

    def __init__(self, storage: Storage, location: str) -> None:
        if _LOCATION.fullmatch(location) is None:
            raise ValueError(f"{location!r} is no URL as Spark writes them, such as file:/data/flights")
        self._storage = storage
        self._location = location

    def query_id(self, id: str) -> None:
        """The id that the query keeps over all its runs."""
        self._write(QUERY, json_text({"id": id}).encode())

    def offsets(self, entry: OffsetEntry) -> None:
        """What a batch is made of."""
        path = offsets_path(entry.batch)
        self._write(path, offsets_bytes(self._storage.location(path), entry))

    def commit(self, entry: CommitEntry) -> None:
        """How a batch ended."""
        path = commit_path(entry.batch)
        self._write(path, commit_bytes(self._storage.location(path), entry))

    def operator(self, metadata: OperatorMetadata) -> None:
        """One operator; v2 as of its batch."""
        path = operator_path(metadata.operator, metadata.batch)
        self._write(path, operator_bytes(self._storage.location(path), metadata, self._location))

    def state_schemas(self, operator: int, store: StoreMetadata, schemas: Sequence[StateSchema]) -> None:
        """All schemas of a store, as `CheckpointLogs.state_schemas` gives them: one for each file of `store`."""
        paths = store.schema_files or (schema_path(operator, store.name),)
        for path, schema in zip(paths, schemas, strict=True):
            self._write(path, state_schema_bytes(self._storage.location(path), schema))

    def _write(self, path: str, data: bytes) -> None:
        there = read_if_there(self._storage, path)
        if there is None:
            if not self._storage.remote:
                directory, name = directory_and_name(path)
                self._storage.delete_many([join(directory, f".{name}.crc")])
            if self._storage.publish_if_absent(path, data):
                return
            there = read_if_there(self._storage, path)
        if there != data:
            raise StateError(
                "state.superseded",
                f"{self._storage.location(path)} is there and says something else; it is not replaced",
            )
