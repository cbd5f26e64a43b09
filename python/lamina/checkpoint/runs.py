"""Reads what lamina records about a checkpoint, `state/_lamina/checkpoint` and `…/runs`, as docs/spec/files.md says."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.checkpoint.reading import decoded, member, parsed_object, read_if_there
from lamina.errors import FileError
from lamina.format import paths
from lamina.storage import Storage

FORMAT_NEWEST = 1


@dataclass(frozen=True)
class CheckpointIdentity:
    """The uuid that files of a checkpoint name as their origin, and who made it."""

    uuid: str
    format: int
    created_ms: int
    created_by: str


@dataclass(frozen=True, order=True)
class QueryRun:
    """One run of the query; runs are ordered by (epoch, id)."""

    epoch: int
    id: str


def read_identity(state: Storage) -> CheckpointIdentity | None:
    """The identity of a checkpoint; None where lamina never wrote to it.

    Args:
        state: rooted at the directory `state` of the checkpoint.
    Raises:
        LaminaError: `file.damaged`, `file.version`, `storage.*`.
    """
    data = read_if_there(state, paths.CHECKPOINT)
    if data is None:
        return None
    where = state.location(paths.CHECKPOINT)
    values = parsed_object(where, decoded(where, data))
    version = member(where, values, "format", int)
    if version > FORMAT_NEWEST:
        raise FileError(
            "file.version", f"{where}: has format {version}, this release reads up to {FORMAT_NEWEST}; upgrade lamina"
        )
    return CheckpointIdentity(
        uuid=member(where, values, "uuid", str),
        format=version,
        created_ms=member(where, values, "created_ms", int, 0),
        created_by=member(where, values, "created_by", str, ""),
    )


def read_claims(state: Storage) -> list[QueryRun]:
    """Every claim of an epoch by a run, in order. A run may have claimed more than one."""
    parsed = (paths.parse_run(entry.name) for entry in state.list(paths.RUNS))
    return sorted(QueryRun(*claim) for claim in parsed if claim is not None)


def read_runs(state: Storage) -> list[QueryRun]:
    """The runs of the query in order, each with the smallest epoch that it claimed."""
    smallest: dict[str, QueryRun] = {}
    for claim in read_claims(state):
        smallest.setdefault(claim.id, claim)
    return sorted(smallest.values())
