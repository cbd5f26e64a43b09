"""Spark's hash partitioning: which partition the key of a state store belongs to, by the bytes of its UnsafeRow.

Spark puts a row into partition pmod(Murmur3(columns, seed 42), partitions). This computes it for all keys of an array
at once, as columns of 32-bit words: a key is a sequence of words, of which each column of the schema takes some.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import LaminaError
from lamina.format.manifest import ColumnFamily

_SEED = 42
_U32 = pa.uint32()
_I64 = pa.int64()

_BYTE, _SHORT, _INT, _LONG, _FLOAT, _DOUBLE, _BYTES = "byte", "short", "int", "long", "float", "double", "bytes"
_KINDS = {
    "boolean": _BYTE,
    "byte": _BYTE,
    "short": _SHORT,
    "integer": _INT,
    "date": _INT,
    "long": _LONG,
    "timestamp": _LONG,
    "timestamp_ntz": _LONG,
    "float": _FLOAT,
    "double": _DOUBLE,
    "string": _BYTES,
    "binary": _BYTES,
}
_DECIMAL = re.compile(r"decimal\((\d+),-?\d+\)")
_LONG_DECIMAL_DIGITS = 18
"""A decimal of at most so many digits is kept, and hashed, as a long; a larger one as the bytes of its number."""

_INTERVALS_OF_MONTHS = ("interval year", "interval month", "interval year to month")
_COLLATIONS = "__COLLATIONS"

_NO_ROW = "a key is no row of its schema"


def partitions_of(keys: pa.BinaryArray, family: ColumnFamily, partitions: int) -> pa.Array:
    """The partition of each key of a column family, as Spark's operators put them.

    Raises:
        LaminaError: `store.unsupported` where the partition of such a key is not known here.
        ValueError: where a key does not fit its schema.
    """
    fields, columns = _partitioning_columns(family)
    rows = len(keys)
    if not rows:
        return pa.array([], _I64)
    if not columns:
        # all rows of an operator without keys are there; of a row without columns there are no bytes
        return pa.repeat(pa.scalar(0, _I64), rows)
    offsets = pa.Array.from_buffers(pa.int32(), rows + 1, [None, keys.buffers()[1]], offset=keys.offset)
    first, last = offsets[0].as_py(), offsets[rows].as_py()
    if last == first or pc.any(pc.not_equal(pc.bit_wise_and(pc.subtract(offsets, first), 7), 0)).as_py():
        raise ValueError(_NO_ROW)
    words = pa.Array.from_buffers(_U32, (last - first) // 4, [None, keys.buffers()[2].slice(first, last - first)])
    bounds = pc.divide(pc.subtract(pc.cast(offsets, _I64), first), 4)
    hashes = _row_hash(words, bounds.slice(0, rows), bounds.slice(1), fields, columns, _filled(_SEED, rows))
    signed = pc.cast(hashes, _I64)
    signed = pc.subtract(signed, pc.multiply(pc.shift_right(signed, 31), 1 << 32))
    # division is towards zero
    rest = pc.subtract(signed, pc.multiply(pc.divide(signed, partitions), partitions))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, partitions), rest)


def _partitioning_columns(family: ColumnFamily) -> tuple[Sequence[Mapping[str, Any]], int]:
    """The fields of a key, and how many of the first ones its partition follows from."""
    said = family.description
    rule = said.get("partition_key") or {}
    kind, columns = rule.get("kind"), int(rule.get("columns", 0))
    if said.get("key_bytes") != "row" or kind not in ("key", "prefix", "drop-last"):
        raise _unknown(family, f"its keys are {said.get('key_bytes')!r} bytes, and their rule is {kind!r}")
    fields = json.loads(said["key_schema"])["fields"]
    used = {"key": len(fields), "prefix": columns, "drop-last": len(fields) - columns}[kind]
    for field in fields[:used]:
        if not _is_known(field):
            raise _unknown(family, f"it has a key of type {field['type']!r}")
    return fields, used


def _is_known(field: Mapping[str, Any]) -> bool:
    if inner := _struct(field):
        return all(map(_is_known, inner))
    return _kind(field) is not None and _COLLATIONS not in (field.get("metadata") or {})


def _struct(field: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The fields of a column that is a struct; none of another."""
    kind = field["type"]
    return kind["fields"] if isinstance(kind, dict) and kind.get("type") == "struct" else ()


