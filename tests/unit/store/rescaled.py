"""Stores of one checkpoint, and those of another that stand on unions of them, as after a rescale from 2 to 3."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa

from lamina.format.attempt_id import AttemptId
from lamina.format.entries import APPEND, DELETE, PUT
from lamina.format.manifest import ColumnFamily, CommitManifest, Count, Filter, Lineage, Reference, Run, UnionMember
from lamina.format.partitioning import partitions_of
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.check.checker import StoreChecker
from lamina.store.check.report import StoreCheck
from lamina.store.files.store_files import StoreFiles
from lamina.store.versioned_store import VersionedStore
from tests.sealed import without_sections
from tests.unit.store.writing import Change, Query, Rows, file_name

OLD, NEW = 2, 3
"""Partitions before and after."""

_SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "k", "type": "long", "nullable": True, "metadata": {}}]})
FAMILY = ColumnFamily(
    0,
    "default",
    {"multi_value": False, "key_schema": _SCHEMA, "key_bytes": "row", "partition_key": {"kind": "key"}},
)

VERSION = 9
"""Of the stores that stand on a union: another one than those of the stores before them."""


def key(number: int) -> bytes:
    """The UnsafeRow of a long."""
    return struct.pack("<qq", 0, number)


@cache
def partition_of(one: bytes, partitions: int) -> int:
    found = partitions_of(pa.array([one], pa.binary()), FAMILY, partitions).to_pylist()[0]
    assert isinstance(found, int)
    return found


def changes(number: int, partition: int) -> dict[bytes, Change]:
    """What batch `number` changes in an old partition: puts, appends to some keys, and removals of older ones."""
    puts = {key(one): (PUT, b"<%d>" % number) for one in range(number * 20, number * 20 + 30)}
    if number == 1:
        # many bytes, however they are compressed
        puts |= {key(one): (PUT, random.Random(one).randbytes(20)) for one in range(5000, 6000)}
    removed = {key(one): (DELETE, b"") for one in range(number * 20 - 13, number * 20 - 5)}
    appended = {key(one): (APPEND, b"(%d)" % number) for one in range(1000, 1010)}
    return {
        one: change for one, change in {**puts, **removed, **appended}.items() if partition_of(one, OLD) == partition
    }


class Rescaled:
    """The stores, in `old` and `new` below a directory.

    Of the old ones the first has a compacted segment, the second rewrites of three parts; one is at an older version
    than the new ones, one at a newer.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        storage = Storage(str(directory / "old" / "state"))
        modes = {}, {"compaction__mode": "rolling", "compaction__rollingParts": 3}
        self.old = [Query(storage, min_versions=20, **mode) for mode in modes]
        self.chains: list[Sequence[Reference]] = []
        self.rows: Rows = {}
        for partition, query in enumerate(self.old):
            store = query.open(partition)
            version = Version(0)
            for number in range(1, 6 + 7 * partition):
                version = query.commit(store, version, changes(number, partition))
                if number == 3:
                    store.confirm(version)
                    compacted = store.compact()
                    if compacted is not None:
                        store.adopt(compacted.made)
            references = StoreFiles(storage, store.identity).open_commit(version.attempt or "").references
            root = f"../old/state/0/{partition}"
            self.chains.append([replace(reference, root=root) for reference in references])
            self.rows.update(query.states[version.attempt])
        self.new = self.query()

    def copied(self, directory: Path) -> Rescaled:
        """The same stores below another directory, which is all that they need to be moved."""
        copied = copy(self)
        shutil.copytree(self.directory / "old", directory / "old")
        copied.directory = directory
        copied.new = copied.query()
        return copied

    def query(self, **settings: object) -> Query:
        """A run of the query on the new stores."""
        storage = Storage(str(self.directory / "new" / "state"), roots=[str(self.directory / "old")])
        return Query(storage, min_versions=20, **settings)

    def expected(self, partition: int, rows: Rows | None = None) -> Rows:
        """The rows of a new partition."""
        of_all = self.rows if rows is None else rows
        return {one: value for one, value in of_all.items() if partition_of(one, NEW) == partition}

    def union(
        self, partition: int | None, families: Mapping[int, int] | None = None, of: Sequence[int] = (0, 1)
    ) -> list[Reference]:
        """References to the keys of a new partition, or to all keys."""
        filter = None if partition is None else Filter(NEW, partition)
        pairs = None if families is None else tuple(families.items())
        return [
            replace(reference, union=UnionMember(chain, len(of), VERSION, filter, pairs))
            for chain, number in enumerate(of)
            for reference in self.chains[number]
        ]

    def stand(
        self,
        partition: int,
        references: Sequence[Reference],
        rows: Rows,
        family: ColumnFamily = FAMILY,
        **changed: object,
    ) -> Version:
        """A version of a new partition that is these references, and has these rows."""
        store = self.new.open(partition)
        attempt = str(AttemptId.for_file(VERSION, 1, self.new.ids.hex128()))
        manifest = CommitManifest(
            attempt=attempt,
            version=VERSION,
            base=None,
            store=store.identity,
            run=Run(1, "run", 0),
            created_ms=1,
            writer="a test",
            spark="4.3.0",
            sections=(),
            header_crc=0,
            references=tuple(references),
            lineage=Lineage(),
            counts={family.id: Count(len(rows), sum(len(one) + len(value) for one, value in rows.items()))},
            column_families=(family,),
            next_column_family=family.id + 1,
            retention={"min_versions": 20, "min_version_age_ms": 0, "min_age_ms": 600_000},
        )
        data = without_sections(replace(manifest, **changed))  # type: ignore[arg-type]
        self.new.storage.publish(f"0/{partition}/{file_name(attempt)}", data)
        self.new.states[attempt] = dict(rows)
        return Version(VERSION, attempt)

    def rescaled(self, partition: int = 0) -> Version:
        """The version of a new partition as the rescale makes it."""
        return self.stand(partition, self.union(partition), self.expected(partition))

    def check(self, store: VersionedStore, *versions: Version) -> StoreCheck:
        named = {version.version: version.attempt for version in versions}
        return StoreChecker(self.new.storage, store.identity, named, clock=self.new.clock).check()
