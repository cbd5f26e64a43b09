"""What of a chain of a union belongs to a version: some column families, under other ids, and keys of one partition."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import LaminaError
from lamina.format import container
from lamina.format.entries import SCHEMA
from lamina.format.manifest import ColumnFamily, UnionMember
from lamina.format.partitioning import partitions_of


def selected(
    entries: pa.RecordBatch, member: UnionMember | None, families: Sequence[ColumnFamily], where: str
) -> pa.RecordBatch:
    """The entries that belong to the version of a manifest, in their order; where there is a filter, family by family.

    Args:
        member: of the reference that they are of; None selects all.
        families: of the manifest. Where there is a filter, entries of others are left out: the family was dropped.
        where: how their file is named to people.
    Raises:
        LaminaError: `store.unsupported` where the partition of a key is not known, `file.damaged`.
    """
    if member is None or not entries.num_rows:
        return entries
    if member.families is not None:
        entries = _renumbered(entries, member.families)
    if member.filter is None:
        return entries
    present = pc.unique(entries.column(0)).to_pylist()
    kept = []
    for family in sorted(families, key=lambda family: family.id):
        if family.id in present:
            own = entries.filter(pc.equal(entries.column(0), pa.scalar(family.id, pa.uint16())))
            try:
                partitions = partitions_of(own.column(2), family, member.filter.partitions)
            except ValueError as error:
                raise container.damaged(where, str(error)) from error
            except LaminaError as error:
                raise LaminaError.from_kind(error.kind, f"{where}: {error.message}") from error
            kept.append(own.filter(pc.equal(partitions, member.filter.partition)))
    if not kept:
        return entries.slice(0, 0)
    columns = [pa.concat_arrays([batch.column(index) for batch in kept]) for index in range(len(SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _renumbered(entries: pa.RecordBatch, families: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    places = pc.index_in(entries.column(0), pa.array([theirs for theirs, _ in families], pa.uint16()))
    there = pc.is_valid(places)
    ids = pa.array([ours for _, ours in families], pa.uint16()).take(places.filter(there))
    return pa.RecordBatch.from_arrays([ids, *entries.filter(there).columns[1:]], schema=SCHEMA)
