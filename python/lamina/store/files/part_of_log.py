"""A commit in a log object, read as if it were a file of its own."""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format import paths
from lamina.format.attempt_id import AttemptId
from lamina.format.log_object import Part, PartId
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
        self._path = paths.log_path(self._id.log)

    @property
    def remote(self) -> bool:
        """Whether a read costs a request to another machine."""
        return self._logs.storage.remote

    def location(self, _: str) -> str:
        """How the commit is named to people."""
        return f"{self._logs.storage.location(self._path)}, part {self._id.number} ({self._attempt})"

    def exists(self, _: str) -> bool:
        """Whether the commit is there: the storage is asked for the object, whatever is known of its index."""
        if not self._logs.storage.exists(self._path):
            self._logs.forget(self._id.log)
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
        return self._found()[0].length

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        """All of it."""
        return self.read_range(path, 0, self.size(path) if size is None else size)

    def read_range(self, _: str, offset: int, length: int) -> pa.Buffer:
        """At most `length` bytes from `offset`."""
        part, _size = self._found()
        return self._logs.storage.read_range(
            self._path, part.offset + offset, max(0, min(length, part.length - offset))
        )

    def read_pieces(self, _: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        """As `read_range`, piece by piece."""
        part, whole = self._found()
        wanted = max(0, min(length, part.length - offset))
        yield from self._logs.storage.read_pieces(self._path, part.offset + offset, wanted, whole)

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        """Its last `length` bytes, and its size."""
        part, _ = self._found()
        start = max(0, part.length - length)
        return self.read_range(path, start, part.length - start), part.length

    def forget(self, _: str) -> bool:
        """Drops a local copy of the object."""
        return self._logs.forget(self._id.log)

    def link(self, path: str, target: str) -> bool:
        """A part of an object is no file."""
        return False

    def keep(self, path: str, source: str) -> None:
        """The object is what local copies are made of."""

    def _found(self) -> tuple[Part, int]:
        index, size = self._logs.index(self._id.log)
        part = next((part for part in index.parts if part.number == self._id.number), None)
        if part is None or part.attempt != self._attempt:
            raise LaminaError.from_kind("file.missing", f"{self.location('')} is not there")
        return part, size
