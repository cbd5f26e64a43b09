"""Rows of a store in Python: how entries add up to them, and what a commit makes of changes."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format.entries import APPEND, DELETE, MAX_BATCH_BYTES, PUT, SCHEMA
from lamina.format.manifest import ColumnFamily, Count, Part
from lamina.store.model import Begin, Version

DEFAULT_FAMILY = "default"

Value = bytes | list[bytes]

_LENGTH = struct.Struct("<I")


def encoded_element(element: bytes) -> bytes:
    """An element of a list as values hold it."""
    return _LENGTH.pack(len(element)) + element


def part_of(begin: Begin) -> Part | None:
    """What the rewrite of a commit covers by the hash of `in_part`; None where it brings none."""
    return None if begin.rewrite is None else Part(*begin.rewrite, "crc32")


def in_part(rows: Mapping[tuple[int, bytes], bytes], part: Part) -> dict[tuple[int, bytes], bytes]:
    """The rows whose keys the hash of this module puts into `part`."""
    return {position: value for position, value in rows.items() if zlib.crc32(position[1]) % part.parts == part.part}


def newest_first(batches: Iterable[pa.RecordBatch]) -> dict[tuple[int, bytes], bytes]:
    """The state that entries in the order of a restore add up to, by (column family id, key)."""
    rows: dict[tuple[int, bytes], bytes] = {}
    pending: dict[tuple[int, bytes], bytes] = {}
    decided: set[tuple[int, bytes]] = set()
    for batch in batches:
        columns = [batch.column(index).to_pylist() for index in range(4)]
        for family, op, key, value in zip(*columns, strict=True):
            position = (family, key)
            if position in decided:
                continue
            if op == APPEND:
                pending[position] = value + pending.get(position, b"")
                continue
            decided.add(position)
            newer = pending.pop(position, None)
            if op == PUT:
                rows[position] = value + (newer or b"")
            elif newer is not None:
                rows[position] = newer
    return {**rows, **pending}


FAMILY_OF_BYTES: Mapping[str, Any] = {
    "internal": False,
    "key_schema": None,
    "value_schema": None,
    "encoder": None,
    "encoding": "bytes",
    "row_checksum": False,
    "key_bytes": "bytes",
    "value_bytes": "bytes",
    "partition_key": {"kind": "unknown"},
}


def applied(base: bytes | None, op: int, value: bytes) -> bytes | None:
    if op == DELETE:
        return None
    return (base or b"") + value if op == APPEND else value


def shown(family: ColumnFamily, value: bytes) -> Value:
    if not family.multi_value:
        return value
    elements = []
    offset = 0
    while offset < len(value):
        (length,) = _LENGTH.unpack_from(value, offset)
        offset += _LENGTH.size
        elements.append(value[offset : offset + length])
        offset += length
    return elements


def batches_of(entries: Iterable[tuple[int, bytes, int, bytes]]) -> Iterator[pa.RecordBatch]:
    """The entries of a section, (column family id, key, operation, value) each, in batches that Arrow can hold: of at
    most `MAX_BATCH_BYTES` of keys and values, unless a single entry is larger."""
    rows: list[tuple[int, bytes, int, bytes]] = []
    batch_bytes = 0
    for row in entries:
        entry_bytes = len(row[1]) + len(row[3])
        if rows and batch_bytes + entry_bytes > MAX_BATCH_BYTES:
            yield _batch_of(rows)
            rows, batch_bytes = [], 0
        rows.append(row)
        batch_bytes += entry_bytes
    if rows:
        yield _batch_of(rows)


def _batch_of(rows: Sequence[tuple[int, bytes, int, bytes]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.uint16()),
            pa.array([row[2] for row in rows], pa.uint8()),
            pa.array([row[1] for row in rows], pa.binary()),
            pa.array([row[3] for row in rows], pa.binary()),
        ],
        schema=SCHEMA,
    )


def changed_in(
    rows: dict[tuple[int, bytes], bytes], changed: Mapping[tuple[int, bytes], bytes | None]
) -> dict[tuple[int, bytes], bytes]:
    """`rows` itself, with the new values in it; None removes a row."""
    for position, value in changed.items():
        if value is None:
            rows.pop(position, None)
        else:
            rows[position] = value
    return rows


def check_counts(rows: Mapping[tuple[int, bytes], bytes], counts: Mapping[int, Count], version: Version) -> None:
    """Raises `file.damaged` where other rows were restored than the manifest counts."""
    found = Counter(family for family, _ in rows)
    for family, count in counts.items():
        if found[family] != count.rows:
            raise LaminaError.from_kind(
                "file.damaged",
                f"the manifest of {version} says that it has {count.rows} rows in column family {family}, and "
                f"restoring it gave {found[family]}; its files do not make it up (lamina fsck says more)",
            )
