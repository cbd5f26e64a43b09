"""Spark's state schema files: `<store>/_metadata/schema` (v1, v2) and `state/<operator>/_stateSchema/…` (v3).

They are written with Java's DataOutputStream: numbers are big-endian, text is `writeUTF`, two bytes of length and
"modified UTF-8" (the character 0 in two bytes, characters beyond the basic plane as two surrogates of three bytes
each). From v2 on JSON texts are split into chunks, since writeUTF ends at 65,535 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina.checkpoint.reading import checked_version, damaged, member, parsed_object
from lamina.errors import FileError

STATE_SCHEMA_NEWEST = 3

DEFAULT_COLUMN_FAMILY = "default"

ENCODER_SPECS = frozenset(
    {
        "NoPrefixKeyStateEncoderSpec",
        "PrefixKeyScanStateEncoderSpec",
        "RangeKeyScanStateEncoderSpec",
        "TimestampAsPrefixKeyStateEncoderSpec",
        "TimestampAsPostfixKeyStateEncoderSpec",
    }
)


@dataclass(frozen=True)
class ColumnFamilySchema:
    """The schemas of one column family, as the JSON of Spark's StructType.

    Args:
        encoder: how keys are encoded (`KeyStateEncoderSpec.json`); None below v3, which does not record it.
        user_key_schema: the schema of a map state's user key, None for other families.
    """

    name: str
    key_schema_id: int
    key_schema: Mapping[str, Any]
    value_schema_id: int
    value_schema: Mapping[str, Any]
    encoder: Mapping[str, Any] | None
    user_key_schema: Mapping[str, Any] | None


@dataclass(frozen=True)
class StateSchema:
    """One schema file: the column families of one store."""

    version: int
    column_families: tuple[ColumnFamilySchema, ...]


def parse_state_schema(path: str, data: bytes) -> StateSchema:
    """Reads one schema file. Raises FileError naming `path`."""
    reader = _JavaReader(path, data)
    version = checked_version(path, reader.utf(), STATE_SCHEMA_NEWEST)
    if version == 3:
        families = tuple(_family(reader) for _ in range(reader.count()))
    else:
        text = reader.utf if version == 1 else reader.chunked
        key, value = _struct(path, text()), _struct(path, text())
        families = (ColumnFamilySchema(DEFAULT_COLUMN_FAMILY, 0, key, 0, value, None, None),)
    reader.end()
    return StateSchema(version, families)


def _family(reader: _JavaReader) -> ColumnFamilySchema:
    path = reader.path
    name = reader.utf()
    key_schema_id, key_schema = reader.number(), _struct(path, reader.chunked())
    value_schema_id, value_schema = reader.number(), _struct(path, reader.chunked())
    encoder = parsed_object(path, reader.chunked())
    kind = member(path, encoder, "keyStateEncoderType", str)
    if kind not in ENCODER_SPECS:
        raise FileError(
            "file.version",
            f"{path}: column family {name} has the key encoder {kind!r}, which this release of lamina does not know; "
            "upgrade lamina",
        )
    user_key = parsed_object(path, reader.chunked())
    return ColumnFamilySchema(
        name, key_schema_id, key_schema, value_schema_id, value_schema, encoder, user_key if user_key else None
    )


def _struct(path: str, text: str) -> dict[str, Any]:
    value = parsed_object(path, text)
    if value.get("type") != "struct" or not isinstance(value.get("fields"), list):
        damaged(path, f"should hold the JSON of a StructType, found {text[:40]!r}")
    return value


class _JavaReader:
    """What java.io.DataInputStream reads, from bytes; whatever goes beyond the end means a damaged file."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data
        self._at = 0

    def utf(self) -> str:
        return _joined_surrogates(self.path, self._utf_units())

    def chunked(self) -> str:
        # a chunk may end between the two surrogates of one character
        return _joined_surrogates(self.path, "".join(self._utf_units() for _ in range(self.count())))

    def number(self) -> int:
        return int(struct.unpack(">h", self._take(2))[0])

    def count(self) -> int:
        value = int(struct.unpack(">i", self._take(4))[0])
        if value < 0:
            damaged(self.path, f"has a count of {value}")
        return value

    def end(self) -> None:
        if self._at != len(self._data):
            damaged(self.path, f"has {len(self._data) - self._at} bytes behind its end")

    def _utf_units(self) -> str:
        raw = self._take(struct.unpack(">H", self._take(2))[0])
        try:
            return raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            damaged(self.path, f"not Java's modified UTF-8: {error}")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            damaged(self.path, "ends too early")
        self._at += count
        return taken


def _joined_surrogates(path: str, units: str) -> str:
    try:
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        damaged(path, f"not Java's modified UTF-8: {error}")
