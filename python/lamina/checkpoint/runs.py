"""Reads what lamina records about a checkpoint, `state/_lamina/checkpoint` and `…/runs`, as docs/spec/files.md says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lamina.checkpoint.reading import member
from lamina.checkpoint.sealed import read_sealed
from lamina.errors import FileError
from lamina.format import paths
from lamina.storage import Storage

FORMAT_NEWEST = 1

_MOST_BYTES = 64 << 10
"""An identity is far smaller."""


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

    def __str__(self) -> str:
        return f"{self.id} (epoch {self.epoch})"


def read_identity(state: Storage) -> CheckpointIdentity | None:
    """The identity of a checkpoint; None where lamina never wrote to it.

    Args:
        state: rooted at the directory `state` of the checkpoint.
    Raises:
        LaminaError: `file.missing` where runs have claimed it, which they do after it has an identity; `file.damaged`,
            `file.version`, `storage.*`.
    """
    values = read_sealed(state, paths.CHECKPOINT, _MOST_BYTES, FORMAT_NEWEST)
    if values is None:
        claims = read_claims(state)
        if not claims:
            return None
        # the first run may have begun meanwhile
        values = read_sealed(state, paths.CHECKPOINT, _MOST_BYTES, FORMAT_NEWEST)
        if values is None:
            raise FileError(
                "file.missing",
                f"{state.location(paths.CHECKPOINT)} is not there, and all files of the state are named after it; runs "
                f"up to {claims[-1]} were on this checkpoint: put the file back from a copy, or delete the checkpoint "
                "where no state of it is to be kept",
            )
    where = state.location(paths.CHECKPOINT)
    return CheckpointIdentity(
        uuid=member(where, values, "uuid", str),
        format=member(where, values, "format", int),
        created_ms=member(where, values, "created_ms", int, 0),
        created_by=member(where, values, "created_by", str, ""),
    )


def read_claims(state: Storage) -> list[QueryRun]:
    """Every claim of an epoch by a run, in order. A run may have claimed more than one."""
    return claims_of(entry.name for entry in state.list(paths.RUNS))


def claims_of(names: Iterable[str]) -> list[QueryRun]:
    """The claims that files in `runs` are, in order."""
    parsed = map(paths.parse_run, names)
    # there may be thousands, and tuples are in order much sooner than what is made of them
    return [QueryRun(*claim) for claim in sorted(claim for claim in parsed if claim is not None)]


def read_runs(state: Storage) -> list[QueryRun]:
    """The runs of the query in order, each with the smallest epoch that it claimed."""
    return sorted(smallest_claims(read_claims(state)).values())


def smallest_claims(claims: Iterable[QueryRun]) -> dict[str, QueryRun]:
    """The smallest claim of each run, which is its place in the order, by its id; `claims` are in order."""
    smallest: dict[str, QueryRun] = {}
    for claim in claims:
        smallest.setdefault(claim.id, claim)
    return smallest
