"""The stream on which the JVM hears what became of accepted commits: one connection, whatever the number of commits."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from lamina.engine.framing import Connection, PeerGone, framed


class OutcomeStream:
    """One connection that carries outcomes. Any thread may add one and never waits for the peer.

    Whoever adds an outcome sends it, without a change of thread; the stream's own thread sends what the peer did not
    take at once. An outcome for a peer that is gone is dropped: it has given up all commits that it waited for.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._unsent: list[bytes] = []
        self._sending = True
        """Whether the stream's own thread has to send first, since it is at it or is not there yet."""
        self._open = True

    def send_header(self, header: dict[str, Any]) -> None:
        """Takes the outcome of one commit."""
        data = framed(header)
        with self._changed:
            if self._open and not self._sending and self._connection is not None:
                # the stream's own thread finds that, too
                with suppress(PeerGone):
                    data = data[self._connection.send_now(data) :]
            if self._open and data:
                self._sending = True
                self._unsent.append(data)
                self._changed.notify()

    def shut_down(self) -> None:
        """A request whose outcome was sent ends nothing: others share the stream."""

    def close(self) -> None:
        """Ends the stream; what was not sent is dropped."""
        with self._changed:
            self._open = False
            self._unsent.clear()
            self._changed.notify()

    @property
    def is_open(self) -> bool:
        return self._open

    def serve(self, connection: Connection) -> None:
        """Sends outcomes until the stream is closed or the peer is gone."""
        self._connection = connection
        try:
            while True:
                with self._changed:
                    while self._open and not self._unsent:
                        self._sending = False
                        self._changed.wait()
                    if not self._open:
                        return
                    data, self._unsent = b"".join(self._unsent), []
                connection.send(data)
        except PeerGone:
            pass
        finally:
            self.close()


class Outcomes:
    """The outcome stream of this engine's JVM. A new one takes the place of the one before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: OutcomeStream | None = None

    def opened(self) -> OutcomeStream:
        """A new stream; the one before is closed."""
        with self._lock:
            before, self._current = self._current, OutcomeStream()
            if before is not None:
                before.close()
            return self._current

    @property
    def current(self) -> OutcomeStream | None:
        """The stream that is open; None where nobody listens."""
        current = self._current
        return current if current is not None and current.is_open else None
