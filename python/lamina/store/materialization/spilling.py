"""Sorted runs on local disk: what a merge has no room for in memory."""

from __future__ import annotations

import io
import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lamina.format.entries import SCHEMA
from lamina.store.tables import local_disk

SPILL_BYTES = 48 << 10
"""Size of a batch in a spilled run, unless a single entry is larger: one per source is in memory while merging."""

_WRITE_BYTES = 1 << 20


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most `SPILL_BYTES`, or of one row, however unlike its rows are."""
    pending = [batch]
    while pending:
        part = pending.pop()
        if part.num_rows > 1 and part.nbytes > SPILL_BYTES:
            rows = max(1, part.num_rows // -(-part.nbytes // SPILL_BYTES))
            pending.append(part.slice(rows))
            pending.append(part.slice(0, rows))
        elif part.num_rows:
            yield part


class SpillFile:
    """One local file for all runs of a merge, however many; it has no name, so that it goes with its process."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.descriptor, name = tempfile.mkstemp(dir=directory)
        weakref.finalize(self, os.close, self.descriptor)
        os.unlink(name)

    @property
    def size(self) -> int:
        """Bytes written."""
        return os.fstat(self.descriptor).st_size

    def append(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes a run behind those before it; gives its batches, which are read as they are asked for."""
        start = self.size
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("lz4"))
        sink = pa.PythonFile(io.BufferedWriter(_At(self, start), _WRITE_BYTES), mode="w")
        with sink, pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return self._run(start)

    def _run(self, start: int) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(pa.PythonFile(_At(self, start), mode="r")) as reader:
            yield from reader


class _At(io.RawIOBase):
    """A position of its own in a file that others read and write, too."""

    def __init__(self, spilled: SpillFile, position: int) -> None:
        self._spilled = spilled
        self._position = position

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._spilled.descriptor, [buffer], self._position)
        self._position += count
        return count

    def write(self, data: Any) -> int:
        try:
            count = os.pwrite(self._spilled.descriptor, data, self._position)
        except OSError as error:
            raise local_disk.failed(
                error,
                f"a merge could not write to {self._spilled.directory}, its temporary directory: {error}; it needs "
                "about as much room there as what it merges",
            ) from error
        self._position += count
        return count
