"""Data requests in progress: who may answer each, its deadline, cancelling it, and figures about all of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from lamina.errors import EngineError, LaminaError

_BROKEN_KEPT = 256


class Stopped(Exception):
    """The request was answered by its deadline or by a cancel; the thread that works on it gives up."""


class Answers(Protocol):
    """Where a response goes: the request's own connection, or the stream of outcomes."""

    def send_header(self, header: dict[str, Any], /) -> None:
        """Sends a response's header."""

    def shut_down(self) -> None:
        """Ends what only this request uses."""


class Request:
    """One data request. Exactly one party answers it: the thread that works on it, or the one that stops it.

    1. Before `claim` the stopping party sends the error and ends the connection; the working thread's `claim` fails.
    2. After `claim` a part of the response may be on its way: stopping only ends the connection.
    3. A commit that is stopped while it publishes may still become durable. Its attempt is then not confirmed by
       anyone, and the collector removes its file.
    4. A commit that was accepted goes on without its connection: it is answered a second time, by an outcome.
    """

    def __init__(
        self, connection: Answers, request_id: int, op: str, handle: Any, begun: float, deadline: float | None
    ) -> None:
        self.id = request_id
        self.op = op
        self.handle = handle
        self.begun = begun
        self.deadline = deadline
        self.goes_on = False
        """Whether it was accepted: whoever brings about its outcome ends it."""
        self.failed = True
        """Until the response is complete."""
        self.broken: LaminaError | None = None
        """Why the response broke off after it had begun, which the response itself cannot say."""
        self._connection = connection
        self._lock = threading.Lock()
        self._claimed = False
        self._stopped = False
        self._finished = False
        self._on_stop: list[Callable[[], None]] = []
        self._hurry: Callable[[], None] | None = None

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Calls `wake` once the request is stopped, at once where it was; it ends what the working thread waits for."""
        with self._lock:
            stopped = self._stopped
            if not self._finished:
                self._on_stop.append(wake)
        if stopped:
            wake()

    def check(self) -> None:
        """Raises Stopped once the request was stopped; long work calls it between its pieces."""
        if self._stopped:
            raise Stopped

    def accept(self, fields: dict[str, Any], outcomes: Answers, hurry: Callable[[], None]) -> None:
        """Answers that the request was accepted; its outcome goes to `outcomes`.

        From now on a stop ends neither the connection nor what was to be woken with it.

        Args:
            hurry: see `Accepted.hurry`.
        """
        with self._lock:
            if self._stopped:
                raise Stopped
            connection, self._connection = self._connection, outcomes
            self._on_stop = []
            self._hurry = hurry
        connection.send_header({"id": self.id, "ok": True, **fields})
        self.goes_on = True

    def hurry(self) -> bool:
        """Has an accepted request not wait for long for others; False where it was not accepted, or has ended."""
        with self._lock:
            hurry = None if self._stopped else self._hurry
        if hurry is None:
            return False
        hurry()
        return True

    def answer(self, fields: Mapping[str, Any]) -> None:
        """Claims the response and sends its header."""
        self.claim()
        self._connection.send_header({"id": self.id, "ok": True, **fields})

    def fail(self, error: LaminaError) -> None:
        """Claims the response and says why there is none."""
        self.claim()
        self._connection.send_header(failure(self.id, error))

    def claim(self) -> None:
        """Takes the right to answer, for the working thread."""
        with self._lock:
            if self._stopped:
                raise Stopped
            self._claimed = True

    @property
    def claimed(self) -> bool:
        """Whether a response has been begun."""
        return self._claimed

    @property
    def ended(self) -> bool:
        """Whether the response is complete or the request was stopped."""
        return self._finished or self._stopped

    def stop(self, error: LaminaError) -> bool:
        """Ends the request with `error`, from another thread; False where it had already ended."""
        with self._lock:
            if self._finished or self._stopped:
                return False
            self._stopped = True
            answer = not self._claimed
            self.broken = error if self._claimed else None
            waits = list(self._on_stop)
        for wake in waits:
            wake()
        if answer:
            with suppress(OSError):
                self._connection.send_header(failure(self.id, error))
        self._connection.shut_down()
        return True

    def finish(self) -> None:
        """Says that nobody works on the request any more."""
        with self._lock:
            self._finished = True
            # what they hold of the commit goes, whoever keeps the request
            self._on_stop, self._hurry = [], None


def failure(request_id: int | None, error: LaminaError) -> dict[str, Any]:
    """The response header of a request that failed."""
    return {"id": request_id, "ok": False, "error": {"kind": error.kind, "message": error.message}}


class Requests:
    """All data requests of this engine.

    A request costs two dictionary operations: the thread that watches deadlines sleeps until the earliest one that it
    knows of, and is woken only by a request whose deadline is earlier than that.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._active: dict[int, Request] = {}
        self._broken: OrderedDict[int, LaminaError] = OrderedDict()
        self._changed = threading.Condition()
        self._wakes_at = float("inf")
        self._closed = False
        self._figures: dict[str, dict[str, float]] = {}
        self._watcher = threading.Thread(target=self._watch, name="lamina-deadlines", daemon=True)
        self._watcher.start()

    @contextmanager
    def started(self, connection: Answers, header: dict[str, Any]) -> Iterator[Request]:
        """Registers the request of `header` while it is worked on; one that was accepted until `end`."""
        request_id, op, deadline_ms = header.get("id"), header.get("op"), header.get("deadline_ms", 0)
        if type(request_id) is not int or type(op) is not str or type(deadline_ms) not in (int, float):
            raise EngineError(
                "engine.protocol", "a request header needs id (integer), op (text) and deadline_ms (number)"
            )
        begun = self._now()
        deadline = begun + deadline_ms / 1000 if deadline_ms > 0 else None
        request = Request(connection, request_id, op, header.get("handle"), begun, deadline)
        with self._changed:
            if request_id in self._active:
                raise EngineError("engine.protocol", f"request id {request_id} is in use; ids are unique per JVM")
            self._active[request_id] = request
            if deadline is not None and deadline < self._wakes_at:
                self._changed.notify()
        try:
            yield request
        finally:
            if not request.goes_on:
                self.end(request)

    def end(self, request: Request) -> None:
        """Says that nobody works on a request any more."""
        request.finish()
        with self._changed:
            del self._active[request.id]
            if request.broken is not None:
                # not the error itself: its traceback holds what was read and decoded ahead
                error = LaminaError.from_kind(request.broken.kind, request.broken.message)
                self._broken[request.id] = error
                while len(self._broken) > _BROKEN_KEPT:
                    self._broken.popitem(last=False)
            self._count(request.op, (self._now() - request.begun) * 1000, request.failed)

    def cancel(self, request_id: int) -> bool:
        """Stops a request with `engine.cancelled`; False where no such request is in progress."""
        request = self._active.get(request_id)
        return request is not None and request.stop(
            EngineError("engine.cancelled", f"{request.op} request {request_id} was cancelled")
        )

    def hurry(self, request_id: int) -> bool:
        """See `Request.hurry`; False where no such request is in progress."""
        request = self._active.get(request_id)
        return request is not None and request.hurry()

    def broken(self, request_id: int) -> LaminaError | None:
        """Why the response to a request broke off, if it did."""
        with self._changed:
            request = self._active.get(request_id)
            return self._broken.get(request_id) if request is None else request.broken

    def stats(self) -> dict[str, Any]:
        """Requests in progress, and per op: how many, how many failed, total and longest time in ms."""
        with self._changed:
            return {
                "active": [{"id": r.id, "op": r.op, "handle": r.handle} for r in self._active.values()],
                "ops": {op: dict(figures) for op, figures in self._figures.items()},
            }

    def close(self) -> None:
        """Ends the watching thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _count(self, op: str, ms: float, failed: bool) -> None:
        figures = self._figures.get(op)
        if figures is None:
            if len(self._figures) >= 32:  # names come from the peer
                return
            figures = self._figures[op] = {"count": 0, "failed": 0, "total_ms": 0.0, "max_ms": 0.0}
        figures["count"] += 1
        figures["failed"] += failed
        figures["total_ms"] += ms
        figures["max_ms"] = max(figures["max_ms"], ms)

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = self._now()
                watched = [(r.deadline, r) for r in self._active.values() if r.deadline is not None and not r.ended]
                late = [request for deadline, request in watched if deadline <= now]
                if not late:
                    self._wakes_at = min((deadline for deadline, _ in watched), default=float("inf"))
                    wait_s = self._wakes_at - now if watched else None
                    # who sleeps keeps none of them
                    watched = []
                    self._changed.wait(wait_s)
                    continue
            for request in late:
                request.stop(
                    EngineError("engine.deadline", f"{request.op} request {request.id} did not end before its deadline")
                )
