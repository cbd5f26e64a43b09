"""How many connections are served at once, and how many threads may outlive their requests."""

from __future__ import annotations

import threading

MOST_ABANDONED = 4
"""Threads that outlive their requests, as a multiple of the places: as long as there are fewer, places are given back
early."""


class Places:
    """`limit` places for connections; a place is taken before a connection is accepted.

    1. A place is given back when its thread ends, or early, when its request was stopped: by its deadline or a cancel.
       The thread may be in a storage call that hangs then, and goes on without a place.
    2. At most 4 * `limit` threads are without a place. Beyond that a place stays taken until its thread ends.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = threading.BoundedSemaphore(limit)
        self._lock = threading.Lock()
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """Threads that go on without a place."""
        return self._abandoned

    def take(self) -> Place:
        """Waits for a free place and takes it."""
        self._free.acquire()
        return Place(self)

    def _leave(self) -> bool:
        with self._lock:
            if self._abandoned >= MOST_ABANDONED * self.limit:
                return False
            self._abandoned += 1
        self._free.release()
        return True

    def _end(self, left: bool) -> None:
        if left:
            with self._lock:
                self._abandoned -= 1
        else:
            self._free.release()


class Place:
    """A place that was taken."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._left = False
        self._ended = False

    def leave(self) -> None:
        """Gives the place back although its thread goes on, where that may be; from any thread, any number of times."""
        with self._lock:
            if not self._left and not self._ended:
                self._left = self._places._leave()

    def end(self) -> None:
        """Says that its thread ends, or needs no place any more; once is enough."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._places._end(self._left)
