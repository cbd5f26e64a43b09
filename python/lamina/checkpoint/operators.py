"""What Spark writes about a stateful operator: `state/<operator>/_metadata/metadata` (v1) or `…/v2/<batch>` (v2).

Version 2 is written anew when the operator changes, so it is read as of a batch: the newest at or below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina.checkpoint.log_paths import schema_directory
from lamina.checkpoint.reading import checked_version, damaged, decoded, member, parsed_object
from lamina.checkpoint.writing import json_text, read_back
from lamina.format.paths import require_normal

OPERATOR_METADATA_NEWEST = 2


@dataclass(frozen=True)
class StoreMetadata:
    """One store of an operator.

    Args:
        partitions: as Spark records it, which is too many for a global limit: it has one (`CheckpointLogs.partitions`).
        prefix_columns: how many key columns a prefix scan fixes; 0 where there are no prefix scans.
        schema_files: where the store's schemas are, oldest first, relative to the checkpoint; only v2 records it.
    """

    name: str
    prefix_columns: int
    partitions: int
    schema_files: tuple[str, ...]


@dataclass(frozen=True)
class StateVariable:
    """A variable of `transformWithState`; its name is that of its column family."""

    name: str
    kind: str
    ttl: bool


@dataclass(frozen=True)
class OperatorMetadata:
    """One stateful operator; its stores are in the order in which the commit log lists their ids.

    Args:
        batch: the batch from which on it holds; None in v1, which has one file for all.
        properties: of the operator, which only v2 records; `variables` are those among them.
    """

    version: int
    operator: int
    batch: int | None
    name: str
    stores: tuple[StoreMetadata, ...]
    properties: Mapping[str, Any]
    variables: tuple[StateVariable, ...]


def parse_operator(path: str, operator: int, batch: int | None, data: bytes) -> OperatorMetadata:
    """Reads one metadata file of the operator with the number `operator`. Raises FileError naming `path`."""
    first, _, rest = decoded(path, data).partition("\n")
    version = checked_version(path, first, OPERATOR_METADATA_NEWEST)
    if (version == 1) != (batch is None):
        damaged(path, f"has version v{version}, which does not belong there")
    values = parsed_object(path, rest)
    info = member(path, values, "operatorInfo", dict)
    if member(path, info, "operatorId", int) != operator:
        damaged(path, f"is about operator {info['operatorId']}, not {operator}")
    properties: dict[str, Any] = {}
    if version > 1:
        properties = parsed_object(path, member(path, values, "operatorPropertiesJson", str) or "{}")
    return OperatorMetadata(
        version=version,
        operator=operator,
        batch=batch,
        name=member(path, info, "operatorName", str),
        stores=tuple(_store(path, operator, store) for store in member(path, values, "stateStoreInfo", list)),
        properties=properties,
        variables=tuple(_variable(path, variable) for variable in member(path, properties, "stateVariables", list, [])),
    )


def operator_bytes(path: str, metadata: OperatorMetadata, location: str) -> bytes:
    """The metadata file of an operator; the inverse of `parse_operator`.

    Args:
        location: the checkpoint as Spark names it, such as `file:/data/flights`: v2 says where schema files are.
    Raises:
        FileError: `file.version`, naming `path`.
        ValueError: for metadata that its version cannot hold.
    """
    version = metadata.version
    values: dict[str, Any] = {
        "operatorInfo": {"operatorId": metadata.operator, "operatorName": metadata.name},
        "stateStoreInfo": [_store_values(version, store, location) for store in metadata.stores],
    }
    if version > 1:
        values["operatorPropertiesJson"] = json_text(metadata.properties)
    data = f"v{version}\n{json_text(values)}".encode()
    return read_back(
        path, metadata, data, lambda written: parse_operator(path, metadata.operator, metadata.batch, written)
    )


def _store_values(version: int, store: StoreMetadata, location: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "storeName": store.name,
        "numColsPrefixKey": store.prefix_columns,
        "numPartitions": store.partitions,
    }
    if version > 1:
        values["stateSchemaFilePaths"] = [f"{location}/{file}" for file in store.schema_files]
    return values


def _store(path: str, operator: int, values: Any) -> StoreMetadata:
    if not isinstance(values, dict):
        damaged(path, "'stateStoreInfo' should list JSON objects")
    return StoreMetadata(
        name=member(path, values, "storeName", str),
        prefix_columns=member(path, values, "numColsPrefixKey", int),
        partitions=member(path, values, "numPartitions", int),
        schema_files=tuple(
            _in_this_checkpoint(path, operator, file) for file in member(path, values, "stateSchemaFilePaths", list, [])
        ),
    )


def _in_this_checkpoint(path: str, operator: int, location: Any) -> str:
    """Spark records where a schema file was when it was written; the checkpoint may have been moved since."""
    marker = schema_directory(operator)
    if not isinstance(location, str) or marker not in location:
        damaged(path, f"{location!r} is no schema file of operator {operator}")
    try:
        return marker + require_normal(location.rpartition(marker)[2])
    except ValueError as error:
        damaged(path, f"{location!r} is no schema file of operator {operator}: {error}")


def _variable(path: str, values: Any) -> StateVariable:
    if not isinstance(values, dict):
        damaged(path, "'stateVariables' should list JSON objects")
    return StateVariable(
        name=member(path, values, "stateName", str),
        kind=member(path, values, "stateVariableType", str),
        ttl=member(path, values, "ttlEnabled", bool, False),
    )
