"""What restores of a store have found damaged or missing."""

from __future__ import annotations

import threading

from lamina.store.restore.detours import Place


class BrokenPlaces:
    """Remembers sections. Thread-safe; handles of a store that are open one after the other share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: frozenset[Place] = frozenset()

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
