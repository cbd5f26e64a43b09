"""Objects in a dictionary, published at the time that a test's clock shows: the fastest storage, and one that can be
copied and compared."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from lamina.components import Clock
from lamina.storage import Backend, Listed


class MemoryBackend(Backend):
    """Objects by path; `objects` holds their bytes and time of publication in milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, int]] = {}

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        data = b"".join(bytes(chunk) for chunk in chunks)
        with self._lock:
            self.objects[path] = (data, self._clock.now_ms())
        return len(data)

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        with self._lock:
            if path in self.objects:
                return False
            self.objects[path] = (bytes(data), self._clock.now_ms())
            return True

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        return pa.py_buffer(self._get(path)[:size])

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        return pa.py_buffer(self._get(path)[offset : offset + length])

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        data = self._get(path)
        return pa.py_buffer(data[max(0, len(data) - length) :]), len(data)

    def list(self, directory: str) -> Sequence[Listed]:
        start = f"{directory}/" if directory else ""
        with self._lock:
            return [
                Listed(path[len(start) :], len(data), published_ms)
                for path, (data, published_ms) in self.objects.items()
                if path.startswith(start) and "/" not in path[len(start) :]
            ]

    def stamp(self, path: str) -> bool:
        data = self._get(path)
        with self._lock:
            self.objects[path] = (data, self._clock.now_ms())
        return True

    def delete_many(self, paths: Sequence[str]) -> None:
        with self._lock:
            for path in paths:
                self.objects.pop(path, None)

    def size(self, path: str) -> int:
        return len(self._get(path))

    def _get(self, path: str) -> bytes:
        with self._lock:
            found = self.objects.get(path)
        if found is None:
            raise FileNotFoundError(path)
        return found[0]
