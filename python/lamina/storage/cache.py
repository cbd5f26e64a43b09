"""A remote storage whose objects stay on this machine once they were written or read (`local_copies`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from lamina.storage.backend import PIECE_BYTES, Backend, Listed, ranges
from lamina.storage.cache_file import CacheFile
from lamina.storage.local_copies import LocalCache, Writing

log = logging.getLogger(__name__)

_MANY_TIMES, _LITTLE_BYTES = 4, 8 << 20
"""An object more than so many times as large as the part that is wanted, and so many bytes, is not fetched for a copy:
a reader of an increment would wait for the state that was written in full beside it."""

_PIECE_BYTES = 4 << 20
"""What is in memory at once of the bytes that only a copy needs."""


class CachingBackend(Backend):
    """A remote storage with local copies.

    Args:
        inner: the storage.
        cache: the directory of copies, shared with other storages.
        url: the root of `inner`.
    """

    has_copies = True

    def __init__(self, inner: Backend, cache: LocalCache, url: str) -> None:
        self._inner = inner
        self._cache = cache
        self._root = url
        self._being_copied: set[str] = set()
        self._lock = threading.Lock()

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        if not self._cache.holds(path):
            return self._inner.publish(path, chunks)
        writing = self._cache.writing(self._url(path))

        def both() -> Iterator[Any]:
            for chunk in chunks:
                writing.write(chunk)
                yield chunk

        try:
            size = self._inner.publish(path, both())
        except BaseException:
            # what is there now is for the storage to say
            writing.discard()
            self._cache.drop([self._url(path)])
            raise
        writing.keep(size)
        return size

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        return self._inner.publish_if_absent(path, data)

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        found = self._copy(path, lambda file: file.read(0, file.size))
        if found is not None:
            return found[0]
        data = self._inner.read(path, size)
        if self._cache.holds(path):
            self._cache.keep(self._url(path), data)
        return data

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        found = self._copied(path, offset, length)
        return self._inner.read_range(path, offset, length) if found is None else found

    def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        much = size > _MANY_TIMES * length + _LITTLE_BYTES
        if much or not self._cache.holds(path) or size > self._cache.largest:
            yield from super().read_pieces(path, offset, length, size)
            return
        with self._lock:
            alone = path not in self._being_copied
            self._being_copied.add(path)
        writing: Writing | None = None
        try:
            for start, wanted in ranges(offset, length, PIECE_BYTES):
                piece = self._copied(path, start, wanted)
                if piece is None:
                    if alone and start == offset:
                        writing = self._cache.writing(self._url(path))
                        self._fill(writing, path, 0, offset)
                    piece = self._inner.read_range(path, start, wanted)
                if writing is not None:
                    writing.write(piece)
                yield piece
            if writing is not None:
                self._fill(writing, path, offset + length, size)
                writing.keep(size)
        finally:
            if writing is not None:
                writing.discard()
            if alone:
                with self._lock:
                    self._being_copied.discard(path)

    def stream(self, path: str, length: int, piece: int) -> Generator[pa.Buffer, None, None]:
        if self._cache.holds(path):
            yield from super().stream(path, length, piece)
        else:
            yield from self._inner.stream(path, length, piece)

    def _copied(self, path: str, offset: int, length: int) -> pa.Buffer | None:
        found = self._copy(path, lambda file: file.read(offset, length))
        return None if found is None else found[0]

    def _fill(self, writing: Writing, path: str, start: int, end: int) -> None:
        """Adds what only the copy needs; a failure only means that there will be none."""
        try:
            for position, wanted in ranges(start, end - start, _PIECE_BYTES):
                if not writing.open:
                    return
                writing.write(self._inner.read_range(path, position, wanted))
        except Exception as error:
            # what was asked for is read without it; whoever needs the rest will meet the error
            log.warning("no local copy of %s is kept: %s", self._url(path), error)
            writing.discard()

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        found = self._copy(path, lambda file: file.read(max(0, file.size - length), length))
        if found is not None:
            return found
        tail, size = self._inner.read_tail(path, length)
        if tail.size == size and self._cache.holds(path):
            self._cache.keep(self._url(path), tail)
        return tail, size

    def list(self, directory: str) -> Sequence[Listed]:
        return self._inner.list(directory)

    def delete_many(self, paths: Sequence[str]) -> None:
        self._cache.drop(self._url(path) for path in paths)
        self._inner.delete_many(paths)

    def stamp(self, path: str) -> bool:
        return self._inner.stamp(path)

    def link(self, path: str, target: str, room: Callable[[int], None]) -> bool:
        return self._cache.links(path) and self._cache.link(self._url(path), target, room)

    def keep(self, path: str, source: str) -> None:
        if self._cache.links(path):
            self._cache.keep_file(self._url(path), source)

    def forget(self, path: str) -> bool:
        if not (self._cache.holds(path) or self._cache.links(path)):
            return False
        if self._cache.links(path):
            # whoever links it has looked at what it gave
            self._cache.count("damaged")
        # another reader of the same copy may have dropped it first
        self._cache.drop([self._url(path)])
        return True

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def _copy(self, path: str, read: Callable[[CacheFile], pa.Buffer]) -> tuple[pa.Buffer, int] | None:
        return self._cache.use(self._url(path), read) if self._cache.holds(path) else None

    def _url(self, path: str) -> str:
        return f"{self._root}/{path}"
