"""A storage that fails where a test says so: before an operation, or after it was applied (its answer is lost)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from lamina.storage import Backend, Listed

_Result = TypeVar("_Result")


@dataclass
class Fault:
    """Fails calls of `operation` (a method's name, or "*") on paths that contain `path`.

    `after` lets the call have its effect first; `times` is how many calls fail.
    """

    operation: str
    path: str = ""
    after: bool = False
    times: int = 1


class FaultyBackend(Backend):
    """Passes calls on to `inner`, unless a fault is set for them; `calls` lists (operation, path)."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.calls: list[tuple[str, str]] = []

    def inject(self, fault: Fault) -> None:
        """Sets a fault; faults are used up in their order."""
        with self._lock:
            self._faults.append(fault)

    def heal(self) -> None:
        """Removes all faults."""
        with self._lock:
            self._faults.clear()

    def _call(self, operation: str, path: str, call: Callable[[], _Result]) -> _Result:
        with self._lock:
            self.calls.append((operation, path))
            fault = next(
                (
                    fault
                    for fault in self._faults
                    if fault.times > 0 and fault.operation in ("*", operation) and fault.path in path
                ),
                None,
            )
            if fault is not None:
                fault.times -= 1
        if fault is None:
            return call()
        if fault.after:
            call()
        raise OSError(f"injected fault {'after' if fault.after else 'before'} {operation} of {path}")

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        return self._call("publish", path, lambda: self._inner.publish(path, chunks))

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        return self._call("publish_if_absent", path, lambda: self._inner.publish_if_absent(path, data))

    def read(self, path: str) -> pa.Buffer:
        return self._call("read", path, lambda: self._inner.read(path))

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        return self._call("read_range", path, lambda: self._inner.read_range(path, offset, length))

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        return self._call("read_tail", path, lambda: self._inner.read_tail(path, length))

    def list(self, directory: str) -> Sequence[Listed]:
        return self._call("list", directory, lambda: self._inner.list(directory))

    def delete_many(self, paths: Sequence[str]) -> None:
        self._call("delete_many", paths[0], lambda: self._inner.delete_many(paths))

    def size(self, path: str) -> int:
        return self._call("size", path, lambda: self._inner.size(path))
