"""A storage that counts its calls, behind local copies."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lamina.storage import LocalCache, Storage
from lamina.storage.cache import CachingBackend
from lamina.testing import FaultyBackend


class Counted:
    """A storage in memory that counts its calls, behind a cache of its own directory."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int = 64 << 20,
        url: str | None = None,
        holds: Callable[[str], bool] = lambda path: not path.startswith("mutable"),
        links: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.url = url or f"memory://cache/{uuid.uuid4()}"
        self.inner = FaultyBackend(Storage(self.url)._backend)
        self.cache = LocalCache(str(directory), max_bytes, holds, links)
        self.storage = Storage(self.url, backend=CachingBackend(self.inner, self.cache, self.url))

    def reads(self) -> int:
        """Reads of the storage behind the cache."""
        return sum(operation.startswith("read") for operation, _ in self.inner.calls)

    def copies(self) -> list[Path]:
        """Files of the cache that are copies."""
        return [path for path in Path(self.cache.directory).iterdir() if len(path.name) == 64]

    def copied_bytes(self) -> int:
        return sum(sizes(self.copies()))

    def settled(self) -> None:
        """Waits until nothing is being evicted."""
        assert self.cache.wait_for_eviction(120)


def sizes(paths: Iterable[Path]) -> Iterator[int]:
    """The sizes of those files that are there."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            yield path.stat().st_size


def pattern(size: int, seed: int = 0) -> bytes:
    return bytes((seed + number * 7) % 251 for number in range(min(size, 1000))) * (size // 1000 + 1)


def part(storage: Storage, path: str, offset: int, length: int, size: int) -> bytes:
    return b"".join(storage.read_pieces(path, offset, length, size))
