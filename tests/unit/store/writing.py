"""A caller of `VersionedStore` for tests: keeps the rows in a dictionary, as the shim keeps them in its table."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from lamina.components import Clock, Ids
from lamina.format.attempt_id import AttemptId
from lamina.format.entries import APPEND, DELETE, PUT, SCHEMA
from lamina.format.manifest import ColumnFamily, Count
from lamina.format.paths import CommitName
from lamina.settings import PREFIX, Settings
from lamina.storage import Storage
from lamina.store import Begin, CheckpointState, CommitRequest, Load, StoreConf, StoreId, Version
from lamina.store.direct.rows import in_part, newest_first, part_of
from lamina.store.factory import make_store
from lamina.store.memory.budget import Share
from lamina.store.model import Accepted
from lamina.store.versioned_store import VersionedStore
from lamina.testing import FaultyBackend, ManualClock, SequenceIds

Change = tuple[int, bytes]
Rows = dict[bytes, bytes]

SEEDS = itertools.count(1)
FAMILY = ColumnFamily(0, "default", {"multi_value": False})


class Query:
    """One run of a query over a checkpoint in memory (or on `storage`): opens stores, keeps their states by attempt."""

    def __init__(
        self,
        storage: Storage | None = None,
        *,
        run: str = "run",
        format_version: int = 2,
        min_versions: int = 100,
        clock: Clock | None = None,
        ids: Ids | None = None,
        **settings: Any,
    ) -> None:
        if storage is None:
            inner = Storage(f"memory://store-tests/{next(SEEDS)}")
            storage = Storage(inner.url, backend=FaultyBackend(inner._backend))
        self.storage = storage
        self.run = run
        self.format_version = format_version
        self.min_versions = min_versions
        self.clock = clock or ManualClock(time.time_ns() // 1_000_000)
        self.ids = ids or SequenceIds(next(SEEDS))
        self.settings = Settings.parse({PREFIX + key.replace("__", "."): str(value) for key, value in settings.items()})
        self.states: dict[str | None, Rows] = {None: {}}
        self.tasks = itertools.count(1)

    @property
    def faults(self) -> FaultyBackend:
        assert isinstance(self.storage._backend, FaultyBackend)
        return self.storage._backend

    def open(self, partition: int = 0, *, read_only: bool = False) -> VersionedStore:
        """The store as a new provider opens it."""
        state = CheckpointState.open(self.storage, run_id=self.run, read_only=read_only, clock=self.clock, ids=self.ids)
        return make_store(
            state,
            StoreId(self.storage.url, 0, partition, "default"),
            StoreConf(self.settings, self.format_version, "4.3.0", self.min_versions),
            clock=self.clock,
            ids=self.ids,
        )

    def begin(self, store: VersionedStore, base: Version, **options: Any) -> Begin:
        """`begin` as for a streaming open that has the rows of `base`."""
        arguments = {
            "task_attempt": next(self.tasks),
            "load_empty": False,
            "force_snapshot": False,
            "have": True,
            **options,
        }
        return store.begin(base, **arguments)

    def commit(
        self,
        store: VersionedStore,
        base: Version,
        changes: Mapping[bytes, Change],
        *,
        begun: Begin | None = None,
        rows: Mapping[str, int] | None = None,
        task_attempt: int = 0,
        before: Rows | None = None,
        share: Share | None = None,
        **options: Any,
    ) -> Version:
        """One attempt of the version after `base`; a change is (op, value).

        `before` are the rows of `base` where its file may be gone.
        """
        begun = begun or self.begin(store, base, **options)
        if before is None:
            before = {} if options.get("load_empty") else self.states[self.attempt(store, base)]
        after = applied(before, changes)
        request, sections = self.request(base, begun, changes, after, rows, task_attempt)
        store.commit(request, sections, **({} if share is None else {"share": share}))
        self.states[begun.attempt] = after
        return Version(base.version + 1, begun.attempt)

    def accept(
        self, store: VersionedStore, base: Version, changes: Mapping[bytes, Change], most_held: int = 1 << 20
    ) -> Accepted:
        """The same as far as it is received, whole in memory."""
        after = applied(self.states[base.attempt], changes)
        request, sections = self.request(base, self.begin(store, base), changes, after)
        return store.accept(request, sections, most_held=most_held)

    def request(
        self,
        base: Version,
        begun: Begin,
        changes: Mapping[bytes, Change],
        after: Rows,
        rows: Mapping[str, int] | None = None,
        task_attempt: int = 0,
    ) -> tuple[CommitRequest, dict[str, Iterable[pa.RecordBatch]]]:
        """What a commit sends."""
        sections: dict[str, Iterable[pa.RecordBatch]] = {
            "increment": [entries((0, op, key, value) for key, (op, value) in changes.items())]
        }
        if begun.snapshot:
            sections["snapshot"] = [entries((0, PUT, key, value) for key, value in after.items())]
        part = part_of(begun)
        if part is not None:
            rewritten = in_part({(0, key): value for key, value in after.items()}, part)
            sections["rewrite"] = [entries((0, PUT, key, value) for (_, key), value in rewritten.items())]
        request = CommitRequest(
            begun.attempt,
            base.version + 1,
            base,
            {0: Count(len(after), sum(len(key) + len(value) for key, value in after.items()))},
            (FAMILY,),
            1,
            task_attempt or next(self.tasks),
            rows or {},
            part,
        )
        return request, sections

    @staticmethod
    def attempt(store: VersionedStore, version: Version) -> str | None:
        attempt = store.resolve(version)
        return None if attempt is None or ".e." in attempt else attempt

    def run_batches(self, store: VersionedStore, base: Version, count: int, keys: int = 7) -> list[Version]:
        """`count` versions after `base`, each with a put, an append or a delete of some keys."""
        versions = []
        for number in range(base.version + 1, base.version + 1 + count):
            changes: dict[bytes, Change] = {
                b"k%d" % (number % keys): (PUT, b"<%d>" % number),
                b"l%d" % (number % 3): (APPEND, b"(%d)" % number),
            }
            if number % 3 == 0:
                changes[b"k%d" % ((number + 2) % keys)] = (DELETE, b"")
            if number % 5 == 0:
                changes[b"l%d" % ((number + 1) % 3)] = (DELETE, b"")
            base = self.commit(store, base, changes)
            versions.append(base)
        return versions

    def assert_restores(self, store: VersionedStore, version: Version) -> None:
        """The version's state, as written, comes back."""
        load = store.load(version, have=None, read_only=True)
        assert rows_of(load) == self.states[load.attempt if load.version else None]


