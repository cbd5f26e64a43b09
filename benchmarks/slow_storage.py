"""A storage in memory that takes as long for a write as an object store does, by a distribution."""

from __future__ import annotations

import math
import random
import threading
import time
from typing import Any

from lamina.storage import Storage

S3_PUT = ((0.0, 0.020), (0.25, 0.048), (0.5, 0.080), (0.95, 0.880), (0.9974, 5.0), (0.9984, 10.0), (1.0, 12.0))
"""Seconds that a PUT takes, by the share of those that take no longer: as published for S3."""

PUBLISHED = "what is published for PUT of S3 (p25 48 ms, p50 80 ms, p95 880 ms, 0.26 % above 5 s, 0.16 % above 10 s)"
"""The same for people."""


def latency(share: float) -> float:
    """Seconds, between two points of the distribution by their logarithms."""
    for (low, fast), (high, slow) in zip(S3_PUT, S3_PUT[1:], strict=False):
        if share <= high:
            return math.exp(math.log(fast) + (math.log(slow) - math.log(fast)) * (share - low) / (high - low))
    return S3_PUT[-1][1]


class SlowStorage(Storage):
    """Writes take a time of the distribution, times `scale`; seeded."""

    def __init__(self, url: str, seed: int, scale: float) -> None:
        super().__init__(url)
        self.scale = scale
        self.waits: list[float] = []
        self._random = random.Random(seed)
        self._drawing = threading.Lock()

    def publish(self, path: str, data: Any) -> int:
        with self._drawing:
            wait = self.scale * latency(self._random.random())
            self.waits.append(wait)
        time.sleep(wait)
        return super().publish(path, data)
