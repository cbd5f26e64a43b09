"""One bound of bytes for all that restores and uploads of an engine hold at once: who finds no room waits.

1. A share that holds nothing waits until its bytes are free, first come first served. One that wants more than the
   bound gets it when nobody else holds any.
2. A share that holds something never waits. It is given more where that is free and nobody waits; where it is not, it
   goes on with what it holds, which is enough for one piece after the other.
3. So nobody waits for somebody who waits: whoever holds bytes goes on to its end and gives them back.
4. A share that is cancelled waits no longer, and what it holds is not counted any more: its thread may hang in a
   storage for good. Only so many threads hang in one storage at once (`engine.storage_calls`).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files in which control groups say the limit, version 2 first."""

_LEAST_AUTO, _MOST_AUTO = 64 << 20, 256 << 20
_AUTO_SHARE = 16


def default_bytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """A sixteenth of the container's memory, or the machine's where none is limited; 64 MiB to 256 MiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _LIMITS:
        try:
            memory = min(memory, int((groups / name).read_text()))
        except (OSError, ValueError):
            continue  # no such group, or no limit
    return min(_MOST_AUTO, max(_LEAST_AUTO, memory // _AUTO_SHARE))


class MemoryBudget:
    """The bound, and who waits for it. Thread-safe.

    Args:
        max_bytes: None bounds nothing.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self._changed = threading.Condition()
        self._held = 0
        self._peak = 0
        self._waits = 0
        self._waiting: deque[Share] = deque()

    def share(self) -> Share:
        """What one request takes of it."""
        return Share(self)

    def stats(self) -> dict[str, Any]:
        """The bound, what is held now and was at most, who waits now, and how often somebody had to."""
        with self._changed:
            return {
                "max_bytes": self.max_bytes,
                "held_bytes": self._held,
                "peak_bytes": self._peak,
                "waiting": len(self._waiting),
                "waits": self._waits,
            }

    def _fits(self, size: int) -> bool:
        return self.max_bytes is None or self._held == 0 or self._held + size <= self.max_bytes

    def _add(self, size: int) -> None:
        self._held += size
        self._peak = max(self._peak, self._held)


class Share:
    """What one request holds of a budget. One thread takes and gives; any thread may cancel."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._held = 0
        self._cancelled = False

    def take(self, size: int) -> None:
        """Waits until `size` bytes are free, and holds them; the caller holds nothing before.

        Raises:
            LaminaError: `engine.cancelled` once the share was cancelled.
        """
        assert self._held == 0, "who holds something must not wait"
        budget = self._budget
        with budget._changed:
            if budget._waiting or not budget._fits(size):
                budget._waits += 1
                budget._waiting.append(self)
                try:
                    while not self._cancelled and (budget._waiting[0] is not self or not budget._fits(size)):
                        budget._changed.wait()
                finally:
                    budget._waiting.remove(self)
                    budget._changed.notify_all()
            if self._cancelled:
                raise LaminaError.from_kind("engine.cancelled", "a request that waited for memory was cancelled")
            budget._add(size)
            self._held = size

    def try_take(self, size: int) -> bool:
        """Holds `size` bytes more where they are free and nobody waits; whether it does."""
        budget = self._budget
        with budget._changed:
            if self._cancelled or budget._waiting or not budget._fits(size):
                return False
            budget._add(size)
            self._held += size
            return True

    def exceed(self, size: int) -> None:
        """Holds `size` bytes more, free or not: one piece that cannot be smaller, of a request that has to go on."""
        with self._budget._changed:
            if not self._cancelled:
                self._budget._add(size)
            self._held += size

    def give(self, size: int) -> None:
        """Gives `size` bytes back."""
        with self._budget._changed:
            assert 0 <= size <= self._held
            self._held -= size
            if not self._cancelled:
                self._budget._held -= size
            self._budget._changed.notify_all()

    def close(self) -> None:
        """Gives all back."""
        self.give(self._held)

    def cancel(self) -> None:
        """Ends the share's waiting, now and for ever; what it holds is free for others."""
        with self._budget._changed:
            if not self._cancelled:
                self._budget._held -= self._held
            self._cancelled = True
            self._budget._changed.notify_all()


def unbounded() -> Share:
    """A share of a budget of its own that bounds nothing."""
    return MemoryBudget().share()
