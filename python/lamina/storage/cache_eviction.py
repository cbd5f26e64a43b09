"""Makes room in a cache directory, in the background: the copies used longest ago go first.

1. One process at a time evicts: it holds a lock on `<directory>/evictor`, for which nobody waits.
2. Eviction begins when the shared total passes the high-water mark and ends at the low-water mark.
3. Which copies were used longest ago is known from an index in memory. A scan of the directory fills it when it is used
   up, and corrects the total. A copy that was used since then is passed over.
4. Scan and eviction work in slices of less than a millisecond, with pauses: commits go on beside them.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator

from lamina.storage.cache_total import SharedTotal
from lamina.storage.temporary import is_temporary, random_numbers, temporary_name

log = logging.getLogger(__name__)

_LOCK = "evictor"
NAME_LENGTH = 64
"""Length of the names of copies; no other file of the directory has a name of this length."""

_SHARE = 20
"""A part of so many of the bound is free above the high-water mark, and another between it and the low-water mark."""

_MOST_INDEXED = 16_384
_SCAN_SLICE = 50
_EVICTION_SLICE = 4
_PAUSE_S, _URGENT_PAUSE_S = 0.01, 0.0025
"""Between slices; the second one where less than half of the room above the high-water mark is left."""

_AHEAD_NS = 3600 * 1_000_000_000


class Evictor:
    """Evicts from `directory` until its copies take at most the low-water mark of `bound`.

    Args:
        count: hears how many copies were evicted.
    """

    def __init__(self, directory: str, bound: int, total: SharedTotal, count: Callable[[int], None]) -> None:
        self._directory = directory
        self._bound = bound
        self._total = total
        self._count = count
        self._numbers = random_numbers()
        self._pause = threading.Event()
        self._changed = threading.Condition()
        self._running = False
        self._asked = False
        self._scan_asked = False
        self._room = 0
        self._room_once = 0
        self._index: list[tuple[int, str]] = []
        """Times of use and names; a heap, the copy used longest ago first."""

    @property
    def largest(self) -> int:
        """The size of the largest copy that is made: it does not pass the high-water mark by itself."""
        return self._bound - self._bound // _SHARE

    @property
    def high_water(self) -> int:
        """Eviction begins above it."""
        return min(self.largest, self._bound - self._room)

    @property
    def low_water(self) -> int:
        """Eviction ends here."""
        return self.high_water - self._bound // _SHARE

    def want_room(self, size: int) -> None:
        """Makes room for the next copy as large as this one, for which there was none.

        As much stays free from then on, unless it is more than half of the bound: that much is made free once.
        """
        if size > self.largest:
            return
        if 2 * size <= self._bound:
            self._room = max(self._room, size)
        else:
            self._room_once = size
        self.wake()

    def wake(self, scan: bool = False) -> None:
        """Evicts in the background if there is need; `scan`: also where the total may be wrong."""
        with self._changed:
            self._asked = True
            self._scan_asked |= scan
            if self._running:
                return
            try:
                threading.Thread(target=self._run, name="lamina-eviction", daemon=True).start()
            except RuntimeError as error:
                # no more threads: copies are not made where there is no room
                log.warning("nothing is evicted from %s: %s", self._directory, error)
                return
            self._running = True

    def wait(self, timeout_s: float) -> bool:
        """Waits until nothing is being evicted; whether that was so in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._asked:
                    self._running = False
                    self._changed.notify_all()
                    return
                self._asked = False
                scan, self._scan_asked = self._scan_asked, False
            try:
                self._evict(scan)
            except Exception as error:
                log.warning("the eviction from %s failed: %s", self._directory, error)

    def _evict(self, scan: bool) -> None:
        with self._turn() as mine:
            if not mine:
                return
            if scan:
                self._scan()
            target = min(self.low_water, self._bound - self._room_once)
            self._room_once = 0
            progress = True
            while self._total.read().total > target:
                if not self._index:
                    if not progress:
                        return
                    self._scan()
                    progress = False
                    continue
                progress |= self._evict_slice()
                self._rest()

    def _rest(self) -> None:
        """Lets commits go first."""
        urgent = 2 * self._total.last > self._bound + self.high_water
        self._pause.wait(_URGENT_PAUSE_S if urgent else _PAUSE_S)

    def _evict_slice(self) -> bool:
        """Evicts a few copies; whether any."""
        paths: list[str] = []
        while self._index and len(paths) < _EVICTION_SLICE:
            used, name = heapq.heappop(self._index)
            path = os.path.join(self._directory, name)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_atime_ns == used:
                    paths.append(path)
        evicted = self.remove(paths)
        self._count(evicted)
        return evicted > 0

    def remove(self, paths: list[str]) -> int:
        """Removes copies, where they are there, and gives their bytes back; how many were there."""
        epoch = self._total.read().epoch
        freed = [size for size in map(self.free, filter(None, map(self.set_aside, paths))) if size is not None]
        if freed:
            self._total.give_back(sum(freed), epoch)
        return len(freed)

    def set_aside(self, path: str) -> str | None:
        """Takes its name from a copy; the name of a dead process's file, which it has then; None where none is there.

        Of several that remove the same copy one does, and gives its bytes back.
        """
        name = temporary_name(os.path.basename(path), os.getpid(), next(self._numbers))
        aside = os.path.join(self._directory, name)
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return None
        except OSError:
            # the disk is full to the last entry of the directory: the next scan sees that the bytes are free
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return None
        return aside

    @staticmethod
    def free(path: str) -> int | None:
        """Removes a file that was set aside; its size, None where somebody else removed it."""
        try:
            size = os.stat(path).st_size
            os.unlink(path)
        except FileNotFoundError:
            return None
        return size

    def _scan(self) -> None:
        """Fills the index, corrects the total, and removes what dead processes were writing."""
        begun, now = self._total.read(), self._now()
        found = 0
        latest: list[tuple[int, str]] = []  # a heap of negative times: the copy used last of those indexed comes first
        with os.scandir(self._directory) as entries:
            while part := list(itertools.islice(entries, _SCAN_SLICE)):
                for entry in part:
                    with contextlib.suppress(FileNotFoundError):
                        found += self._found(entry, now, latest)
                self._rest()
        self._index = [(-used, name) for used, name in latest]
        heapq.heapify(self._index)
        self._total.settle(found, begun)

    @staticmethod
    def _found(entry: os.DirEntry[str], now: int, latest: list[tuple[int, str]]) -> int:
        """Adds a file to the index if it is a copy; its size, 0 where it is removed or none of the cache's."""
        if is_temporary(entry.name):
            return 0 if remove_if_dead(entry.path) else os.stat(entry.path).st_size
        if len(entry.name) != NAME_LENGTH:
            return 0
        status = entry.stat()
        used = status.st_atime_ns
        if used > now + _AHEAD_NS:
            # the clock was set back: such a copy would stay until all others are gone
            os.utime(entry.path, ns=(now, status.st_mtime_ns))
            used = now
        if len(latest) < _MOST_INDEXED:
            heapq.heappush(latest, (-used, entry.name))
        else:
            heapq.heappushpop(latest, (-used, entry.name))
        return status.st_size

    def _now(self) -> int:
        """The time as the directory's file system has it, in nanoseconds."""
        path = os.path.join(self._directory, _LOCK)
        os.utime(path)
        return os.stat(path).st_mtime_ns

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Whether this process may evict; no other does meanwhile."""
        descriptor = os.open(os.path.join(self._directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            except BlockingIOError:
                mine = False
            yield mine
        finally:
            os.close(descriptor)


def remove_if_dead(path: str) -> bool:
    """Removes what a process that is no more was writing; whether it did."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            return True
        finally:
            os.close(descriptor)
    return False
