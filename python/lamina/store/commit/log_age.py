"""How long the oldest of a store's commits that are in the log has been seen there."""

from __future__ import annotations

import threading


class LogAge:
    """Counts from when it first saw the oldest commit of a version that is in a log object. Thread-safe.

    Handles of a store that are open one after the other share it: it may be closed and opened for each batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._oldest: str | None = None
        self._seen_s = 0.0

    def seen_s(self, oldest: str | None, now: float) -> float:
        """For how many seconds this one has been seen as the oldest; 0 where there is none.

        Args:
            now: in seconds of the clock.
        """
        with self._lock:
            if oldest is None or oldest != self._oldest:
                self._oldest, self._seen_s = oldest, now
            return now - self._seen_s
