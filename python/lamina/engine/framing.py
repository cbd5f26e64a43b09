"""Bytes on a data connection: the preamble, JSON headers with a length, and Arrow IPC streams without extra copies."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from lamina.errors import EngineError
from lamina.format import SCHEMA

PROTOCOL = 1

PREAMBLE = struct.pack("<4sHH", b"LMNW", PROTOCOL, 0)
TOKEN_BYTES = 64

_MAX_HEADER_BYTES = 64 << 20
# A record batch holds 64 MiB of keys and of values, more only for a single row of at most 2 GiB.
_MAX_READ_BYTES = (2 << 30) + (256 << 20)
_ALLOCATE_FROM = 4096
_AHEAD_BYTES = 16 << 10
_SEND_FROM = 1 << 20
_MAX_PARTS = 512

_LENGTH = struct.Struct("<I")

FEED_SCHEMA = SCHEMA.append(pa.field("version", pa.int64(), nullable=False))

_ENTRY_COLUMNS = ", ".join(f"{field.name} {field.type}" for field in SCHEMA)
_STREAM_OPTIONS = pa.ipc.IpcWriteOptions(compression=None)


def framed(header: dict[str, Any]) -> bytes:
    """A header as it is sent."""
    body = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class PeerGone(ConnectionError):
    """The peer closed its connection in the middle of a request or of its response."""


class Connection:
    """One data connection; requests follow one another on it.

    It is also the file that pyarrow reads from and writes to: `read_buffer` receives a message body straight into
    the memory that the record batch keeps, and `write` gathers the pieces of a batch and hands them to the kernel as
    they are. What is small is received ahead: a small commit is a dozen reads, and each would be a system call that
    gives the interpreter away.
    """

    closed = False
    """Asked by pyarrow; the stream of one request ends without closing the connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._next = self._end = 0
        self._parts: list[memoryview] = []
        self._unsent = 0
        self.received = 0
        self.sent = 0

    def accept(self, token: bytes, timeout_s: float) -> bool:
        """Reads preamble and token of a new connection and answers them; False where they are wrong."""
        self._socket.settimeout(timeout_s)
        try:
            offered = bytearray()
            while len(offered) < len(PREAMBLE) + TOKEN_BYTES:
                piece = self._socket.recv(len(PREAMBLE) + TOKEN_BYTES - len(offered))
                if not piece:
                    return False
                offered += piece
            if offered[: len(PREAMBLE)] != PREAMBLE or not hmac.compare_digest(bytes(offered[len(PREAMBLE) :]), token):
                return False
            self._socket.sendall(PREAMBLE)
        except OSError:
            return False
        self._socket.settimeout(None)
        return True

    def receive_header(self) -> dict[str, Any] | None:
        """The next request's header, or None where the peer closed the connection between requests.

        Raises:
            EngineError: `engine.protocol`; what follows on the connection cannot be understood.
        """
        if self._next == self._end and not self._receive_ahead():
            return None
        (length,) = _LENGTH.unpack(self.read(_LENGTH.size))
        if length > _MAX_HEADER_BYTES:
            raise EngineError("engine.protocol", f"a request header of {length} bytes; at most {_MAX_HEADER_BYTES}")
        try:
            header = json.loads(bytes(self.read(length)))
        except ValueError as error:
            raise EngineError("engine.protocol", f"a request header that is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise EngineError("engine.protocol", f"a request header that is not an object but {type(header).__name__}")
        return header

    def send_header(self, header: dict[str, Any]) -> None:
        """Sends a response's header at once."""
        self.send(framed(header))

    def send(self, data: bytes) -> None:
        """Sends bytes at once."""
        try:
            self._socket.sendall(data)
        except ConnectionError as error:
            raise PeerGone("the connection was closed before a response") from error

    def send_now(self, data: bytes) -> int:
        """Sends as much as the peer's buffer takes; how much that was."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise PeerGone("the connection was closed before a response") from error

    def receive_stream(self) -> Iterator[pa.RecordBatch]:
        """The batches of one Arrow IPC stream; each is received when it is asked for."""
        try:
            with pa.ipc.open_stream(pa.PythonFile(self, mode="r")) as reader:
                found = ", ".join(f"{field.name} {field.type}" for field in reader.schema)
                if found != _ENTRY_COLUMNS:
                    raise EngineError("engine.protocol", f"a section with the columns {found}, not {_ENTRY_COLUMNS}")
                for batch in reader:
                    batch.validate()
                    yield batch
        except pa.ArrowException as error:
            raise EngineError("engine.protocol", f"a section that is not an Arrow stream: {error}") from error

    def send_stream(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Sends `batches` as one Arrow IPC stream; its end mark only once there are no more."""
        writer = pa.ipc.new_stream(pa.PythonFile(self, mode="w"), schema, options=_STREAM_OPTIONS)
        for batch in batches:
            writer.write_batch(batch)
            self.flush()
        writer.close()
        self.flush()

    def read(self, size: int) -> bytes | pa.Buffer:
        """Exactly `size` bytes; pyarrow calls it.

        Raises:
            PeerGone: the peer closed the connection. An end inside a stream is never taken for the stream's end.
        """
        if size < _ALLOCATE_FROM:
            data = self._taken(size)
            while len(data) < size:
                if not self._receive_ahead():
                    raise PeerGone("the connection was closed in the middle of a request")
                data += self._taken(size - len(data))
            self.received += size
            return data
        if size > _MAX_READ_BYTES:
            raise EngineError("engine.protocol", f"an Arrow message of {size} bytes; at most {_MAX_READ_BYTES}")
        buffer = pa.allocate_buffer(size)
        view = memoryview(buffer).cast("B")
        first = self._taken(size)
        at = len(first)
        view[:at] = first
        while at < size:
            count = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            if not count:
                raise PeerGone("the connection was closed in the middle of a request")
            at += count
        self.received += size
        return buffer

    read_buffer = read

    def _receive_ahead(self) -> bool:
        """Receives what there is, at least a byte, once everything before it was taken; False at the end."""
        self._next, self._end = 0, self._socket.recv_into(self._ahead)
        return self._end > 0

    def _taken(self, most: int) -> bytes:
        """At most so many bytes of what was received ahead."""
        start, self._next = self._next, min(self._next + most, self._end)
        return self._ahead[start : self._next].tobytes()

    def write(self, data: Any) -> int:
        """Takes `data` (not copied) for sending; pyarrow calls it."""
        part = memoryview(data).cast("B")
        if part.nbytes:
            self._parts.append(part)
            self._unsent += part.nbytes
            if self._unsent >= _SEND_FROM or len(self._parts) >= _MAX_PARTS:
                self.flush()
        return part.nbytes

    def flush(self) -> None:
        """Sends everything that was taken."""
        parts, self._parts, self._unsent = self._parts, [], 0
        while parts:
            try:
                count = self._socket.sendmsg(parts)
            except ConnectionError as error:
                raise PeerGone("the connection was closed in the middle of a response") from error
            self.sent += count
            whole = 0
            while whole < len(parts) and count >= parts[whole].nbytes:
                count -= parts[whole].nbytes
                whole += 1
            del parts[:whole]
            if count:
                parts[0] = parts[0][count:]

    def close(self) -> None:
        """Called by pyarrow at the end of a stream: the connection stays."""

    def shut_down(self) -> None:
        """Ends the connection from any thread; whoever waits on it wakes up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
