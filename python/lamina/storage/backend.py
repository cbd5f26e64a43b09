"""The contract that every storage fulfils: whole objects under names, nothing half-written.

Paths are relative to the root, with "/". Implementations raise the exceptions of their library; `Storage` maps them.
The guarantees each method must give are in its docstring and are tested by `lamina.testing.storage_conformance`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

PIECE_BYTES = 8 << 20
"""What is in memory at once of an object that is read in pieces; a remote storage fetches it in several requests."""


def ranges(offset: int, length: int, most: int) -> Iterator[tuple[int, int]]:
    """Offsets and lengths of the pieces of a range, each of at most `most` bytes."""
    for start in range(offset, offset + length, most):
        yield start, min(most, offset + length - start)


def by_ranges(
    read: Callable[[int, int], pa.Buffer], start: int, end: int, most: int
) -> Generator[pa.Buffer, None, None]:
    """What `read` gives of an object from `start` to `end`, by offset and length, in ranges of at most `most` bytes and
    one."""
    pieces = [*ranges(start, end - start, most)]
    if len(pieces) > 1 and pieces[-1][1] == 1:
        # not all storages answer a range that begins where the object ends
        pieces.pop()
        offset, length = pieces.pop()
        pieces.append((offset, length + 1))
    for offset, length in pieces:
        yield read(offset, length)


class NotDurable(OSError):
    """What was to be published may be there, whole, and go with the machine's next failure: nobody may count on it."""


@dataclass(frozen=True)
class Listed:
    """One object of a listing: name without directory, size in bytes, time of publication in ms since 1970."""

    name: str
    size: int
    modified_ms: int


class Backend(ABC):
    """Objects below one root. Thread-safe."""

    remote = False
    """Whether a read costs a request to another machine, so that local copies are worth having."""

    has_copies = False
    """Whether what `link` gives is a local copy, and `keep` makes one."""

    @abstractmethod
    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        """Writes an object whole and gives its size: no reader ever sees a part of it.

        When this returns the object is durable. When `chunks` or the storage raises, no object appears and one that
        existed stays, except where an answer was lost, or with `NotDurable`.
        """

    @abstractmethod
    def publish_if_absent(self, path: str, data: bytes) -> bool:
        """As `publish`, unless an object is there, which is as durable then; whether it was written. Of concurrent
        calls at most one writes."""

    @abstractmethod
    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        """The whole object. `size`, where it is known, may spare a request; what is behind it may be missing then."""

    @abstractmethod
    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        """At most `length` bytes from `offset`; fewer where the object ends."""

    def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        """As `read_range`, piece by piece, of an object of `size` bytes; it stays here whole where copies are kept."""
        for start, wanted in ranges(offset, length, PIECE_BYTES):
            yield self.read_range(path, start, wanted)

    def stream(self, path: str, length: int, piece: int) -> Generator[pa.Buffer, None, None]:
        """The first `length` bytes of an object, fewer where it ends, in pieces of about `piece` bytes at most; in one
        request where the storage can. None of it stays here."""
        yield from by_ranges(partial(self.read_range, path), 0, length, piece)

    @abstractmethod
    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        """The last `length` bytes (all of a smaller object), and the size of the object."""

    @abstractmethod
    def list(self, directory: str) -> Sequence[Listed]:
        """The objects directly in `directory`; none where it does not exist."""

    @abstractmethod
    def delete_many(self, paths: Sequence[str]) -> None:
        """Deletes objects; one that is not there is no error."""

    def stamp(self, path: str) -> bool:
        """Makes the time of publication of an object the present one, and changes nothing else; False where the storage
        cannot do that without the object's bytes coming here."""
        return False

    def link(self, path: str, target: str, room: Callable[[int], None]) -> bool:
        """Gives an object a name in a local directory, for who does not change it; False where that cannot be.

        Args:
            room: called with its size before it is copied there, since it lies on another disk; what it raises goes on.
        """
        return False

    def keep(self, path: str, source: str) -> None:  # noqa: B027 - most have no copies
        """Keeps the local file `source`, which has an object's bytes and never changes, as a local copy of it."""

    def forget(self, path: str) -> bool:
        """Drops a local copy of an object, whose contents turned out wrong; whether they may be those of a copy."""
        return False

    @abstractmethod
    def size(self, path: str) -> int:
        """The size of an object; FileNotFoundError where it is not there."""
