"""Footprints of commits that became durable here, until a collector elsewhere is told of them."""

from __future__ import annotations

import threading
from collections import deque

from lamina.store.collection.footprints import Footprint

MOST_KEPT = 128
"""Footprints of one store that nobody has taken yet; older ones are read from their manifests."""

MOST_NAMES = 8192
"""Names in them, unless the latest alone has more: where chains are long, fewer commits are kept."""


class UntoldFootprints:
    """The latest footprints of one store, in the order of their commits. Thread-safe.

    All handles of the store in one run share them: a store may be closed and opened again between two commits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[str, Footprint]] = deque()
        self._names = 0

    def add(self, attempt: str, footprint: Footprint) -> None:
        """Keeps that of an attempt that is durable; of too many the oldest are forgotten."""
        with self._lock:
            # most names are those of the commit before, which another handle may have read from its manifest
            before = {name: name for name in self._kept[-1][1].names} if self._kept else {}
            names = tuple(before.get(name, name) for name in footprint.names)
            self._kept.append((attempt, Footprint(names, footprint.stands_on)))
            self._names += len(names)
            while len(self._kept) > MOST_KEPT or (self._names > MOST_NAMES and len(self._kept) > 1):
                self._names -= len(self._kept.popleft()[1].names)

    def take(self) -> list[tuple[str, Footprint]]:
        """Those that were kept since the last call, oldest first."""
        with self._lock:
            taken = list(self._kept)
            self._kept.clear()
            self._names = 0
        return taken
