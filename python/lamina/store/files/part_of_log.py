"""A commit in a log object, read as if it were a file of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import partial

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format.attempt_id import AttemptId
from lamina.format.log_object import Part, PartId
from lamina.storage.backend import by_ranges
from lamina.store.files.log_indexes import Found
from lamina.store.files.log_parts import LogObjects


class PartOfLog:
    """One commit in a log object, with the reading methods of a storage, whose paths it takes for its own."""

    def __init__(self, logs: LogObjects, attempt: AttemptId) -> None:
        """The commit of an attempt, whether or not it is there.

        Raises:
            LaminaError: `attempt-id.unknown` where this release cannot tell.
        """
        self._logs = logs
        self._id = PartId.of(attempt)
        self._attempt = str(attempt)

    has_copies = False
    """A part of an object is no file."""

    @property
    def remote(self) -> bool:
        """Whether a read costs a request to another machine."""
        return self._logs.is_remote(self._id.log)

    def location(self, _: str) -> str:
        """How the commit is named to people."""
        return f"{self._logs.location(self._id.log)}, part {self._id.number} ({self._attempt})"

    def exists(self, _: str) -> bool:
        """Whether the commit is there, or was within the last second: the storage is asked for the object, whatever is
        known of its index."""
        if not self._logs.exists(self._id.log):
            return False
        try:
            self._found()
        except LaminaError as error:
            if error.kind == "file.missing":
                return False
            raise
        return True

    def size(self, _: str) -> int:
        """Its size; `file.missing` where it is not there."""
        return self._found()[1].length

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        """All of it."""
        return self.read_range(path, 0, self.size(path) if size is None else size)

    def read_range(self, _: str, offset: int, length: int) -> pa.Buffer:
        """At most `length` bytes from `offset`."""
        found, part = self._found()
        place, path = found.place, found.place.path(self._id.log)
        wanted = max(0, min(length, part.length - offset))
        return place.asked(lambda: place.storage.read_range(path, part.offset + offset, wanted))

    def read_pieces(self, _: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        """As `read_range`, piece by piece."""
        found, part = self._found()
        wanted = max(0, min(length, part.length - offset))
        path = found.place.path(self._id.log)
        pieces = found.place.storage.read_pieces(path, part.offset + offset, wanted, found.size)
        with contextlib.closing(pieces):
            while (piece := found.place.asked(lambda: next(pieces, None))) is not None:
                yield piece

    def stream(self, path: str, length: int, piece: int) -> Generator[pa.Buffer, None, None]:
        """Its first `length` bytes, fewer where it ends, by ranges."""
        return by_ranges(partial(self.read_range, path), 0, length, piece)

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        """Its last `length` bytes, and its size."""
        _, part = self._found()
        start = max(0, part.length - length)
        return self.read_range(path, start, part.length - start), part.length

    def forget(self, _: str) -> bool:
        """Drops a local copy of the object."""
        return self._logs.forget(self._id.log)

    def link(self, path: str, target: str, room: Callable[[int], None]) -> bool:
        """A part of an object is no file."""
        return False

    def keep(self, path: str, source: str) -> None:
        """The object is what local copies are made of."""

    def _found(self) -> tuple[Found, Part]:
        found = self._logs.find(self._id.log)
        part = found.index.by_number.get(self._id.number)
        if part is None or part.attempt != self._attempt:
            raise LaminaError.from_kind("file.missing", f"{self.location('')} is not there")
        return found, part
