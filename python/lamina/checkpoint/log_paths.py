"""Where Spark keeps its logs in a checkpoint: the paths of `CheckpointLogs` and `CheckpointLogWriter`.

<checkpoint>/
    metadata                                    id of the query
    offsets/<batch>  commits/<batch>            planned and finished batches
    state/<operator>/_metadata/metadata         operator metadata v1
    state/<operator>/_metadata/v2/<batch>       operator metadata v2
    state/<operator>/0/[<store>/]_metadata/schema       state schema v1, v2: with partition 0
    state/<operator>/_stateSchema/<store>/<batch>_<id>  state schema v3: named by the operator metadata
    state/_lamina/                              what lamina records itself
"""

from __future__ import annotations

from lamina.format.paths import store_directory

QUERY = "metadata"
OFFSETS = "offsets"
COMMITS = "commits"


def offsets_path(batch: int) -> str:
    """What `batch` is made of."""
    return f"{OFFSETS}/{batch}"


def commit_path(batch: int) -> str:
    """How `batch` ended."""
    return f"{COMMITS}/{batch}"


def operator_batches(operator: int) -> str:
    """The directory of the operator's metadata v2, one file for each batch that changed it."""
    return f"state/{operator}/_metadata/v2"


def operator_path(operator: int, batch: int | None) -> str:
    """The operator's metadata: v2 of `batch`, or v1 where that is None."""
    return f"state/{operator}/_metadata/metadata" if batch is None else f"{operator_batches(operator)}/{batch}"


def schema_path(operator: int, store: str) -> str:
    """The schema v1 or v2 of a store, one file for all partitions."""
    return f"state/{store_directory(operator, 0, store)}/_metadata/schema"


def schema_directory(operator: int) -> str:
    """Above the schemas v3 of an operator's stores."""
    return f"state/{operator}/_stateSchema/"
