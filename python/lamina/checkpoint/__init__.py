"""Reads what Spark and lamina write into a streaming checkpoint beside the state itself. Never writes."""

from __future__ import annotations

from lamina.checkpoint.batch_logs import CommitEntry, OffsetEntry, parse_commit, parse_offsets
from lamina.checkpoint.families import ColumnFamilyMeaning, column_families
from lamina.checkpoint.logs import CheckpointLogs
from lamina.checkpoint.operators import OperatorMetadata, StateVariable, StoreMetadata, parse_operator
from lamina.checkpoint.runs import (
    FORMAT_NEWEST,
    CheckpointIdentity,
    QueryRun,
    identity_bytes,
    read_claims,
    read_identity,
    read_runs,
    smallest_claims,
)
from lamina.checkpoint.state_schemas import ColumnFamilySchema, StateSchema, parse_state_schema

__all__ = [
    "FORMAT_NEWEST",
    "CheckpointIdentity",
    "CheckpointLogs",
    "ColumnFamilyMeaning",
    "ColumnFamilySchema",
    "CommitEntry",
    "OffsetEntry",
    "OperatorMetadata",
    "QueryRun",
    "StateSchema",
    "StateVariable",
    "StoreMetadata",
    "column_families",
    "identity_bytes",
    "parse_commit",
    "parse_offsets",
    "parse_operator",
    "parse_state_schema",
    "read_claims",
    "read_identity",
    "read_runs",
    "smallest_claims",
]
