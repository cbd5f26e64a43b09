"""Hadoop's file systems through the JVM that started the engine, for URLs that fsspec has no file system for.

The JVM listens on a unix socket in the engine's private directory; a connection serves one directory and one request
at a time (docs/spec/wire.md, "Hadoop files").
"""

from __future__ import annotations

import json
import os
import posixpath
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.storage.backend import Backend, Listed
from lamina.storage.temporary import random_numbers, temporary_name

_PREAMBLE = struct.pack("<4sHH", b"LMNW", 1, 0)
_LENGTH = struct.Struct("<i")
_PIECE_BYTES = 1 << 20
_IDLE_KEPT = 8
_DELETIONS_AT_ONCE = 8
_DELETIONS_LEAST = 8
"""Fewer files are no reason for another connection."""
_GIVEN_UP = -1


@dataclass(frozen=True)
class Jvm:
    """Where the JVM listens, and what it wants to hear first."""

    socket: str
    token: str


class JvmBackend(Backend):
    """Objects below the directory `url` of a Hadoop file system.

    Raises:
        LaminaError: `storage.scheme` where Hadoop has no file system for `url`.
    """

    remote = True

    def __init__(self, jvm: Jvm, url: str, hadoop: Mapping[str, str]) -> None:
        self._jvm = jvm
        self._open = {"op": "open", "url": url, "conf": dict(hadoop)}
        self._numbers = random_numbers()
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        with self._connection():
            pass

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        with self._connection() as connection:
            connection.send({"op": "publish", "path": path, "temporary": self._temporary(path)})
            connection.send_pieces(chunks)
            return int(connection.answer()["size"])

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        with self._connection() as connection:
            connection.send({"op": "publish_if_absent", "path": path, "temporary": self._temporary(path)})
            connection.send_pieces([data])
            return bool(connection.answer()["written"])

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        return self._read(path, 0, 1 << 62 if size is None else size)[0]

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        return self._read(path, offset, length)[0]

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        return self._read(path, -length, length)

    def list(self, directory: str) -> Sequence[Listed]:
        return [Listed(*entry) for entry in self._ask(op="list", path=directory)["entries"]]

    def delete_many(self, paths: Sequence[str]) -> None:
        parts = min(_DELETIONS_AT_ONCE, -(-len(paths) // _DELETIONS_LEAST))
        if parts <= 1:
            self._ask(op="delete", paths=list(paths))
            return
        # Hadoop deletes one at a time, with object stores some requests for each
        with ThreadPoolExecutor(parts) as threads:
            asked = [threads.submit(self._ask, op="delete", paths=list(paths[part::parts])) for part in range(parts)]
        for one in asked:
            one.result()

    def size(self, path: str) -> int:
        return int(self._ask(op="size", path=path)["size"])

    def stamp(self, path: str) -> bool:
        return bool(self._ask(op="stamp", path=path)["stamped"])

    def _read(self, path: str, offset: int, length: int) -> tuple[pa.Buffer, int]:
        with self._connection() as connection:
            connection.send({"op": "read", "path": path, "offset": offset, "length": length})
            answer = connection.answer()
            return connection.receive(answer["length"]), answer["size"]

    def _ask(self, **header: Any) -> dict[str, Any]:
        with self._connection() as connection:
            connection.send(header)
            return connection.answer()

    def _temporary(self, path: str) -> str:
        return temporary_name(posixpath.basename(path), os.getpid(), next(self._numbers))

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        """A connection on which this directory is open; kept for the next request unless this one broke it."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = _Connection(self._jvm)
            try:
                connection.send(self._open)
                connection.answer()
            except _Refused as refused:
                connection.close()
                raise refused.error from None
            except BaseException:
                connection.close()
                raise
        try:
            yield connection
        except _Refused as refused:
            self._keep(connection)
            raise refused.error from None
        except BaseException:
            connection.close()
            raise
        self._keep(connection)

    def _keep(self, connection: _Connection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_KEPT:
                self._idle.append(connection)
                return
        connection.close()


class _Refused(Exception):
    """The JVM answered an error; the connection is in order."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.error: Exception
        if kind == "file.missing":
            self.error = FileNotFoundError(message)
        elif kind == "storage.denied":
            self.error = PermissionError(message)
        elif kind == "storage.failed":
            self.error = OSError(message)
        else:
            self.error = LaminaError.from_kind(kind, message)


class _Connection:
    """One connection to the JVM."""

    def __init__(self, jvm: Jvm) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(jvm.socket)
            self._socket.sendall(_PREAMBLE + jvm.token.encode())
            if self._received(len(_PREAMBLE)) != _PREAMBLE:
                raise ConnectionError("the JVM greeted with other bytes than this wire protocol's")
        except BaseException:
            self._socket.close()
            raise

    def send(self, header: Mapping[str, Any]) -> None:
        body = json.dumps(header, separators=(",", ":")).encode()
        self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def send_pieces(self, chunks: Iterable[Any]) -> None:
        remaining = iter(chunks)
        while True:
            try:
                chunk = next(remaining, None)
            except BaseException:
                # once this is answered, nothing is left of what was sent
                self._socket.sendall(_LENGTH.pack(_GIVEN_UP))
                self.answer()
                raise
            if chunk is None:
                self._socket.sendall(_LENGTH.pack(0))
                return
            view = memoryview(chunk).cast("B")
            for start in range(0, view.nbytes, _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                self._socket.sendall(_LENGTH.pack(piece.nbytes))
                self._socket.sendall(piece)

    def answer(self) -> dict[str, Any]:
        (length,) = _LENGTH.unpack(self._received(_LENGTH.size))
        answer: dict[str, Any] = json.loads(bytes(self._received(length)))
        if not answer["ok"]:
            raise _Refused(answer["error"]["kind"], answer["error"]["message"])
        return answer

    def receive(self, length: int) -> pa.Buffer:
        return pa.py_buffer(self._received(length))

    def _received(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        done = 0
        while done < length:
            count = self._socket.recv_into(view[done:])
            if count == 0:
                raise ConnectionError(
                    "the JVM, whose log says why, ended the connection for Hadoop files in the middle of an answer"
                )
            done += count
        return data

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()
