"""How long requests took of late, and after how long one counts as slow."""

from __future__ import annotations

import math
import threading
from collections import deque

_KEPT = 512
_LEAST_KNOWN = 20
"""Before so many requests nothing is known of how long most take."""

_LEAST_SLOW_S = 0.01
"""A further request beside one that takes less would cost more than it spares."""

SLOW_PERCENT = 95.5
"""What takes longer than so many of those of late has another one beside it: together they are less than one more in
twenty."""


class Latencies:
    """Of one kind of request. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latencies: deque[float] = deque(maxlen=_KEPT)

    def add(self, seconds: float) -> None:
        """Hears of one that is over, whichever attempt ended it."""
        with self._lock:
            self._latencies.append(seconds)

    @property
    def are_known(self) -> bool:
        """Whether there were enough to say how long most take."""
        return len(self._latencies) >= _LEAST_KNOWN

    def percentiles(self, *percents: float) -> list[float]:
        """For each the least number of seconds that so many percent do not exceed; 0 where none is known."""
        ordered = self._ordered()
        return [_percentile(ordered, percent) for percent in percents]

    def slow_s(self, percent: float) -> float:
        """After how many seconds one is slower than so many percent; never while few are known."""
        return max(_LEAST_SLOW_S, *self.percentiles(percent)) if self.are_known else math.inf

    def _ordered(self) -> list[float]:
        with self._lock:
            return sorted(self._latencies)


def _percentile(ordered: list[float], percent: float) -> float:
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0
