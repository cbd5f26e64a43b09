"""Attempt ids: the grammar of docs/spec/attempt-ids.md, parsed and printed.

An id lives in Spark's commit log for ever, so nothing here may change the meaning of an id that was once printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from lamina.errors import LaminaError

TAG = "L1"
FILE = "o"
GROUP = "g"
EMPTY = "e"

_GRAMMAR = re.compile(
    r"L1\.(?P<version>0|[1-9][0-9]*)\.(?P<epoch>0|[1-9][0-9]*)"
    r"\.(?:(?P<kind>[oe])\.-|(?P<group>g)\.(?P<container>[a-z0-9_-]{1,64}))\.(?P<random>[0-9a-f]{32})",
    re.ASCII,
)

_PARSED_KEPT = 4096
"""A commit asks for the parts of each of the ids around it several times."""


@dataclass(frozen=True)
class AttemptId:
    """One execution of version - 1 → version of one store.

    `kind` is `FILE`, `GROUP` or `EMPTY`, of which the last is never written; `container` is "-" unless the commit lies
    inside a log object, and says which part of which one it is then (`log_object.PartId`).
    """

    version: int
    epoch: int
    kind: str
    container: str
    random: str

    @classmethod
    def for_file(cls, version: int, epoch: int, random: str) -> AttemptId:
        """The id of an attempt that writes a file of its own."""
        return cls(version, epoch, FILE, "-", random)

    def within(self, part: str) -> AttemptId:
        """The id of the same attempt, whose commit becomes a part of a log object."""
        return AttemptId(self.version, self.epoch, GROUP, part, self.random)

    @staticmethod
    @lru_cache(_PARSED_KEPT)
    def parse(text: str) -> AttemptId:
        """The id that `text` prints.

        Raises:
            LaminaError: `attempt-id.unknown` for another tag or kind and for anything outside the grammar.
        """
        match = _GRAMMAR.fullmatch(text)
        if match is None or (match["kind"] == EMPTY and match["version"] != "0"):
            raise LaminaError.from_kind(
                "attempt-id.unknown",
                f"attempt id {text!r} is not one that this release knows; it was written by a newer lamina, "
                "or by another state store",
            )
        return AttemptId(
            int(match["version"]),
            int(match["epoch"]),
            match["kind"] or match["group"],
            match["container"] or "-",
            match["random"],
        )

    def __str__(self) -> str:
        return f"{TAG}.{self.version}.{self.epoch}.{self.kind}.{self.container}.{self.random}"