def _kind(field: Mapping[str, Any]) -> str | None:
    named = field["type"] if isinstance(field["type"], str) else ""
    if match := _DECIMAL.fullmatch(named):
        return _LONG if int(match[1]) <= _LONG_DECIMAL_DIGITS else _BYTES
    if named.startswith("interval "):
        return _INT if named in _INTERVALS_OF_MONTHS else _LONG
    return _KINDS.get(named)


def _unknown(family: ColumnFamily, reason: str) -> LaminaError:
    return LaminaError.from_kind(
        "store.unsupported",
        f"which partition a key of column family {family.name!r} belongs to is not known here: {reason}",
    )


def _row_hash(
    words: pa.Array,
    starts: pa.Array,
    ends: pa.Array,
    fields: Sequence[Mapping[str, Any]],
    columns: int,
    seeds: pa.Array,
) -> pa.Array:
    """The hash of the first `columns` of rows that begin at the words `starts`; a column that is null leaves it.

    Args:
        ends: the words behind the keys that the rows are in.
    """
    slots = 2 * -(-len(fields) // 64)
    _require_within(pc.add(starts, slots + 2 * len(fields)), ends)
    for ordinal, field in enumerate(fields[:columns]):
        bits = words.take(pc.add(starts, ordinal // 32))
        there = pc.equal(pc.bit_wise_and(bits, pa.scalar(1 << ordinal % 32, _U32)), pa.scalar(0, _U32))
        at, behind, hashes = starts.filter(there), ends.filter(there), seeds.filter(there)
        slot = pc.add(at, slots + 2 * ordinal)
        low, high = words.take(slot), words.take(pc.add(slot, 1))
        if inner := _struct(field):
            hashed = _row_hash(words, pc.add(at, _words(high)), behind, inner, len(inner), hashes)
        else:
            hashed = _value_hash(words, _kind(field), at, behind, low, high, hashes)
        seeds = pc.replace_with_mask(seeds, there, hashed)
    return seeds


def _require_within(behind: pa.Array, ends: pa.Array) -> None:
    """Raises where what ends before the words `behind` does not end with its key."""
    if pc.any(pc.greater(behind, ends)).as_py():
        raise ValueError(_NO_ROW)


def _value_hash(
    words: pa.Array,
    kind: str | None,
    starts: pa.Array,
    ends: pa.Array,
    low: pa.Array,
    high: pa.Array,
    seeds: pa.Array,
) -> pa.Array:
    """The hash of values whose slots in their rows hold `low` and `high`."""
    if kind == _BYTES:
        at = pc.add(starts, _words(high))
        _require_within(pc.add(at, _words(pc.add(pc.cast(low, _I64), 3))), ends)
        return _bytes_hash(words, at, low, seeds)
    if kind in (_LONG, _DOUBLE):
        if kind == _DOUBLE:
            low, high = _normal_double(low, high)
        return _finished(_mixed(_mixed(seeds, low), high), _filled(8, len(seeds)))
    if kind == _FLOAT:
        low = _normal_float(low)
    elif kind != _INT:
        low = _sign_extended(low, 8 if kind == _BYTE else 16)
    return _finished(_mixed(seeds, low), _filled(4, len(seeds)))


def _bytes_hash(words: pa.Array, starts: pa.Array, sizes: pa.Array, seeds: pa.Array) -> pa.Array:
    """The hash of bytes: each four of them as a word, then each that is left as a word of its own."""
    counts = pc.divide(sizes, pa.scalar(4, _U32))
    # longest first: those that still have words are always the first ones
    order = pc.array_sort_indices(counts, order="descending")
    at, hashes, ended = starts.take(order), seeds.take(order), []
    ends = {one["values"]: one["counts"] for one in pc.value_counts(counts).to_pylist()}
    for number in range(max(ends, default=-1) + 1):
        left = len(hashes) - ends.get(number, 0)
        ended.append(hashes.slice(left))
        hashes, at = hashes.slice(0, left), at.slice(0, left)
        if left:
            hashes = _mixed(hashes, words.take(pc.add(at, number)))
    hashed = pa.concat_arrays([hashes, *reversed(ended)]).take(pc.array_sort_indices(order))
    left_over = pc.subtract(sizes, pc.multiply(counts, pa.scalar(4, _U32)))
    # of bytes without any left over, which may end with the last word, the word is not used
    behind = pc.min_element_wise(pc.add(starts, pc.cast(counts, _I64)), len(words) - 1)
    word = words.take(behind)
    for number in range(3):
        byte = _sign_extended(pc.shift_right(word, pa.scalar(8 * number, _U32)), 8)
        is_there = pc.greater(left_over, pa.scalar(number, _U32))
        hashed = pc.if_else(is_there, _mixed(hashed, byte), hashed)
    return _finished(hashed, sizes)


def _words(offset_bytes: pa.Array) -> pa.Array:
    return pc.divide(pc.cast(offset_bytes, _I64), 4)


def _filled(value: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, _U32), rows)


def _rotated(words: pa.Array, bits: int) -> pa.Array:
    left = pc.shift_left(words, pa.scalar(bits, _U32))
    return pc.bit_wise_or(left, pc.shift_right(words, pa.scalar(32 - bits, _U32)))


def _times(words: pa.Array, factor: int) -> pa.Array:
    """Modulo 2^32."""
    return pc.multiply(words, pa.scalar(factor, _U32))


def _mixed(hashes: pa.Array, words: pa.Array) -> pa.Array:
    word = _times(_rotated(_times(words, 0xCC9E2D51), 15), 0x1B873593)
    return pc.add(_times(_rotated(pc.bit_wise_xor(hashes, word), 13), 5), pa.scalar(0xE6546B64, _U32))


def _finished(hashes: pa.Array, sizes: pa.Array) -> pa.Array:
    hashes = pc.bit_wise_xor(hashes, sizes)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashes = _times(pc.bit_wise_xor(hashes, pc.shift_right(hashes, pa.scalar(shift, _U32))), factor)
    return hashes


def _sign_extended(words: pa.Array, bits: int) -> pa.Array:
    """The lowest bits of words as numbers of 32 bits."""
    sign = pa.scalar(1 << (bits - 1), _U32)
    value = pc.bit_wise_and(words, pa.scalar((1 << bits) - 1, _U32))
    return pc.subtract(pc.bit_wise_xor(value, sign), sign)


def _normal_float(bits: pa.Array) -> pa.Array:
    """Zero without a sign, and one NaN."""
    zero = pc.equal(_times(bits, 2), pa.scalar(0, _U32))
    no_number = pc.greater(_times(bits, 2), pa.scalar(0xFF000000, _U32))
    bits = pc.if_else(zero, pa.scalar(0, _U32), bits)
    return pc.if_else(no_number, pa.scalar(0x7FC00000, _U32), bits)


def _normal_double(low: pa.Array, high: pa.Array) -> tuple[pa.Array, pa.Array]:
    exponent = _times(high, 2)
    zero = pc.equal(pc.bit_wise_or(exponent, low), pa.scalar(0, _U32))
    infinite = pa.scalar(0xFFE00000, _U32)
    fraction = pc.not_equal(low, pa.scalar(0, _U32))
    no_number = pc.or_(pc.greater(exponent, infinite), pc.and_(pc.equal(exponent, infinite), fraction))
    high = pc.if_else(zero, pa.scalar(0, _U32), high)
    low, high = pc.if_else(no_number, pa.scalar(0, _U32), low), pc.if_else(no_number, pa.scalar(0x7FF80000, _U32), high)
    return low, high
