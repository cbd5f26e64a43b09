"""What a commit has in memory, taken from the budget as it comes: batches that arrive, and an upload that is gathered.

A batch is in memory before its size is known, so room for the next one is taken before it is asked for: as much as the
largest one so far, before the first one by the number of rows that the caller announced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from lamina.store.memory.budget import Share

_FREE_BYTES = 1 << 20
"""A commit of less takes nothing of the budget: the number of connections bounds how many there are."""

_STEP_BYTES = 1 << 20

_ROW_BYTES = 512
_FIRST_BATCH_BYTES = 16 << 20
"""What a row, and the first batch at most, is taken for before it has come."""

_BATCHES = 3
"""In memory at once: the one that is written, what it is compressed to, which may be as much, and the next one."""

_UPLOAD_BYTES = 96 << 20
_COPIES = 2
"""What an upload to a remote storage has in memory: twice what was written, gathered and joined; in parts three of
these."""


class CommitMemory:
    """What one commit takes of `share`.

    Args:
        remote: whether the storage gathers what is written to it.
        most_held: how much of what is written is gathered before it goes to the storage, and kept until it is there.
        rows: how many rows of one section are announced.
    """

    def __init__(self, share: Share, *, remote: bool, most_held: int, rows: int) -> None:
        self._share = share
        self._copies, self._most_gathered = (_COPIES, _UPLOAD_BYTES) if remote else (1, most_held)
        self._batch_bytes = min(_FIRST_BATCH_BYTES, rows * _ROW_BYTES)
        self._guessed = True
        self._batches = 0
        self._written = 0

    def received(
        self, sections: Mapping[str, Iterable[pa.RecordBatch]]
    ) -> Iterator[tuple[str, Iterable[pa.RecordBatch]]]:
        """The sections, whose batches come once there is room."""
        for name, batches in sections.items():
            yield name, self._counted(batches)
            # the writer keeps the last one to the end of its section
            self._hold(0)

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        remaining = iter(batches)
        self._hold(1)
        while (batch := next(remaining, None)) is not None:
            size = int(batch.nbytes)
            self._batch_bytes = size if self._guessed else max(self._batch_bytes, size)
            self._guessed = False
            self._hold(_BATCHES)
            yield batch
            del batch

    def written(self, chunks: Iterable[Any]) -> Iterator[Any]:
        """The bytes of the file, each once there is room for it."""
        for chunk in chunks:
            self._written += len(chunk)
            self._hold(self._batches)
            yield chunk

    @property
    def gathered_bytes(self) -> int:
        """What has been written takes in memory until it is in the storage."""
        return min(self._most_gathered, self._copies * self._written)

    def _hold(self, batches: int) -> None:
        self._batches = batches
        needed, held = batches * self._batch_bytes + self.gathered_bytes, self._share.held
        if needed <= _FREE_BYTES and not held:
            return
        size = -(-needed // _STEP_BYTES) * _STEP_BYTES
        if size > max(held, _FREE_BYTES):
            self._share.take(size - held)
        elif size < held:
            self._share.give(held - size)
