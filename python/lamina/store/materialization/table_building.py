"""Sorted tables in the background: puts the increments of a confirmed version on top of a database of RocksDB.

The increments since the last list become one sorted run, which the database ingests. RocksDB merges tables by itself
then. What is new since the last list is published, each table once, and then a list of all tables: the next commit
refers to it in place of what it was made of.

A database is made of the last list for each job, and nothing of it is used afterwards but its tables: what a job left
that failed cannot be taken for a version.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import pyarrow as pa

from lamina._version import __version__
from lamina.components import Clock, Ids
from lamina.errors import LaminaError, StorageError
from lamina.format.container import TABLE_LIST, ContainerWriter, checksum
from lamina.format.entries import Compression
from lamina.format.manifest import FILE, CommitManifest, Reference, Section, to_bytes
from lamina.format.paths import TableListName, TableName
from lamina.format.table_list import Table, TableListManifest
from lamina.store.files.store_files import StoreFiles
from lamina.store.materialization.materializer import (
    Compacted,
    Merge,
    Progress,
    Work,
    kept_young,
    spread_over,
    stamped_at_birth,
    young,
)
from lamina.store.materialization.sources import read_sources
from lamina.store.materialization.table_uploads import TableUploads, publish_table, stamp
from lamina.store.memory.budget import Share
from lamina.store.model import InPlace
from lamina.store.restore.broken import BrokenPlaces
from lamina.store.restore.detours import place
from lamina.store.tables.database import Database, LiveTable
from lamina.store.tables.local import FETCH_BYTES, LocalTables
from lamina.store.tables.local_disk import LocalDiskError, LocalDiskFull, require_room
from lamina.store.tables.options import TableOptions
from lamina.store.tables.reading import table_list
from lamina.store.versions.chain import Replacement, TableList, mergeable, tables

_MUCH_BYTES = 16 << 20
_TIMES = 4
"""What is above tables is put into them, however few increments, once it has so many bytes and is so many times as
large as they: a restore reads all of it, and of a small state whose rows change again and again it would be most."""


class _StorageAway(Exception):
    """The storage has not taken or given what it was asked: the tables on this disk are as good as before."""

    def __init__(self, error: StorageError) -> None:
        self.error = error


@contextmanager
def _storage_only() -> Iterator[None]:
    try:
        yield
    except LocalDiskError:
        raise
    except StorageError as error:
        raise _StorageAway(error) from error


class TableBuilding:
    """The materializer whose bases are lists of sorted tables.

    A job has one database open, of `OPEN_BYTES`. That is not taken from its share: of what short jobs have together a
    few databases would be all, and each job would wait for more before its first row. The workers bound how many are
    open.

    Args:
        options: of its databases.
        every: so many increments are materialized at once, or more,
        most_bytes: or increments of so many bytes, however few they are. Both are up to a quarter less, by store.
        min_age_ms: after which a collector deletes what no version has referred to.
        broken: tables of the list that a job goes on from are published under new names where they are among these.
    """

    def __init__(
        self,
        files: StoreFiles,
        options: TableOptions,
        every: int,
        min_age_ms: int,
        clock: Clock,
        ids: Ids,
        broken: BrokenPlaces,
        *,
        most_bytes: int,
    ) -> None:
        self._files = files
        self._options = options
        self._every, self._most_bytes, self._much_bytes = (
            spread_over(most, files.identity) for most in (every, most_bytes, _MUCH_BYTES)
        )
        self._min_age_ms = min_age_ms
        self._clock = clock
        self._ids = ids
        self._broken = broken
        self._lock = threading.Lock()
        self._local: LocalTables | None = None

    def is_due(self, references: Sequence[Reference], live_rows: int) -> bool:
        above = mergeable(references)
        size = sum(one.length for one in above)
        if len(above) >= self._every or size >= self._most_bytes or self.needs_rebuild(references):
            return True
        return size >= self._much_bytes and size > _TIMES * sum(one.length for one in tables(references))

    def needs_rebuild(self, references: Sequence[Reference]) -> bool:
        # what a database is made of may be anything that has entries, but tables that are not this store's alone
        return any(one.kind == FILE and (one.union is not None or one.root is not None) for one in references)

    def plan(self, manifest: CommitManifest, references: Sequence[Reference], *, at_once: bool = False) -> Merge | None:
        above, base = mergeable(references), tables(references)
        broken = self._broken_of(base) if at_once else []
        if not (above or broken if at_once else self.is_due(references, 0)):
            return None

        def run(progress: Progress | None, share: Share) -> Compacted:
            with closing(read_sources(self._files, above, manifest.column_families, share)) as entries:
                return self._built(references, base, entries, progress, share)

        return Merge(sum(reference.length for reference in (*above, *broken)), run)

    def _broken_of(self, base: Sequence[Reference]) -> list[Reference]:
        places = self._broken.places
        return [one for one in base if place(one) in places]

    def rebuilt(
        self,
        references: Sequence[Reference],
        batches: Iterator[pa.RecordBatch],
        progress: Progress | None,
        share: Share,
    ) -> Compacted:
        """A list in place of all `references`; `batches` are the entries of their version, newest first."""
        return self._built(references, (), [(False, batches)], progress, share)

    def stamped(self, made: Replacement, worked: Callable[[], None]) -> Replacement | None:
        """See `kept_young`: a list is published under new names from this disk, and is lost where it is not there any
        more; then the next job makes it anew."""
        if not isinstance(made, TableList):
            return None
        list_ = made
        return kept_young(
            list_,
            self._min_age_ms,
            self._clock,
            stamp=lambda: stamp(self._files, list_.new_names(), worked),
            anew=lambda: self._anew(list_, worked),
            copies_young=False,
        )

    def give_up_files(self) -> None:
        with self._lock:
            local, self._local = self._local, None
        if local is not None:
            local.remove()

    def _anew(self, made: TableList, worked: Callable[[], None]) -> TableList | None:
        """The same list with its new tables under other names; None where they are not on this disk any more."""
        manifest, local = made.manifest, self._local
        if local is None:
            return None
        with self._lock:
            published_ms = self._clock.now_ms()
            tables = []
            for table in manifest.tables:
                if table.version == manifest.version:
                    path = str(TableName(self._ids.hex128()))
                    there = local.link(table.path, path)
                    if there is None:
                        return None
                    if publish_table(self._files, there, path, worked) != (table.size, table.sha256):
                        # what is on this disk is not what was made: the next job makes it anew
                        return None
                    table = replace(table, path=path)
                tables.append(table)
            made = self._publish_list(manifest.inputs, manifest.version, tuple(tables), manifest.files, published_ms)
            return self._stamped_at_birth(made, worked)

    def _stamped_at_birth(self, made: TableList, worked: Callable[[], None]) -> TableList:
        names = made.new_names()
        return stamped_at_birth(made, self._min_age_ms, self._clock, lambda: stamp(self._files, names, worked))

    def _built(
        self,
        replaced: Sequence[Reference],
        base: Sequence[Reference],
        sources: Iterable[tuple[bool, Iterator[pa.RecordBatch]]],
        progress: Progress | None,
        share: Share,
    ) -> Compacted:
        """A list in place of `replaced`, of the entries of `sources` (newest first) on top of `base`."""
        total = sum(reference.rows for reference in mergeable(replaced))
        work = Work(total, progress, share)
        # the run that is ingested, and what RocksDB makes of it and the tables that are there
        written = (*mergeable(replaced), *base[1:]) if base else replaced
        require_room(self._files.local_max_bytes, sum(one.length for one in written))
        try:
            merged = work.merged(sources, whole=not base)
            with self._lock:
                if self._local is None:
                    self._local = LocalTables(self._files)
                local, has_all = self._local, False
                try:
                    self._fetch(local, base[1:], share, work.worked)
                    has_all = True
                    list_, rows, counted = self._on_top(local, replaced, base, merged, share, work.worked)
                except _StorageAway as failed:
                    # to fetch the tables anew would be more for a storage in trouble
                    raise failed.error from failed.error.__cause__
                except BaseException as error:
                    # what is wrong may be wrong with them. Where the disk is full it is not: to give up all makes no
                    # room where the JVM has them too, and the next job needs it again; but a part of them is no use
                    if not (has_all and isinstance(error, LocalDiskFull)):
                        self._local = None
                        local.remove()
                    raise
        finally:
            share.close()
        pa.default_memory_pool().release_unused()
        list_ = young(list_, self._min_age_ms, self._clock, lambda: self.stamped(list_, work.worked))

        def in_place(parent: str) -> InPlace:
            made = list_.manifest
            size = sum(table.size for table in made.tables)
            return InPlace(local.hand_out(made, parent), made.version, size, len(made.tables))

        return Compacted(list_, len(replaced), total, rows, in_place, counted)

    @staticmethod
    def _fetch(local: LocalTables, tables: Sequence[Reference], share: Share, worked: Callable[[], None]) -> None:
        """Gets the tables that the job stands on. They are here but in the first job of a store, so that most hold no
        memory for it."""
        if local.absent(tables):
            share.take(FETCH_BYTES)
            with _storage_only():
                local.fetch(tables, lambda _: worked())
            share.give(FETCH_BYTES)

    def _on_top(
        self,
        local: LocalTables,
        replaced: Sequence[Reference],
        base: Sequence[Reference],
        run: Iterator[pa.RecordBatch],
        share: Share,
        worked: Callable[[], None],
    ) -> tuple[TableList, int, dict[str, int]]:
        with _storage_only():
            older = table_list(self._files, base) if base else None
        with local.database(older) as directory:
            with Database(directory, self._options) as database:
                rows = database.ingest(run)
                database.settle(worked)
                database.join(worked)
                counted = database.merged()
            # after its end, since a merge may have begun once more; and nothing is published that cannot be opened
            with Database(directory, read_only=True) as database:
                live = database.live()
            # what was merged is in the tables
            share.give(share.held)
            with _storage_only():
                made = self._published(replaced, older, live, directory, share, worked)
            known = {table.path for table in older.tables} if older else set()
            for table in made.manifest.tables:
                if table.path not in known:
                    local.add(directory, table)
        local.keep(table.path for table in made.manifest.tables)
        return made, rows, counted

    def _published(
        self,
        replaced: Sequence[Reference],
        older: TableListManifest | None,
        live: Sequence[LiveTable],
        directory: str,
        share: Share,
        worked: Callable[[], None],
    ) -> TableList:
        """Publishes what is new of the tables, and then the list of all."""
        version = replaced[0].version
        # a database that goes on from a list gives no name of its tables to another one
        older_tables = {table.name: table for table in older.tables} if older else {}
        broken = {path for root, path, _ in self._broken.places if root is None}
        known = {name: table for name, table in older_tables.items() if table.path not in broken}
        paths = {table.name: str(TableName(self._ids.hex128())) for table in live if table.name not in known}
        uploads = TableUploads(self._files, share, self._clock, self._min_age_ms, worked)
        published = uploads.publish({path: os.path.join(directory, name) for name, path in paths.items()})

        def listed(table: LiveTable) -> Table:
            path = paths[table.name]
            was = older_tables.get(table.name)
            if was is not None and published[path] != (was.size, was.sha256):
                raise LaminaError.from_kind(
                    "file.damaged", f"what this disk has of {self._files.location(was.path)} is, too"
                )
            return Table(table.name, path, *published[path], table.rows, version)

        tables = tuple(known[one.name] if one.name in known else listed(one) for one in live)
        made = self._publish_list(replaced, version, tables, _other_files(directory), uploads.published_ms)
        return self._stamped_at_birth(made, worked)

    def _publish_list(
        self,
        replaced: Sequence[Reference],
        version: int,
        listed: tuple[Table, ...],
        files: Mapping[str, bytes],
        published_ms: int,
    ) -> TableList:
        name = TableListName(version, self._ids.hex128())
        writer = ContainerWriter(TABLE_LIST, Compression())
        written: list[TableListManifest] = []

        def manifest_of(_: tuple[Section, ...], header_crc: int) -> bytes:
            written.append(
                TableListManifest(
                    self._files.identity,
                    name.id,
                    version,
                    header_crc,
                    self._clock.now_ms(),
                    f"lamina {__version__}",
                    listed,
                    files,
                    tuple(replaced),
                )
            )
            return to_bytes(written[0].to_json())

        data = b"".join(writer.chunks((), manifest_of))
        self._files.publish(str(name), [data])
        return TableList(written[0], len(data), checksum(data), published_ms)


def _other_files(directory: str) -> dict[str, bytes]:
    """What a database needs beside its tables: which ones they are."""
    with open(os.path.join(directory, "CURRENT"), "rb") as source:
        current = source.read()
    name = current.decode().strip()
    with open(os.path.join(directory, name), "rb") as source:
        return {"CURRENT": current, name: source.read()}
