"""Folding: entries sorted by (cf, key), each key once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lamina.format.entries import APPEND, DELETE, PUT, SCHEMA, has_appends


def fold(entries: pa.RecordBatch, *, whole: bool) -> pa.RecordBatch:
    """Each key once, sorted by (cf, key).

    Args:
        entries: sorted by (cf, key); of equal keys the newest comes first.
        whole: nothing is older: deletes are dropped, and an append is a put.
    """
    if has_appends(entries):
        folded = _fold_appends(entries)
    else:
        heads = _heads(entries)
        folded = entries if pc.all(heads).as_py() else entries.filter(heads)
    if not whole or not folded.num_rows:
        return folded
    live = folded.filter(pc.not_equal(folded.column(1), pa.scalar(DELETE, pa.uint8())))
    puts = pa.repeat(pa.scalar(PUT, pa.uint8()), live.num_rows)
    return pa.RecordBatch.from_arrays([live.column(0), puts, live.column(2), live.column(3)], schema=SCHEMA)


def _heads(entries: pa.RecordBatch) -> pa.Array:
    """Whether a row is the first of its key."""
    rows = entries.num_rows
    if rows == 0:
        return pa.array([], pa.bool_())
    changed = pc.not_equal(entries.column(2).slice(1), entries.column(2).slice(0, rows - 1))
    families = entries.column(0)
    if families[0] != families[rows - 1]:
        changed = pc.or_(changed, pc.not_equal(families.slice(1), families.slice(0, rows - 1)))
    return pa.concat_arrays([pa.array([True]), changed])


def _fold_appends(entries: pa.RecordBatch) -> pa.RecordBatch:
    """Folds where there are appends: the newest put or delete, and the appends after it behind it, oldest first."""
    heads = _heads(entries)
    group = pc.cumulative_sum(pc.cast(heads, pa.int64()))
    deciding = pc.cast(pc.not_equal(entries.column(1), pa.scalar(APPEND, pa.uint8())), pa.int64())
    # puts and deletes of all keys before a row; a row counts while its own key has had none
    before = pc.subtract(pc.cumulative_sum(deciding), deciding)
    at_head = pc.take(pc.filter(before, heads), pc.subtract(group, 1))
    counts = pc.equal(before, at_head)
    kept = entries.filter(counts)
    rows = kept.num_rows
    backwards = kept.take(pa.array(range(rows - 1, -1, -1), pa.int64()))
    # oldest first now: the first row of a key decides, and the values of all its rows are joined in this order
    first = _heads(backwards)
    starts = pc.indices_nonzero(first)
    offsets = pa.concat_arrays([pc.cast(starts, pa.int32()), pa.array([rows], pa.int32())])
    values = pc.binary_join(pa.ListArray.from_arrays(offsets, backwards.column(3)), pa.scalar(b"", pa.binary()))
    alone = pc.equal(pc.subtract(offsets.slice(1), offsets.slice(0, len(starts))), 1)
    ops = pc.filter(backwards.column(1), first)
    revived = pc.and_(pc.equal(ops, pa.scalar(DELETE, pa.uint8())), pc.invert(alone))
    ops = pc.if_else(revived, pa.scalar(PUT, pa.uint8()), ops)
    folded = pa.RecordBatch.from_arrays(
        [pc.filter(backwards.column(0), first), ops, pc.filter(backwards.column(2), first), values], schema=SCHEMA
    )
    return folded.take(pa.array(range(folded.num_rows - 1, -1, -1), pa.int64()))


def sort(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The entries of `batches` by (cf, key); of equal keys those of earlier batches first."""
    entries = combined(batches)
    families = pc.min_max(entries.column(0)).as_py()
    if families["min"] == families["max"]:
        order = pc.array_sort_indices(entries.column(2))
    else:
        order = pc.sort_indices(
            pa.table([entries.column(0), entries.column(2)], names=["cf", "key"]),
            sort_keys=[("cf", "ascending"), ("key", "ascending")],
        )
    return entries.take(order)


def combined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """`batches` as one."""
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(len(SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
