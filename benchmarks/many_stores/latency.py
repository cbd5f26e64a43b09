"""A storage that is far away, without a server that would cost processor time: the engine waits before each request.

The processes of lamina load `hook/sitecustomize.py`, since its directory is on their PYTHONPATH, and put `FarBackend`
between a store and its files. How long a request of each process takes stands in a file that all have mapped into their
memory, so that it changes while they run and costs no call to look at. Each request is a line of another file, with the
process that made it.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lamina.storage import Backend, Listed
from lamina.storage.backend import ranges

ENGINE, MAINTENANCE = "engine", "maintenance"
VARIABLE = "LAMINA_BENCHMARK_DISTANCE"
HOOK = Path(__file__).parent / "hook"
_PLACES = {ENGINE: 0, MAINTENANCE: 8}
_SECONDS = struct.Struct("=d")
PIECE_BYTES = 8 << 20
LATENCY_S = 0.05


class Distance:
    """How far away a storage is, as whoever measures says it, and which requests were made of it.

    Args:
        directory: of the files; made where it is not there.
        process: that makes the requests, `ENGINE` or `MAINTENANCE`.
    """

    def __init__(self, directory: str | Path, process: str = ENGINE) -> None:
        self._process = process
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._requests = self.directory / "requests"
        self._read = 0
        self._log = os.open(self._requests, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        latencies = os.open(self.directory / "latencies", os.O_RDWR | os.O_CREAT)
        size = len(_PLACES) * _SECONDS.size
        os.ftruncate(latencies, size)
        self._latencies = mmap.mmap(latencies, size)
        os.close(latencies)

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of the processes has to hold."""
        return {VARIABLE: str(self.directory), "PYTHONPATH": str(HOOK)}

    def set(self, process: str, latency_s: float) -> None:
        """Each request of a process takes so long from now on."""
        _SECONDS.pack_into(self._latencies, _PLACES[process], latency_s)

    def request(self, operation: str, path: str) -> None:
        """Notes a request, and waits as long as it takes."""
        os.write(self._log, f"{self._process} {operation} {path}\n".encode())
        (latency_s,) = _SECONDS.unpack_from(self._latencies, _PLACES[self._process])
        if latency_s:
            time.sleep(latency_s)

    def requests(self) -> Counter[str]:
        """The requests since the last call, by process, operation and kind of file."""
        with self._requests.open("rb") as file:
            file.seek(self._read)
            lines = [line.split(" ", 2) for line in file.read().decode().splitlines()]
            self._read = file.tell()
        return Counter(f"{process} {operation} {_kind(path)}" for process, operation, path in lines)


def _kind(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    if path.startswith("_lamina"):
        return path
    return name.rsplit(".", 1)[-1] if "." in name else "store"


class FarBackend(Backend):
    """Passes calls on to `inner`, each after one round trip."""

    remote = True

    def __init__(self, inner: Backend, distance: Distance) -> None:
        self._inner = inner
        self._distance = distance

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        self._distance.request("publish", path)
        return self._inner.publish(path, chunks)

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        self._distance.request("publish", path)
        return self._inner.publish_if_absent(path, data)

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        self._distance.request("read", path)
        return self._inner.read(path, size)

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        self._distance.request("read", path)
        return self._inner.read_range(path, offset, length)

    def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        for start, wanted in ranges(offset, length, PIECE_BYTES):
            yield self.read_range(path, start, wanted)

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        self._distance.request("read", path)
        return self._inner.read_tail(path, length)

    def list(self, directory: str) -> Sequence[Listed]:
        self._distance.request("list", directory)
        return self._inner.list(directory)

    def delete_many(self, paths: Sequence[str]) -> None:
        # an object store takes a thousand names in a request
        for first in range(0, len(paths), 1000):
            self._distance.request("delete", paths[first])
            self._inner.delete_many(paths[first : first + 1000])

    def stamp(self, path: str) -> bool:
        self._distance.request("stamp", path)
        return self._inner.stamp(path)

    def forget(self, path: str) -> bool:
        return self._inner.forget(path)

    def size(self, path: str) -> int:
        self._distance.request("size", path)
        return self._inner.size(path)


def install(distance: Distance) -> None:
    """Puts a distance before every storage that this process opens."""
    from lamina.storage import storage

    opened = storage.open_backend

    def open_backend(*arguments: Any, **named: Any) -> Backend:
        return FarBackend(opened(*arguments, **named), distance)

    storage.open_backend = open_backend
