"""One bound of bytes for all that restores and uploads of an engine hold at once: who finds no room waits.

1. A share that holds nothing waits until its bytes are free, first come first served. One that wants more than the
   bound gets it when nobody else holds any.
2. A share that holds something may wait for more, before all that hold nothing: it is nearer to its end.
3. Where all that hold something wait, the first of them goes on beyond the bound, it alone, until it has given all
   back. So somebody always goes on to its end, and the bound is exceeded by what one request needs.
4. Reading ahead never waits: `try_take` gives where there is room and nobody waits.
5. A share that must not wait for others, since its reader may be slow or stop, goes on beyond the bound.
6. A share that is cancelled waits no longer, and what it holds is not counted any more: its thread may hang in a
   storage for good. Only so many threads hang in one storage at once (`engine.storage_calls`).
7. A share whose commit was accepted is parked: it counts, but takes no more, and may hold on for as long as a storage
   hangs. Where 1 and 3 say that nobody else holds any, or that all wait, parked ones do not matter. Where a
   share that went beyond the bound still is, it is not parked: the excess is one request's, however many storages hang.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files in which control groups say the limit, version 2 first."""

_LEAST_AUTO, _MOST_AUTO = 64 << 20, 256 << 20
_AUTO_SHARE = 16

_SAID_S = 1.0
"""How long a share waits at most before it says so again."""


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
        self._growing: deque[Share] = deque()
        self._holding: set[Share] = set()
        """Those that hold something and are not parked."""
        self._beyond: Share | None = None

    def share(self, *, waits: bool = True, waiting: Callable[[], None] = lambda: None) -> Share:
        """What one request takes of it.

        Args:
            waits: False where it goes on beyond the bound rather than wait.
            waiting: called again and again while it waits. The budget is locked meanwhile.
        """
        return Share(self, waits, waiting)

    def stats(self) -> dict[str, Any]:
        """The bound, what is held now and was at most, who waits now, and how often somebody had to."""
        with self._changed:
            return {
                "max_bytes": self.max_bytes,
                "held_bytes": self._held,
                "peak_bytes": self._peak,
                "waiting": len(self._waiting) + len(self._growing),
                "waits": self._waits,
            }

    def _has_room(self, size: int) -> bool:
        return self.max_bytes is None or self._held + size <= self.max_bytes

    def _fits(self, size: int) -> bool:
        return not self._holding or self._has_room(size)

    def _may_take(self, share: Share, size: int) -> bool:
        """Whether a share that is the first of those who wait goes on."""
        if not share._held:
            return not self._growing and self._waiting[0] is share and self._fits(size)
        if self._growing[0] is not share:
            return False
        return self._fits(size) or (self._beyond is None and len(self._holding) <= len(self._growing))

    def _count(self, share: Share, change: int) -> None:
        self._held += change
        self._peak = max(self._peak, self._held)
        if share._held and not share._cancelled and not share._parked:
            self._holding.add(share)
        else:
            self._holding.discard(share)
            if self._beyond is share:
                self._beyond = None
        self._changed.notify_all()


class Share:
    """What one request holds of a budget. One thread takes and gives; any thread may cancel."""

    def __init__(self, budget: MemoryBudget, waits: bool, waiting: Callable[[], None]) -> None:
        self._budget = budget
        self._waits = waits
        self._waiting = waiting
        self._held = 0
        self._parked = False
        self._cancelled = False

    @property
    def held(self) -> int:
        """Bytes that it holds."""
        return self._held

    def wait_no_more(self) -> None:
        """From now on it goes on beyond the bound rather than wait: others wait for it that hold some."""
        self._waits = False

    def take(self, size: int) -> None:
        """Waits until `size` bytes are free, and holds them beside what it holds.

        Raises:
            LaminaError: `engine.cancelled` once the share was cancelled.
        """
        budget = self._budget
        with budget._changed:
            assert not self._parked
            if self._waits and budget._beyond is not self and (self._others_wait() or not budget._fits(size)):
                self._wait(size)
            if self._cancelled:
                raise LaminaError.from_kind("engine.cancelled", "a request that waited for memory was cancelled")
            if self._waits and not budget._has_room(size):
                budget._beyond = self
            self._held += size
            budget._count(self, size)

    def _others_wait(self) -> bool:
        return bool(self._budget._growing or (self._budget._waiting and not self._held))

    def _wait(self, size: int) -> None:
        budget = self._budget
        queue = budget._growing if self._held else budget._waiting
        queue.append(self)
        # one that holds something and waits may be the last one that went on
        budget._changed.notify_all()
        try:
            goes_on = self._cancelled or budget._may_take(self, size)
            budget._waits += not goes_on
            while not goes_on:
                budget._changed.wait(_SAID_S)
                self._waiting()
                goes_on = self._cancelled or budget._may_take(self, size)
        finally:
            queue.remove(self)
            budget._changed.notify_all()

    def try_take(self, size: int) -> bool:
        """Holds `size` bytes more where they are free and nobody waits; whether it does."""
        budget = self._budget
        with budget._changed:
            # beside parked ones no more is read ahead than there is room for
            is_free = budget._held == 0 or budget._has_room(size)
            if self._cancelled or budget._waiting or budget._growing or not is_free:
                return False
            self._held += size
            budget._count(self, size)
            return True

    def park(self, size: int) -> bool:
        """Holds at least `size` bytes, takes no more from now on, and nobody waits for it to end; whether it does: not
        where `try_take` has none, nor where it is beyond the bound."""
        budget = self._budget
        with budget._changed:
            is_over = budget._beyond is self and not budget._has_room(0)
            if is_over or (size > self._held and not self.try_take(size - self._held)):
                return False
            self._parked = True
            budget._count(self, 0)
            return True

    def give(self, size: int) -> None:
        """Gives `size` bytes back."""
        with self._budget._changed:
            assert 0 <= size <= self._held
            self._held -= size
            self._budget._count(self, 0 if self._cancelled else -size)

    def close(self) -> None:
        """Gives all back; any thread may."""
        with self._budget._changed:
            self.give(self._held)

    def cancel(self) -> None:
        """Ends the share's waiting, now and for ever; what it holds is free for others."""
        with self._budget._changed:
            if not self._cancelled:
                self._cancelled = True
                self._budget._count(self, -self._held)


def unbounded() -> Share:
    """A share of a budget of its own that bounds nothing."""
    return MemoryBudget().share()
