"""Classes of files in a store's directory, by their names."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.format.paths import CommitName, SegmentName, parse_name
from lamina.storage import Listed, is_temporary

COMMIT, SEGMENT, TEMPORARY, FOREIGN = "commit", "segment", "temporary", "foreign"
"""Classes of files."""


@dataclass(frozen=True)
class StoreFile:
    """A file of a listing: its class, and the version that it leads to."""

    entry: Listed
    kind: str
    number: int

    @property
    def name(self) -> str:
        return self.entry.name

    @classmethod
    def of(cls, entry: Listed) -> StoreFile:
        parsed = parse_name(entry.name)
        number = parsed.version if isinstance(parsed, CommitName) else parsed.end if parsed else 0
        return cls(entry, kind_of(entry.name), number)


def kind_of(name: str) -> str:
    """The class of a file by its name."""
    kinds = {CommitName: COMMIT, SegmentName: SEGMENT}
    return kinds.get(type(parse_name(name)), TEMPORARY if is_temporary(name) else FOREIGN)
