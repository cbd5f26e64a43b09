"""The data server: a unix socket, one thread per connection, at most `engine.connections` of them at once.

The stream of outcomes is a connection that is not counted: there is one of it.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from lamina.engine.framing import Connection, PeerGone
from lamina.engine.outcomes import OutcomeStream
from lamina.engine.places import Place, Places
from lamina.engine.requests import Request, Requests, Stopped, failure
from lamina.errors import EngineError, LaminaError

log = logging.getLogger(__name__)

_PREAMBLE_TIMEOUT_S = 10.0
_BACKLOG = 1024
_ACCEPT_PAUSE_S = 0.1


class Exchange:
    """One request and its response: what an operation reads and answers."""

    def __init__(self, connection: Connection, request: Request, header: dict[str, Any]) -> None:
        self.header = header
        self._connection = connection
        self._request = request
        self._unread = self._section_names()
        self._current: Iterator[pa.RecordBatch] | None = None
        self.stream_of_outcomes: OutcomeStream | None = None
        """What the connection is for from now on, once the request was answered."""

    @property
    def deadline(self) -> float | None:
        """When the request is answered whatever became of it, in seconds of the clock; None where that is never."""
        return self._request.deadline

    def sections(self) -> dict[str, Iterator[pa.RecordBatch]]:
        """The request's sections by name, in the order in which they arrive; asking for one skips those before it."""
        return {name: self._section(name) for name in self._unread}

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Calls `wake` once the request is stopped."""
        self._request.on_stop(wake)

    def skip_sections(self) -> None:
        """Reads what is left of the request, so that the next one can follow."""
        if self._current is not None:
            for _ in self._current:
                self._request.check()
        while self._unread:
            for _ in self._section(self._unread[0]):
                pass

    def answer(self, fields: Mapping[str, Any]) -> None:
        """Sends the response's header."""
        self._request.answer(fields)

    def accept(self, fields: dict[str, Any], outcomes: OutcomeStream, hurry: Callable[[], None]) -> Request:
        """See `Request.accept`; the request goes on without this exchange, and ends by an outcome."""
        self._request.accept(fields, outcomes, hurry)
        return self._request

    def stream(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Sends the response's stream; after `answer`."""
        self._connection.send_stream(schema, self._checked(batches))

    def _section_names(self) -> list[str]:
        names = self.header.get("sections", [])
        if not isinstance(names, list) or not all(name in ("increment", "snapshot", "rewrite") for name in names):
            raise EngineError("engine.protocol", f"a request with the sections {names!r}")
        return list(names)

    def _section(self, name: str) -> Iterator[pa.RecordBatch]:
        while self._unread and self._unread[0] != name:
            for _ in self._section(self._unread[0]):
                pass
        if not self._unread:
            raise EngineError("engine.protocol", f"section {name} was read twice")
        self._unread.pop(0)
        self._current = self._connection.receive_stream()
        for batch in self._current:
            self._request.check()
            yield batch
        self._current = None

    def _checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._request.check()
            yield batch


class Operation(Protocol):
    """What serves one kind of request."""

    def __call__(self, exchange: Exchange) -> None:
        """Reads the request's sections, answers, and streams the response."""


class DataServer:
    """Accepts data connections and serves their requests with `operations`."""

    def __init__(
        self, path: str, token: str, operations: Mapping[str, Operation], requests: Requests, connections: int
    ) -> None:
        self.path = path
        self._token = token.encode()
        self._operations = operations
        self._requests = requests
        # The place is taken before a connection is accepted: further ones wait in the listening queue, unread.
        self._places = Places(connections)
        self._pause = threading.Event()
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._received = 0
        self._sent = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        self._socket.listen(_BACKLOG)

    def start(self) -> None:
        """Accepts connections from now on."""
        threading.Thread(target=self._accept, name="lamina-accept", daemon=True).start()

    def stats(self) -> dict[str, Any]:
        """Connections in use and their limit, threads that outlive their requests, bytes received and sent."""
        with self._lock:
            return {
                "connections": len(self._connections),
                "connection_limit": self._places.limit,
                "abandoned": self._places.abandoned,
                "received_bytes": self._received + sum(c.received for c in self._connections),
                "sent_bytes": self._sent + sum(c.sent for c in self._connections),
            }

    def _accept(self) -> None:
        while True:
            place = self._places.take()
            try:
                sock, _ = self._socket.accept()
            except OSError:
                # Out of file descriptors: those who wait go on waiting.
                log.exception("a data connection could not be accepted")
                place.end()
                self._pause.wait(_ACCEPT_PAUSE_S)
                continue
            try:
                threading.Thread(target=self._serve, args=(sock, place), name="lamina-connection", daemon=True).start()
            except RuntimeError:
                # Out of threads: the peer is told by the end of its connection.
                log.exception("a data connection could not be served")
                sock.close()
                place.end()
                self._pause.wait(_ACCEPT_PAUSE_S)

    def _serve(self, sock: socket.socket, place: Place) -> None:
        connection = Connection(sock)
        with self._lock:
            self._connections.add(connection)
        try:
            if connection.accept(self._token, _PREAMBLE_TIMEOUT_S):
                self._serve_requests(connection, place)
            else:
                log.warning("a data connection with a wrong preamble or token was closed")
        except (Stopped, OSError):
            pass  # the peer was told, or is gone
        except Exception:
            log.exception("a data connection was closed")
        finally:
            sock.close()
            with self._lock:
                self._connections.discard(connection)
                self._received += connection.received
                self._sent += connection.sent
            place.end()

    def _serve_requests(self, connection: Connection, place: Place) -> None:
        """Serves until the peer closes the connection between requests, or until nothing can follow any more."""
        while True:
            request_id: int | None = None
            try:
                header = connection.receive_header()
                if header is None:
                    return
                request_id = header.get("id") if type(header.get("id")) is int else None
                with self._requests.started(connection, header) as request:
                    # its thread may hang in a storage then
                    request.on_stop(place.leave)
                    exchange = self._work(connection, request, header)
                if exchange is not None and exchange.stream_of_outcomes is not None:
                    place.end()
                    exchange.stream_of_outcomes.serve(connection)
                    return
            except EngineError as error:
                if error.kind != "engine.protocol":
                    raise
                # Where the next request would begin is unknown: answer and close.
                connection.send_header(failure(request_id, error))
                return

    def _work(self, connection: Connection, request: Request, header: dict[str, Any]) -> Exchange | None:
        exchange = None
        try:
            exchange = Exchange(connection, request, header)
            operation = self._operations.get(request.op)
            if operation is None:
                raise EngineError("engine.protocol", f"{request.op!r} is not an operation of this engine")
            operation(exchange)
            if not request.goes_on:
                request.failed = False
        except (Stopped, PeerGone):
            raise
        except Exception as error:
            if request.ended:
                raise Stopped from error
            if not isinstance(error, LaminaError):
                log.exception("a %s request failed", request.op)
            if request.claimed:
                log.warning("a %s response broke off: %s", request.op, error)
                request.broken = LaminaError.from_exception(error)
                raise ConnectionAbortedError from error
            ours = LaminaError.from_exception(error)
            if exchange is None or ours.kind == "engine.protocol":
                request.claim()
                raise ours from None
            exchange.skip_sections()
            request.fail(ours)
        return exchange
