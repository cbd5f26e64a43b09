"""Time and ids that a test steers."""

from __future__ import annotations

import threading


class ManualClock:
    """Stands still until it is told to go on, and has the processor meanwhile; `now_ms` may go back, `monotonic` never
    does."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def processor(self) -> float:
        return self._monotonic

    def advance(self, milliseconds: int) -> None:
        """Lets time pass; negative values set the wall clock back."""
        self._now_ms += milliseconds
        self._monotonic += max(0, milliseconds) / 1000


class SequenceIds:
    """Identifiers in a row, the same in every run of a test."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._count = 0
        self._lock = threading.Lock()

    def hex128(self) -> str:
        with self._lock:
            self._count += 1
            return f"{self._seed:016x}{self._count:016x}"

    def uuid(self) -> str:
        digits = self.hex128()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
