"""What is in a streaming checkpoint beside the state itself: Spark's logs, read and written, and lamina's records."""

from __future__ import annotations

from lamina.checkpoint.batch_logs import (
    CommitEntry,
    OffsetEntry,
    commit_bytes,
    offsets_bytes,
    parse_commit,
    parse_offsets,
)
from lamina.checkpoint.families import ColumnFamilyMeaning, column_families
from lamina.checkpoint.followed_log import FollowedLog, LoggedStore
from lamina.checkpoint.log_writer import CheckpointLogWriter
from lamina.checkpoint.logs import PROVIDER_CLASS, CheckpointLogs
from lamina.checkpoint.operators import OperatorMetadata, StateVariable, StoreMetadata, operator_bytes, parse_operator
from lamina.checkpoint.pins import Pin, pin_names, read_pin, read_pins, remove_pin, write_pin
from lamina.checkpoint.runs import (
    FORMAT_NEWEST,
    CheckpointIdentity,
    QueryRun,
    claims_of,
    read_claims,
    read_identity,
    read_runs,
    smallest_claims,
)
from lamina.checkpoint.sealed import read_sealed, sealed_bytes
from lamina.checkpoint.state_schemas import ColumnFamilySchema, StateSchema, parse_state_schema, state_schema_bytes
from lamina.checkpoint.stores import (
    LoggedStores,
    OperatorSurvey,
    StoreSelection,
    logged_stores,
    no_state,
    query_logs,
    selected_stores,
    survey_operators,
)

__all__ = [
    "FORMAT_NEWEST",
    "PROVIDER_CLASS",
    "CheckpointIdentity",
    "CheckpointLogWriter",
    "CheckpointLogs",
    "ColumnFamilyMeaning",
    "ColumnFamilySchema",
    "CommitEntry",
    "FollowedLog",
    "LoggedStore",
    "LoggedStores",
    "OffsetEntry",
    "OperatorMetadata",
    "OperatorSurvey",
    "Pin",
    "QueryRun",
    "StateSchema",
    "StateVariable",
    "StoreMetadata",
    "StoreSelection",
    "claims_of",
    "column_families",
    "commit_bytes",
    "logged_stores",
    "no_state",
    "offsets_bytes",
    "operator_bytes",
    "parse_commit",
    "parse_offsets",
    "parse_operator",
    "parse_state_schema",
    "pin_names",
    "query_logs",
    "read_claims",
    "read_identity",
    "read_pin",
    "read_pins",
    "read_runs",
    "read_sealed",
    "remove_pin",
    "sealed_bytes",
    "selected_stores",
    "smallest_claims",
    "state_schema_bytes",
    "survey_operators",
    "write_pin",
]
