"""Reads off a checkpoint directory how far its query is, for any provider: which batches are planned, which have their
state on disk, which are committed.

The rule is Spark's: `offsets/N` appears before batch N runs, the stores publish version N + 1 while it runs, and
`commits/N` appears when all of it is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lamina.errors import LaminaError
from lamina.format import log_object, paths

_STATE_FILE = re.compile(r"(\d+)[._].+")
"""A file of one version in the state directory of lamina (`7_<id>.lam`) and of Spark's own stores (`7.delta`)."""


@dataclass(frozen=True)
class Position:
    """How far a query is; -1 stands for no batch."""

    planned: int
    committed: int

    def __str__(self) -> str:
        if self.planned > self.committed:
            return f"batch {self.planned} was running"
        return f"batch {self.committed} was committed and the next not begun"


def position(checkpoint: Path) -> Position:
    """The newest batch in `offsets` and in `commits`."""
    return Position(_newest(checkpoint / "offsets"), _newest(checkpoint / "commits"))


def partitions_with_state(checkpoint: Path, batch: int) -> int:
    """How many partitions of the stateful operator have published at least one store's version of `batch`."""
    operator = checkpoint / "state" / "0"
    if not operator.is_dir():
        return 0
    partitions = (partition for partition in operator.iterdir() if partition.name.isdigit())
    in_files = {int(partition.name) for partition in partitions if batch + 1 in _versions(partition)}
    return len(in_files.union(_in_log(checkpoint, batch + 1)))


def state_bytes(checkpoint: Path) -> int:
    """Size of all files of the state directory, without the checksum files that Hadoop's local file system adds."""
    files = (path for path in (checkpoint / "state").rglob("*") if not path.name.endswith(".crc"))
    return sum(path.stat().st_size for path in files if path.is_file())


def _in_log(checkpoint: Path, version: int) -> Iterator[int]:
    """The partitions of the first operator of which a log object of lamina holds this version."""
    for path in (checkpoint / "state" / paths.LOG).glob("*.log"):
        # what is being deleted holds older ones
        with suppress(OSError, LaminaError):
            index = log_object.verify(path.read_bytes(), path.stem, str(path))
            yield from (part.store.partition for part in index.parts if (part.store.operator, part.to) == (0, version))


def _newest(log: Path) -> int:
    if not log.is_dir():
        return -1
    return max((int(entry.name) for entry in log.iterdir() if entry.name.isdigit()), default=-1)


def _versions(partition: Path) -> set[int]:
    matches = (_STATE_FILE.fullmatch(path.name) for path in partition.rglob("*") if path.suffix != ".crc")
    return {int(match[1]) for match in matches if match}
