"""The dictionary that the state machine holds a store against: rows by (family, key), and what changes make of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import pyarrow as pa

from lamina.format.entries import APPEND, DELETE, SCHEMA
from lamina.format.manifest import ColumnFamily, Count

VALUES_FAMILY, LISTS_FAMILY = 0, 1
FAMILIES = (
    ColumnFamily(VALUES_FAMILY, "values", {"multi_value": False}),
    ColumnFamily(LISTS_FAMILY, "lists", {"multi_value": True}),
)
LENGTH = struct.Struct("<I")

Position = tuple[int, bytes]
Rows = dict[Position, bytes]
Changes = dict[Position, tuple[int, bytes]]


def applied(rows: Rows, changes: Mapping[Position, tuple[int, bytes]]) -> Rows:
    """What `changes` make of `rows`."""
    after = dict(rows)
    for position, (op, value) in changes.items():
        if op == DELETE:
            after.pop(position, None)
        else:
            after[position] = after.get(position, b"") + value if op == APPEND else value
    return after


def batch_of(rows: Iterable[tuple[int, bytes, int, bytes]]) -> pa.RecordBatch:
    """Entries from (family, key, op, value)."""
    listed = [(family, op, key, value) for family, key, op, value in rows]
    columns = [[row[index] for row in listed] for index in range(4)]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def counts(rows: Rows) -> dict[int, Count]:
    """Rows and bytes per column family."""
    found = {family.id: (0, 0) for family in FAMILIES}
    for (family, key), value in rows.items():
        number, size = found[family]
        found[family] = (number + 1, size + len(key) + len(value))
    return {family: Count(number, size) for family, (number, size) in found.items()}
