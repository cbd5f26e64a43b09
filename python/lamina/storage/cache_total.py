"""The figure that all processes share: how many bytes the files of a cache directory take together.

    <directory>/total    total u64, added u64, epoch u64, little-endian; locked while it changes

1. The total is never less than what the files take: room is counted before it is used, and given back after it is free.
   So a process that is killed in between leaves it too great, never too small.
2. A scan of the directory makes it right again. `added` counts whatever may have escaped a scan that was under way.
3. Each scan begins a new epoch. What was freed in an older one is not given back: the scan may have noticed it.
4. The lock is held for a few system calls. Whoever does not get it in time goes without: see `Busy`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from lamina.storage.temporary import random_numbers

NAME = "total"

UNKNOWN = 1 << 62
"""Of a directory that nobody has scanned: nothing has room in it."""

_RECORD = struct.Struct("<QQQ")
_SHORTEST_WAIT_S = 0.0005
_LONGEST_WAIT_S = 0.05
_MOST_WAITS = 8
_MUTEX_WAIT_S = 0.1


class Busy(OSError):
    """The lock was held for longer than anybody is to wait for it: its holder is stopped, or its disk hangs."""


@dataclass
class Figures:
    """What the file says."""

    total: int
    added: int
    epoch: int


class SharedTotal:
    """The figure of the directory `directory`; for any thread."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, NAME)
        self._mutex = threading.Lock()
        self._pause = threading.Event()
        self._contested = False
        self.last = 0
        """The total when this process last read it; 0 while it is unknown."""

    def read(self) -> Figures:
        """The figures as they are now, without the lock."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Figures(UNKNOWN, 0, 0)
        try:
            return self._read(descriptor)
        finally:
            os.close(descriptor)

    def reserve(self, size: int, bound: int) -> Figures | None:
        """Counts `size` bytes more; None, and nothing counted, where they would pass `bound`.

        Raises:
            Busy: as all methods that change the figure.
        """
        with self.changed() as figures:
            if figures.total + size > bound:
                return None
            figures.total += size
            figures.added += size
        return figures

    def give_back(self, size: int, epoch: int) -> None:
        """Counts `size` bytes less, which were freed in `epoch` or after it began."""
        with contextlib.suppress(Busy), self.changed() as figures:
            subtract(figures, size, epoch)

    def settle(self, found: int, begun: Figures) -> None:
        """Corrects the total after a scan that began when the figures were `begun` and found `found` bytes."""
        with self.changed() as figures:
            if figures.epoch != begun.epoch:
                return  # another scan was quicker
            figures.total = min(figures.total, found + figures.added - begun.added)
            figures.epoch += 1

    def settle_empty(self) -> None:
        """Says that an unknown total is 0: the directory was empty, and nobody has room to add to it."""
        with self.changed() as figures:
            if figures.total >= UNKNOWN:
                figures.total = 0

    @contextlib.contextmanager
    def changed(self) -> Iterator[Figures]:
        """The figures under the lock; written at the end unless the block raises."""
        if not self._mutex.acquire(timeout=_MUTEX_WAIT_S):
            raise Busy(f"another thread holds {self._path}")
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._lock(descriptor)
                figures = self._read(descriptor)
                if figures.total == UNKNOWN and not figures.epoch:
                    figures.epoch = next(random_numbers())  # none that a file deleted before this one had
                yield figures
                os.pwrite(descriptor, _RECORD.pack(figures.total, figures.added, figures.epoch), 0)
                self._note(figures)
            finally:
                os.close(descriptor)
        finally:
            self._mutex.release()

    def _lock(self, descriptor: int) -> None:
        """Waits for the lock, at most about a quarter of a second; and not again until it was free once."""
        wait = _SHORTEST_WAIT_S
        for _ in range(_MOST_WAITS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._contested = False
                return
            except BlockingIOError:
                if self._contested:
                    break
                self._pause.wait(wait)
                wait = min(2 * wait, _LONGEST_WAIT_S)
        self._contested = True
        raise Busy(f"another process holds {self._path}")

    def _read(self, descriptor: int) -> Figures:
        data = os.pread(descriptor, _RECORD.size, 0)
        figures = Figures(*_RECORD.unpack(data)) if len(data) == _RECORD.size else Figures(UNKNOWN, 0, 0)
        self._note(figures)
        return figures

    def _note(self, figures: Figures) -> None:
        self.last = 0 if figures.total >= UNKNOWN else figures.total


def subtract(figures: Figures, size: int, epoch: int) -> None:
    """Takes `size` bytes, freed since `epoch` began, from the total, unless a scan has ended since."""
    if figures.epoch == epoch and figures.total < UNKNOWN:
        figures.total = max(0, figures.total - size)
