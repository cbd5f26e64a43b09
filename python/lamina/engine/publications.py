"""Accepted commits that wait for their publication, and the threads that publish them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from lamina.engine.places import MOST_ABANDONED
from lamina.engine.requests import Request, Requests, Stopped
from lamina.errors import LaminaError
from lamina.store.memory.budget import Share

log = logging.getLogger(__name__)

MOST_HELD_BYTES = 32 << 20
"""A larger file is published while it arrives. Object stores take one of this size in one request, so that they would
gather it in any case."""

_LEAST_TAKEN_BYTES = 16 << 10
"""What a commit that waits is taken for at least: its header, manifest and Python objects."""


class _State(Enum):
    WAITING = auto()
    IN_GROUP = auto()
    """Others publish it; no thread waits for that."""
    LEFT = auto()
    """Its request was stopped while it was in a group."""
    IN_WORK = auto()
    ABANDONED = auto()
    """Its request was stopped, and its place given back; its thread may hang in the storage."""
    OVER = auto()


@dataclass
class _Publication:
    request: Request
    storage: str
    work: Callable[[], Mapping[str, Any]]
    share: Share
    taken: int
    state: _State = _State.WAITING


class Publications:
    """Publishes accepted commits, oldest first in each storage, and storages in turn. Thread-safe.

    1. What waits is in memory, and is taken from the engine's budget. One storage takes at most half of it.
    2. At most twice `connections` publications are in work. A storage has at most half of the places that others leave
       free: `connections` where it is alone. So there is a place for the next storage, however many hang.
    3. A publication whose request was stopped gives its place and its memory back at once. Its thread may hang in the
       storage; there are at most 4 * `connections` such threads, and beyond that a place stays taken.
    4. A request that was stopped before its publication began publishes nothing.
    5. A commit that becomes durable together with others, in a group, takes no place and no thread: whoever published
       the group answers it. That of a request that was stopped meanwhile is not counted any more, and may become
       durable; its bytes stay until the group is over, which has an end.

    Args:
        budget_bytes: the bound of the budget that shares are of.
    """

    def __init__(self, requests: Requests, connections: int, budget_bytes: int) -> None:
        self._requests = requests
        self._most = 2 * connections
        self._most_abandoned = MOST_ABANDONED * connections
        self._most_bytes = budget_bytes // 2
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, OrderedDict[int, _Publication]] = OrderedDict()
        self._working: dict[str, int] = {}
        self._abandoned = 0
        self._in_groups = 0
        self._bytes: dict[str, int] = {}
        self._threads = ThreadPoolExecutor(self._most + self._most_abandoned, thread_name_prefix="lamina-publication")

    def take(self, storage: str, size: int, share: Share) -> int:
        """Room for a file that waits to be published in `storage`, and has `size` bytes in memory of which `share` may
        hold some; 0 where there is none.

        Nobody waits for room: without it a commit is published before it is accepted. With it `share` is parked, since
        the storage may hang.
        """
        size = max(_LEAST_TAKEN_BYTES, size)
        with self._lock:
            if self._bytes.get(storage, 0) + size > self._most_bytes:
                return 0
            if not share.park(size):
                return 0
            self._bytes[storage] = self._bytes.get(storage, 0) + size
            return size

    def give(self, storage: str, taken: int) -> None:
        """Gives back what `take` gave."""
        with self._lock:
            self._give(storage, taken)

    def submit(
        self, request: Request, storage: str, work: Callable[[], Mapping[str, Any]], share: Share, taken: int
    ) -> None:
        """Publishes by `work`, whose result is the outcome of `request`; `taken` is what `take` gave for it."""
        publication = _Publication(request, storage, work, share, taken)
        with self._lock:
            self._waiting.setdefault(storage, OrderedDict())[request.id] = publication
            self._begin()
        request.on_stop(lambda: self._stopped(publication))

    def follow(
        self,
        request: Request,
        storage: str,
        work: Callable[[], Mapping[str, Any]],
        share: Share,
        taken: int,
        when_told: Callable[[Callable[[], None]], None],
    ) -> None:
        """Answers `request` when others have published its commit.

        Args:
            work: gives the outcome, once it is known; waits for nothing.
            when_told: calls what it is given then, on any thread.
        """
        publication = _Publication(request, storage, work, share, taken, _State.IN_GROUP)
        with self._lock:
            self._in_groups += 1
        request.on_stop(lambda: self._stopped(publication))
        when_told(lambda: self._answer(publication))

    def stats(self) -> dict[str, Any]:
        """Commits that wait, that others publish in groups, that are being published, and whose threads outlive them;
        bytes of all, by storage."""
        with self._lock:
            return {
                "waiting": sum(map(len, self._waiting.values())),
                "in_groups": self._in_groups,
                "in_work": sum(self._working.values()),
                "abandoned": self._abandoned,
                "held_bytes": dict(self._bytes),
            }

    def _begin(self) -> None:
        """Begins as many publications as may be in work."""
        while (publication := self._next()) is not None:
            publication.state = _State.IN_WORK
            self._working[publication.storage] = self._working.get(publication.storage, 0) + 1
            try:
                self._threads.submit(self._work, publication)
            except RuntimeError:
                # Out of threads: it is queued, and whichever thread gets free takes it.
                log.exception("no thread could be started to publish a commit")

    def _next(self) -> _Publication | None:
        total = sum(self._working.values())
        for storage, waiting in self._waiting.items():
            working = self._working.get(storage, 0)
            if working < (self._most - (total - working) + 1) // 2:
                _, publication = waiting.popitem(last=False)
                del self._waiting[storage]
                if waiting:
                    # behind the others
                    self._waiting[storage] = waiting
                return publication
        return None

    def _work(self, publication: _Publication) -> None:
        request = publication.request
        try:
            request.check()
        except Stopped:
            self._end(publication)
        else:
            self._answer(publication)

    def _answer(self, publication: _Publication) -> None:
        request = publication.request
        try:
            request.answer({"durable": publication.work()})
            request.failed = False
        except Stopped:
            pass  # the peer was told
        except Exception as error:
            if not request.ended:
                if not isinstance(error, LaminaError):
                    log.exception("a publication failed")
                with contextlib.suppress(Stopped):
                    request.fail(LaminaError.from_exception(error))
        finally:
            self._end(publication)

    def _end(self, publication: _Publication) -> None:
        publication.share.close()
        with self._lock:
            if publication.state is _State.ABANDONED:
                self._abandoned -= 1
            elif publication.state is _State.IN_GROUP:
                self._leave_group(publication)
            elif publication.state is _State.IN_WORK:
                self._leave(publication)
                self._begin()
            publication.state = _State.OVER
        self._requests.end(publication.request)

    def _stopped(self, publication: _Publication) -> None:
        """The deadline or a cancel has ended the request: nobody waits for the publication any more."""
        publication.share.cancel()
        with self._lock:
            waited = publication.state is _State.WAITING
            if waited:
                waiting = self._waiting[publication.storage]
                del waiting[publication.request.id]
                if not waiting:
                    del self._waiting[publication.storage]
                self._give(publication.storage, publication.taken)
                publication.state = _State.OVER
            elif publication.state is _State.IN_GROUP:
                self._leave_group(publication)
                publication.state = _State.LEFT
            elif publication.state is _State.IN_WORK and self._abandoned < self._most_abandoned:
                self._abandoned += 1
                publication.state = _State.ABANDONED
                self._leave(publication)
                self._begin()
        if waited:
            self._requests.end(publication.request)

    def _leave_group(self, publication: _Publication) -> None:
        self._in_groups -= 1
        self._give(publication.storage, publication.taken)

    def _leave(self, publication: _Publication) -> None:
        self._working[publication.storage] -= 1
        if not self._working[publication.storage]:
            del self._working[publication.storage]
        self._give(publication.storage, publication.taken)

    def _give(self, storage: str, taken: int) -> None:
        self._bytes[storage] -= taken
        if not self._bytes[storage]:
            del self._bytes[storage]
