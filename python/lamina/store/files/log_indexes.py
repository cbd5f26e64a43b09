"""Indexes of log objects that were read or written: one bound for all checkpoints of a process."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass

from lamina.format.log_object import LogIndex
from lamina.store.files.log_places import LogPlace

_KEPT = 8_192
"""A version of a store is in as many objects as it has commits there, up to 256 with tables of RocksDB, and the stores
of an executor come from objects of all executors there were before."""

_PARTS_KEPT = 262_144
"""In all of them, about 80 MB. All stores are restored at once, so this is enough for 2,000 stores of 128 commits each,
where their objects have no parts of others. One index is always kept."""


@dataclass(frozen=True)
class Found:
    """An object that was found: its verified index, its size, and where it is."""

    index: LogIndex
    size: int
    place: LogPlace


class LogIndexes:
    """The indexes that are kept, those used longest ago are dropped first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners = itertools.count()
        self._over: deque[int] = deque()
        """Owners that are not there any more: the garbage collector says so, wherever a thread is."""
        self._found: OrderedDict[tuple[int, str], Found] = OrderedDict()
        self._parts = 0

    def of(self, owner: object) -> OwnLogIndexes:
        """Those of one owner, which go with it."""
        number = next(self._owners)
        weakref.finalize(owner, self._over.append, number).atexit = False
        return OwnLogIndexes(self, number)

    def get(self, owner: int, log: str) -> Found | None:
        """The index of an object, which is the one used last then."""
        with self._lock:
            found = self._found.get((owner, log))
            if found is not None:
                self._found.move_to_end((owner, log))
            return found

    def add(self, owner: int, log: str, found: Found) -> None:
        """Keeps an index in the place of an earlier one, and as many others as there is room for."""
        with self._lock:
            self._drop((owner, log))
            while self._over:
                over = self._over.popleft()
                for key in [key for key in self._found if key[0] == over]:
                    self._drop(key)
            self._found[owner, log] = found
            self._parts += len(found.index.parts)
            while len(self._found) > _KEPT or (len(self._found) > 1 and self._parts > _PARTS_KEPT):
                self._drop(next(iter(self._found)))

    def pop(self, owner: int, log: str) -> None:
        """Drops the index of an object, if it is there."""
        with self._lock:
            self._drop((owner, log))

    def _drop(self, key: tuple[int, str]) -> None:
        found = self._found.pop(key, None)
        self._parts -= 0 if found is None else len(found.index.parts)


@dataclass(frozen=True)
class OwnLogIndexes:
    """The indexes of one owner among those of a process."""

    _all: LogIndexes
    _owner: int

    def get(self, log: str) -> Found | None:
        """The index of an object."""
        return self._all.get(self._owner, log)

    def add(self, log: str, found: Found) -> None:
        """Keeps the index of an object."""
        self._all.add(self._owner, log, found)

    def pop(self, log: str) -> None:
        """Drops the index of an object, if it is there."""
        self._all.pop(self._owner, log)


LOG_INDEXES = LogIndexes()
"""Of this process."""
