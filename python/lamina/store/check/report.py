"""What a check finds in one store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lamina.errors import LaminaError
from lamina.format.manifest import StoreIdentity

COUNTS = "state.counts"
LINEAGE = "state.lineage"
UNREAD = "file.unread"
"""Kinds of problems that no error has: what manifests say does not fit what is there, or it was not read."""

NEWER = ("file.version", "attempt-id.unknown")
"""Kinds of errors that say that a newer lamina, or Spark, wrote a file: it was not read either."""


def is_damage(kind: str) -> bool:
    """Whether a kind of problem says that something is damaged or lost; else it was not read, and may be whole."""
    return kind != UNREAD and kind not in NEWER


@dataclass(frozen=True)
class Problem:
    """Damage, or what was not read: a kind (of `lamina.errors`, `COUNTS`, `LINEAGE` or `UNREAD`), the versions that
    it is about, one sentence."""

    kind: str
    versions: tuple[int, ...]
    message: str


@dataclass(frozen=True)
class StoreCheck:
    """What was found in one store.

    Args:
        whole, damaged: the versions that are retained or pinned, by whether all that they need is whole; those that
            need what was not read are neither.
        files, bytes: that were verified.
        rows: live rows of the newest version, counted; None where it was not, or that version is broken.
        orphans: files that none of the versions needs, by class: number and bytes. Those of versions above the newest
            are left out, and younger segments and tables: a batch may need them by now.
        collected: versions that left retention while the check ran.
        warnings: what is no damage yet, one sentence each.
        parts: the attempts that are needed, of those whose commits are in log objects.
        newest: the newest version that Spark's log had when the check began; -1 where the store could not be read, so
            that nobody knows what it needs.
    """

    identity: StoreIdentity
    whole: tuple[int, ...]
    damaged: tuple[int, ...]
    files: int
    bytes: int
    rows: int | None
    orphans: Mapping[str, tuple[int, int]]
    collected: tuple[int, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    parts: tuple[str, ...]
    newest: int

    @property
    def knows_needs(self) -> bool:
        """Whether all versions were followed, and there are any: else more than they say may be needed."""
        return bool(self.whole or self.damaged) and not self.problems

    @classmethod
    def unread(cls, identity: StoreIdentity, named: Collection[int], error: LaminaError) -> StoreCheck:
        """That of a store that could not be read, with the versions that Spark's log names."""
        problem = Problem(UNREAD, tuple(sorted(named)), f"not checked: {error.message}")
        return cls(identity, (), (), 0, 0, None, {}, (), (problem,), (), (), -1)


@dataclass(frozen=True)
class LogCheck:
    """What was found in the log of a checkpoint, beside the commits in it, which are those of stores.

    Args:
        objects, bytes: that checked stores need and that were verified; whole objects, with all of their parts.
        not_needed: what no checked store needs, by class: number and bytes.
        warnings: objects that cannot be read and that no checked store needs, one sentence each.
    """

    objects: int
    bytes: int
    not_needed: Mapping[str, tuple[int, int]]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
