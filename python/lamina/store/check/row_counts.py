"""Counts the rows of many versions in one pass over their files.

Versions are counted together as long as each stands on the one before it and brings its changes only. Their files are
merged once: those of the oldest version, and of each version after it those that it brought. What is merged are not the
values but events, so that of each key comes out at which versions it was there: the row count of a version is that of
the version before it, with the keys that came and without those that went.

A version that brings a snapshot is counted by that, and the newest one by all its files too, as a restore reads them.
"""

from __future__ import annotations

import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext

import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import LaminaError
from lamina.format.entries import APPEND, DELETE, PUT, SCHEMA
from lamina.format.manifest import FILE, SNAPSHOT, Reference
from lamina.store.check.manifests import AT_ONCE
from lamina.store.check.places import Place, place_of
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.materialization.merging import Merger
from lamina.store.materialization.sources import read_sources
from lamina.store.memory.budget import unbounded
from lamina.store.tables.reading import TableReader, is_table_list, of_list

_EVENT = struct.Struct("<i")
"""Of one key at one version: 2 · the version's place among those counted together, + 1 where the key is there."""

Rows = Counter[int]
"""Rows by column family."""


_on_tables = threading.BoundedSemaphore(2)
"""Counting a version fetches all of its tables to the local disk: of so many stores at once."""


class CannotCount(Exception):
    """A file by which the versions of a group are counted together cannot be read."""

    def __init__(self, error: LaminaError, place: Place, group: Sequence[Opened]) -> None:
        super().__init__(str(error))
        self.error = error
        self.place = place
        self.group = group


def together(versions: Sequence[Opened]) -> list[Sequence[Opened]]:
    """`versions`, oldest first, in groups that are counted together."""
    groups: list[list[Opened]] = []
    for opened in versions:
        base = opened.manifest.base
        before = groups[-1][-1].manifest.attempt if groups else None
        whole = any(reference.kind == SNAPSHOT for reference in _brought(opened))
        if base is not None and base.attempt == before and not whole:
            groups[-1].append(opened)
        else:
            groups.append([opened])
    alone = [groups[-1][-1:]] if groups and len(groups[-1]) > 1 else []
    return [*groups, *alone]


def size(group: Sequence[Opened]) -> int:
    """Bytes of the sections that counting a group reads."""
    return sum(reference.length for _, reference in _needed(group))


def counted(files: StoreFiles, group: Sequence[Opened], read: Callable[[int], None]) -> list[Rows]:
    """The rows of each version of a group of `together`.

    Args:
        read: called with the length of each section that was read.
    Raises:
        CannotCount: where a file cannot be read.
    """
    on_tables = any(is_table_list(reference) for _, reference in _needed(group))
    with _on_tables if on_tables else nullcontext():
        return _counted(files, group, read)


def _counted(files: StoreFiles, group: Sequence[Opened], read: Callable[[int], None]) -> list[Rows]:
    changes: list[Rows] = [Counter() for _ in group]
    needed = [*_needed(group)]
    sections = [reference for _, reference in needed if reference.kind != FILE]
    families = group[0].manifest.column_families
    with closing(read_sources(files, sections, families, unbounded(), AT_ONCE)) as sources:
        inputs = (
            (
                reference.is_sorted,
                _events(files, group, place, reference, read, None if reference.kind == FILE else next(sources)[1]),
            )
            for place, reference in needed
        )
        for batch in Merger(_temporary()).merged(inputs, whole=True):
            for family, place, change in _changes(batch):
                changes[place][family] += change
    for before, after in zip(changes, changes[1:], strict=False):
        after.update(before)
    return changes


def _temporary() -> str:
    """Where the merge keeps what it has no memory for.

    Raises:
        LaminaError: `storage.failed` where there is no such place.
    """
    try:
        return tempfile.gettempdir()
    except OSError as error:
        raise LaminaError.from_kind(
            "storage.failed", f"rows cannot be counted without a directory for temporary files: {error}; set TMPDIR"
        ) from error


def _needed(group: Sequence[Opened]) -> Iterator[tuple[int, Reference]]:
    """The references to merge, newest first, each with the place in the group of the version that it belongs to; of a
    list of tables the list alone."""
    for place in reversed(range(len(group))):
        for reference in _brought(group[place]) if place else group[place].references:
            if reference.kind != FILE or is_table_list(reference):
                yield place, reference


def _brought(opened: Opened) -> list[Reference]:
    """The references to a commit's own file."""
    return [opened.placed(one) for one in opened.manifest.references if one.path is None]


def _events(
    files: StoreFiles,
    group: Sequence[Opened],
    place: int,
    reference: Reference,
    read: Callable[[int], None],
    entries: Iterator[pa.RecordBatch] | None,
) -> Iterator[pa.RecordBatch]:
    """The entries of a section with events as values, which append: a merge keeps them all, oldest first.

    Of the first version only the newest event of a key counts, whatever its files did before.

    Args:
        entries: of the section; None of a list of tables.
    """
    there, gone = (pa.scalar(_EVENT.pack(2 * place + present), pa.binary()) for present in (1, 0))
    op = pa.scalar(APPEND if place else PUT, pa.uint8())
    reader = None
    try:
        if entries is None:
            reader = TableReader(files, of_list(group[0].references, reference))
            entries = reader.entries(group[0].manifest.column_families)
        for batch in entries:
            values = pc.if_else(pc.equal(batch.column(1), pa.scalar(DELETE, pa.uint8())), gone, there)
            columns = [batch.column(0), pa.repeat(op, batch.num_rows), batch.column(2), values]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    except LaminaError as error:
        raise CannotCount(error, place_of(reference if reader is None else reader.failed), group) from error
    read(reference.length)


def _changes(batch: pa.RecordBatch) -> Iterator[tuple[int, int, int]]:
    """Column family, place, and how many more rows the family has there than one place before."""
    values = batch.column(3)
    offsets = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, values.buffers()[1]], offset=values.offset)
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    data = values.buffers()[2].slice(start, end - start)
    events = pa.Array.from_buffers(pa.int32(), data.size // _EVENT.size, [None, data])
    starts = pc.cast(pc.divide(pc.subtract(offsets, start), _EVENT.size), pa.int32())
    key = pc.list_parent_indices(pa.ListArray.from_arrays(starts, events))
    present = pc.cast(pc.bit_wise_and(events, 1), pa.int32())
    # before its first event a key is not there
    before = pa.concat_arrays([pa.array([0], pa.int32()), present[:-1]])
    same = pa.concat_arrays([pa.array([False]), pc.equal(key[1:], key[:-1])])
    change = pc.subtract(present, pc.if_else(same, before, pa.scalar(0, pa.int32())))
    table = pa.table(
        [batch.column(0).take(key), pc.shift_right(events, 1), change], names=["family", "place", "change"]
    )
    for row in table.group_by(["family", "place"]).aggregate([("change", "sum")]).to_pylist():
        yield row["family"], row["place"], row["change_sum"]


def said(counts: Mapping[int, int]) -> str:
    """Rows by column family, for people."""
    parts = [f"{rows:,} rows in column family {family}" for family, rows in sorted(counts.items())]
    return " and ".join(parts) or "no rows"
