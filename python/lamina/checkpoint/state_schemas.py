"""Spark's state schema files: `<store>/_metadata/schema` (v1, v2) and `state/<operator>/_stateSchema/…` (v3).

They are written with Java's DataOutputStream (`java_data`); from v2 on JSON texts are split into chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina.checkpoint.java_data import JavaReader, chunked, count, number, utf
from lamina.checkpoint.reading import checked_version, damaged, member, parsed_object
from lamina.checkpoint.writing import json_text, read_back
from lamina.errors import FileError

STATE_SCHEMA_NEWEST = 3

_NO_USER_KEY = "{    }"
"""What Spark writes where a family has no user key."""

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
    reader = JavaReader(path, data)
    version = checked_version(path, reader.utf(), STATE_SCHEMA_NEWEST)
    if version == 3:
        families = tuple(_family(reader) for _ in range(reader.count()))
    else:
        text = reader.utf if version == 1 else reader.chunked
        key, value = _struct(path, text()), _struct(path, text())
        families = (ColumnFamilySchema(DEFAULT_COLUMN_FAMILY, 0, key, 0, value, None, None),)
    reader.end()
    return StateSchema(version, families)


def state_schema_bytes(path: str, schema: StateSchema) -> bytes:
    """The schema file; the inverse of `parse_state_schema`.

    Raises:
        FileError: `file.version`, naming `path`.
        ValueError: for a schema that its version cannot hold.
    """
    version = schema.version
    families = schema.column_families
    if version == 3:
        body = [count(len(families)), *(_family_bytes(path, family) for family in families)]
    else:
        text = utf if version == 1 else chunked
        body = [
            text(path, json_text(struct)) for family in families for struct in (family.key_schema, family.value_schema)
        ]
    data = utf(path, f"v{version}") + b"".join(body)
    return read_back(path, schema, data, lambda written: parse_state_schema(path, written))


def _family(reader: JavaReader) -> ColumnFamilySchema:
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


def _family_bytes(path: str, family: ColumnFamilySchema) -> bytes:
    return b"".join(
        (
            utf(path, family.name),
            number(family.key_schema_id),
            chunked(path, json_text(family.key_schema)),
            number(family.value_schema_id),
            chunked(path, json_text(family.value_schema)),
            chunked(path, json_text(family.encoder)),
            chunked(path, _NO_USER_KEY if family.user_key_schema is None else json_text(family.user_key_schema)),
        )
    )


def _struct(path: str, text: str) -> dict[str, Any]:
    value = parsed_object(path, text)
    if value.get("type") != "struct" or not isinstance(value.get("fields"), list):
        damaged(path, f"should hold the JSON of a StructType, found {text[:40]!r}")
    return value
