"""Reading a section: each block is verified when it has come, before any of its bytes are handed out.

There is one read. What was verified is what is used, whatever the file holds by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format.blocks import half_sha256
from lamina.format.manifest import Section

ReadAgain = Callable[[int, int], pa.Buffer | None]
"""The same bytes, by offset in the section and length, from the storage itself; None where they came from there."""


def verified(
    section: Section, pieces: Iterator[pa.Buffer], read_again: ReadAgain, damaged: Callable[[str], LaminaError]
) -> Iterator[Any]:
    """The bytes of a section, in runs of whole blocks that fit their checksums.

    Args:
        pieces: the bytes as they come.
        read_again: asked for a block that does not fit: a local copy may be damaged where the storage is not.
        damaged: the error for a reason.
    """
    blocks = section.blocks_in_order()
    start, end, checksum = next(blocks)
    rest: Any = b""
    position = 0
    for piece in pieces:
        data = memoryview(b"".join((rest, piece)) if len(rest) else piece)
        begin = position - len(rest)
        position += piece.size
        whole: list[Any] = []
        first = start
        while end <= position and start < end:
            block = data[start - begin : end - begin]
            if half_sha256(block) != checksum:
                again = read_again(start, end - start)
                if again is None or half_sha256(again) != checksum:
                    raise damaged(f"bytes {start} to {end} of section {section.name!r} do not fit their checksum")
                whole += [data[first - begin : start - begin], again]
                first = end
            start, end, checksum = next(blocks, (end, end, b""))
        if whole:
            yield b"".join([*whole, data[first - begin : start - begin]])
        elif start > first:
            yield data[first - begin : start - begin]
        rest = data[start - begin :] if position > start else b""
    if position != section.length:
        raise damaged(f"section {section.name!r} ends after {position} of {section.length} bytes")


class SectionFile:
    """Verified runs of bytes as the file that pyarrow reads a section from.

    Args:
        ahead: reads and verifies the next run while this one is used; None does it when it is asked for.
    """

    closed = False

    def __init__(self, runs: Iterator[Any], ahead: Executor | None) -> None:
        self._runs = runs
        self._ahead = ahead
        self._next: Future[Any] | None = None
        self._run: Any = memoryview(b"")
        self._position = 0
        self._request()

    def read(self, size: int) -> pa.Buffer:
        """The next `size` bytes; fewer at the end of the section."""
        if size <= len(self._run):
            return self._taken(size)
        parts = []
        while size:
            if not len(self._run) and not self._advance():
                break
            part = self._taken(min(size, len(self._run)))
            parts.append(part)
            size -= part.size
        return pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))

    read_buffer = read

    def tell(self) -> int:
        """How many bytes were handed out."""
        return self._position

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Called by pyarrow; a run that is being read goes on to its end."""

    def _taken(self, size: int) -> pa.Buffer:
        part = pa.py_buffer(self._run[:size])
        self._run = self._run[size:]
        self._position += size
        return part

    def _request(self) -> None:
        if self._ahead is not None:
            self._next = self._ahead.submit(next, self._runs, None)

    def _advance(self) -> bool:
        found = next(self._runs, None) if self._next is None else self._next.result()
        self._next = None
        if found is None:
            return False
        self._run = memoryview(found)
        self._request()
        return True
