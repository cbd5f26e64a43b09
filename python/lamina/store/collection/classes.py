"""Classes of files in a store's directory, by their names."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.format.paths import SegmentName, TableListName, TableName, parse_name
from lamina.storage import Listed, is_temporary
from lamina.store.files.locator import attempt_of

COMMIT, SEGMENT, TABLE_LIST, TABLE = "commit", "segment", "table_list", "table"
TEMPORARY, FOREIGN = "temporary", "foreign"
LOG = "log"
"""Classes of files."""

MERGED = frozenset({SEGMENT, TABLE_LIST, TABLE})
"""Those that are made in the background, and referred to by a later commit."""

_PUBLISHED_WITHIN = 6
"""Minimum ages."""


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
        return cls(entry, kind_of(entry.name), number_of(entry.name))


def least_age_ms(kind: str, min_age_ms: int) -> int:
    """How old a file of a class has to be that nothing needs. One that is published may be older than the minimum age:
    a merge begins its file before it has sorted anything, and HDFS gives a file the time of its creation until it is
    closed."""
    return min_age_ms * (_PUBLISHED_WITHIN if kind == TEMPORARY else 1)


def number_of(name: str) -> int:
    """The version that a file leads to, by its name; 0 where it names none."""
    attempt, parsed = attempt_of(name), parse_name(name)
    if attempt:
        return attempt.version
    if isinstance(parsed, SegmentName):
        return parsed.end
    return parsed.version if isinstance(parsed, TableListName) else 0


def kind_of(name: str) -> str:
    """The class of a file by its name."""
    if attempt_of(name):
        return COMMIT
    kinds = {SegmentName: SEGMENT, TableListName: TABLE_LIST, TableName: TABLE}
    return kinds.get(type(parse_name(name)), TEMPORARY if is_temporary(name) else FOREIGN)
