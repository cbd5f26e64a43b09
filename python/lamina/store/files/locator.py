"""Where commits are: which file of the storage, or which part of a log object, is the commit of an attempt.

The attempt's id says it, and nothing is listed to find it (docs/spec/attempt-ids.md). Nobody else builds or parses the
name of a commit's object: who has an attempt asks for its location, who has a name asks which attempt it is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lamina.errors import LaminaError
from lamina.format import paths
from lamina.format.attempt_id import FILE, GROUP, AttemptId
from lamina.format.log_object import PartId
from lamina.format.manifest import StoreIdentity
from lamina.format.paths import CommitName
from lamina.storage import Listed


@dataclass(frozen=True)
class CommitLocation:
    """Where a commit is: it is a file in the directory of its store, or read as if it were.

    Args:
        path: of the file, below the directory `state`.
        name: of the file in the directory.
    """

    path: str
    name: str

    def is_among(self, names: Container[str]) -> bool:
        """Whether the object is one of these in the store's directory."""
        return self.name in names

    def listed(self, listing: Mapping[str, Listed]) -> Listed | None:
        """The object in a listing of the store's directory, by name; None where it is not there."""
        return listing.get(self.name)


class Locator:
    """The locations of one store's commits."""

    def __init__(self, store: StoreIdentity) -> None:
        self._directory = paths.store_directory(store.operator, store.partition, store.name)

    def of(self, attempt: str) -> CommitLocation:
        """Where the commit of an attempt is, whether or not it is there.

        Raises:
            LaminaError: `attempt-id.unknown` where this release cannot tell, or nothing was written.
        """
        parsed = AttemptId.parse(attempt)
        if parsed.kind == GROUP:
            PartId.of(parsed)
        elif parsed.kind != FILE:
            raise LaminaError.from_kind(
                "attempt-id.unknown", f"attempt id {attempt!r} names no file that this release can open"
            )
        name = str(CommitName(parsed))
        return CommitLocation(paths.join(self._directory, name), name)


def attempt_of(name: str) -> AttemptId | None:
    """The attempt whose commit has this name; None for any other name."""
    parsed = paths.commit_of(name)
    if parsed is None or (parsed.attempt.kind == GROUP and not PartId.is_named_by(parsed.attempt)):
        return None
    return parsed.attempt


def name_of(attempt: str) -> str:
    """The name of an attempt's commit."""
    return str(CommitName(AttemptId.parse(attempt)))


def is_part(name: str) -> bool:
    """Whether a name is that of a commit in a log object, which no listing of the store's directory has."""
    attempt = attempt_of(name)
    return attempt is not None and attempt.kind == GROUP


def attempts_in(listing: Iterable[Listed]) -> Mapping[int, Sequence[AttemptId]]:
    """The attempts whose commits are in a listing of a store, by version."""
    found: dict[int, list[AttemptId]] = {}
    for entry in listing:
        attempt = attempt_of(entry.name)
        if attempt is not None:
            found.setdefault(attempt.version, []).append(attempt)
    return found
