"""A remote storage that shows how many of its reads are under way at once."""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa

from lamina.storage.backend import Backend
from lamina.testing import FaultyBackend


class Meeting(FaultyBackend):
    """A remote storage whose reads of one kind wait until so many are under way at once."""

    remote = True

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.most: Counter[str] = Counter()
        self.expected = 0
        self.alone = 0
        """So many reads come before others do."""
        self._under_way: Counter[str] = Counter()
        self._changed = threading.Condition()

    def _met(self, operation: str) -> None:
        with self._changed:
            if self.alone > 0:
                self.alone -= 1
                return
            self._under_way[operation] += 1
            self.most[operation] = max(self.most[operation], self._under_way[operation])
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self.most[operation] >= self.expected, timeout=10):
                self.expected = 0  # nobody else comes
            self._under_way[operation] -= 1

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        self._met("read_tail")
        return super().read_tail(path, length)

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        self._met("read_range")
        return super().read_range(path, offset, length)

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        self._met("read")
        return super().read(path, size)