def applied(rows: Rows, changes: Mapping[bytes, Change]) -> Rows:
    after = dict(rows)
    for key, (op, value) in changes.items():
        if op == PUT:
            after[key] = value
        elif op == DELETE:
            after.pop(key, None)
        else:
            after[key] = after.get(key, b"") + value
    return after


def entries(rows: Iterable[tuple[int, int, bytes, bytes]]) -> pa.RecordBatch:
    table = list(rows)
    kinds = (pa.uint16(), pa.uint8(), pa.binary(), pa.binary())
    return pa.RecordBatch.from_arrays(
        [pa.array([row[index] for row in table], kind) for index, kind in enumerate(kinds)], schema=SCHEMA
    )


def triples(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, int, bytes]]:
    for batch in batches:
        yield from zip(
            batch.column(2).to_pylist(), batch.column(1).to_pylist(), batch.column(3).to_pylist(), strict=True
        )


def rows_of(load: Load, have: Rows | None = None) -> Rows:
    """The state that a load adds up to; `have` are the caller's rows, used where the load builds on them."""
    if load.start == "have":
        assert have is not None
        after = dict(have)
        for key, op, value in triples(load.batches):
            after = applied(after, {key: (op, value)})
        return after
    return {key: value for (_, key), value in newest_first(load.batches).items()}


def file_name(attempt: str) -> str:
    """The name of an attempt's file."""
    return str(CommitName(AttemptId.parse(attempt)))


def names(storage: Storage, directory: str = "0/0") -> set[str]:
    return {entry.name for entry in storage.list(directory)}


def damage(storage: Storage, path: str, position: int = -1) -> None:
    """Flips one byte of an object, by default one in the middle."""
    data = bytearray(bytes(storage.read(path)))
    data[position if position >= 0 else len(data) // 2] ^= 0xFF
    storage.publish(path, bytes(data))
