"""Entries of a base that is a list of sorted tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format import container
from lamina.format.manifest import FILE, ColumnFamily, Reference
from lamina.format.paths import TableListName, directory_and_name, parse_name
from lamina.format.table_list import TableListManifest
from lamina.store.files.selection import selected
from lamina.store.files.store_files import StoreFiles
from lamina.store.model import InPlace
from lamina.store.tables.database import Database, require
from lamina.store.tables.local import LocalTables


def is_table_list(reference: Reference) -> bool:
    """Whether a reference is to a list of tables."""
    return isinstance(parse_name(directory_and_name(reference.path or "")[1]), TableListName)


def of_list(chain: Sequence[Reference], first: Reference) -> list[Reference]:
    """The references of a chain that are of one list of tables, which is `first`."""
    return [reference for reference in chain if reference.kind == FILE and reference.union == first.union]


def table_list(files: StoreFiles, base: Sequence[Reference]) -> TableListManifest:
    """The list that references to whole files begin with; all others are its tables.

    Raises:
        LaminaError: `file.*` naming the file; `store.unsupported` where they are of another backend.
    """
    reference = base[0]
    where = files.place(reference)
    name = parse_name(directory_and_name(reference.path or "")[1])
    if not isinstance(name, TableListName):
        raise LaminaError.from_kind("store.unsupported", f"{where} is no file that this release knows how to restore")
    data = files.whole(reference, lambda: b"".join(files.read_file(reference)))
    manifest = container.verify(data, where)
    if not isinstance(manifest, TableListManifest):
        raise container.damaged(where, "it is no list of tables")
    if (manifest.store, manifest.list) != (reference.origin, name.id):
        raise LaminaError.from_kind(
            "file.identity",
            f"{where} is not what its name says: it is list {manifest.list} of {manifest.store}, and one of "
            f"{reference.origin} was expected",
        )
    listed = {(table.path, table.size, table.sha256) for table in manifest.tables}
    if {(directory_and_name(one.path or "")[1], one.size, one.sha256) for one in base[1:]} != listed:
        raise container.damaged(where, "its tables are not those that are referred to beside it")
    return manifest


class TableReader:
    """Reads a base; `failed` is the reference that could not be read, once one could not.

    Args:
        check: called between tables that are fetched; what it raises ends the work.
        more: see `LocalTables.fetch`.
    """

    def __init__(
        self,
        files: StoreFiles,
        base: Sequence[Reference],
        check: Callable[[], None] = lambda: None,
        more: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._files = files
        self._base = base
        self._check = check
        self._more = more
        self.failed = base[0]

    def entries(self, families: Sequence[ColumnFamily]) -> Iterator[pa.RecordBatch]:
        """What belongs to the version, as puts, sorted by (column family, key) of the base."""
        first = self._base[0]
        where = self._files.place(first)
        with self._fetched() as (manifest, local):
            with local.database(manifest) as directory, Database(directory, read_only=True) as database:
                for batch in database.entries():
                    yield selected(batch, first.union, families, where)

    def in_place(self) -> InPlace:
        """The database in a local directory, which is the caller's to remove."""
        first, *tables = self._base
        with self._fetched() as (manifest, local):
            size = sum(one.length for one in tables)
            return InPlace(local.hand_out(manifest), first.end, size, len(tables), fetched=local.fetched)

    @contextlib.contextmanager
    def _fetched(self) -> Iterator[tuple[TableListManifest, LocalTables]]:
        require()
        manifest = table_list(self._files, self._base)
        local = LocalTables(self._files)
        try:
            local.fetch(self._base[1:], self._waits_for, self._more)
            self.failed = self._base[0]
            yield manifest, local
        finally:
            local.remove()

    def _waits_for(self, reference: Reference) -> None:
        self._check()
        self.failed = reference
