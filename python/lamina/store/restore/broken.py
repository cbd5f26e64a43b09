"""What was found damaged or missing of a store, and which of it merges are to make anew."""

from __future__ import annotations

import threading

from lamina.store.restore.detours import Place


class BrokenPlaces:
    """Remembers sections that loads, or collections, found so. Thread-safe; handles of a store that are open one after
    the other share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: frozenset[Place] = frozenset()
        self._asked: frozenset[Place] = frozenset()
        self._tried: frozenset[Place] = frozenset()

    @property
    def places(self) -> frozenset[Place]:
        """All of them."""
        return self._places

    def add(self, places: frozenset[Place]) -> frozenset[Place]:
        """Gives those that are new."""
        with self._lock:
            new = places - self._places
            self._places |= places
        return new

    @property
    def to_mend(self) -> frozenset[Place]:
        """Those that a merge is to make anew, and none has tried to."""
        with self._lock:
            return self._asked - self._tried

    def ask(self, places: frozenset[Place]) -> bool:
        """Has merges make these anew; whether there are any that none has tried to."""
        with self._lock:
            self._asked |= places
            return not places <= self._tried

    def note_tried(self, places: frozenset[Place]) -> None:
        """Says that a merge that knew of these has ended well: one that leaves them where they are does so again."""
        with self._lock:
            self._tried |= places
