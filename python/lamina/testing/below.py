"""A directory of another storage, taken for a storage of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from lamina.storage import Backend, Listed


class Below(Backend):
    """What is below a directory of `inner`, which fails where that fails."""

    def __init__(self, inner: Backend, directory: str) -> None:
        self._inner = inner
        self._directory = directory

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        return self._inner.publish(self._path(path), chunks)

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        return self._inner.publish_if_absent(self._path(path), data)

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        return self._inner.read(self._path(path), size)

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        return self._inner.read_range(self._path(path), offset, length)

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        return self._inner.read_tail(self._path(path), length)

    def list(self, directory: str) -> Sequence[Listed]:
        return self._inner.list(self._path(directory).rstrip("/"))

    def delete_many(self, paths: Sequence[str]) -> None:
        self._inner.delete_many([self._path(path) for path in paths])

    def size(self, path: str) -> int:
        return self._inner.size(self._path(path))

    def _path(self, path: str) -> str:
        return f"{self._directory}/{path}"
