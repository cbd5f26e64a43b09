"""What Spark writes about a stateful operator: `state/<operator>/_metadata/metadata` (v1) or `…/v2/<batch>` (v2).

Version 2 is written anew when the operator changes, so it is read as of a batch: the newest at or below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina.checkpoint.reading import checked_version, damaged, decoded, member, parsed_object

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
    """One stateful operator; its stores are in the order in which the commit log lists their ids."""

    version: int
    operator: int
    name: str
    stores: tuple[StoreMetadata, ...]
    properties: Mapping[str, Any]
    variables: tuple[StateVariable, ...]


def parse_operator(path: str, operator: int, data: bytes) -> OperatorMetadata:
    """Reads one metadata file of the operator with the number `operator`. Raises FileError naming `path`."""
    first, _, rest = decoded(path, data).partition("\n")
    version = checked_version(path, first, OPERATOR_METADATA_NEWEST)
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
        name=member(path, info, "operatorName", str),
        stores=tuple(_store(path, operator, store) for store in member(path, values, "stateStoreInfo", list)),
        properties=properties,
        variables=tuple(_variable(path, variable) for variable in member(path, properties, "stateVariables", list, [])),
    )


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
    marker = f"state/{operator}/_stateSchema/"
    if not isinstance(location, str) or marker not in location:
        damaged(path, f"{location!r} is no schema file of operator {operator}")
    return marker + location.rpartition(marker)[2]


def _variable(path: str, values: Any) -> StateVariable:
    if not isinstance(values, dict):
        damaged(path, "'stateVariables' should list JSON objects")
    return StateVariable(
        name=member(path, values, "stateName", str),
        kind=member(path, values, "stateVariableType", str),
        ttl=member(path, values, "ttlEnabled", bool, False),
    )
