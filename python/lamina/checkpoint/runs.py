"""Reads what lamina records about a checkpoint, `state/_lamina/checkpoint` and `…/runs`, as docs/spec/files.md says."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lamina.checkpoint.reading import damaged, decoded, member, parsed_object, read_if_there
from lamina.errors import FileError
from lamina.format import paths
from lamina.format.manifest import to_bytes
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
        LaminaError: `file.damaged`, `file.version`, `storage.*`.
    """
    data = read_if_there(state, paths.CHECKPOINT, _MOST_BYTES)
    if data is None:
        return None
    where = state.location(paths.CHECKPOINT)
    values = parsed_object(where, decoded(where, data))
    version = member(where, values, "format", int)
    if version > FORMAT_NEWEST:
        raise FileError(
            "file.version", f"{where}: has format {version}, this release reads up to {FORMAT_NEWEST}; upgrade lamina"
        )
    if data != identity_bytes(values):
        damaged(where, "does not fit its checksum")
    return CheckpointIdentity(
        uuid=member(where, values, "uuid", str),
        format=version,
        created_ms=member(where, values, "created_ms", int, 0),
        created_by=member(where, values, "created_by", str, ""),
    )


def identity_bytes(values: Mapping[str, Any]) -> bytes:
    """The file `checkpoint` with these members, and its checksum."""
    content = {name: value for name, value in values.items() if name != "crc32"}
    return to_bytes({**content, "crc32": zlib.crc32(to_bytes(content))})


def read_claims(state: Storage) -> list[QueryRun]:
    """Every claim of an epoch by a run, in order. A run may have claimed more than one."""
    parsed = (paths.parse_run(entry.name) for entry in state.list(paths.RUNS))
    return sorted(QueryRun(*claim) for claim in parsed if claim is not None)


def read_runs(state: Storage) -> list[QueryRun]:
    """The runs of the query in order, each with the smallest epoch that it claimed."""
    return sorted(smallest_claims(read_claims(state)).values())


def smallest_claims(claims: Iterable[QueryRun]) -> dict[str, QueryRun]:
    """The smallest claim of each run, which is its place in the order, by its id; `claims` are in order."""
    smallest: dict[str, QueryRun] = {}
    for claim in claims:
        smallest.setdefault(claim.id, claim)
    return smallest
