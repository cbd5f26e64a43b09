"""What working files take on the local disk, and the bound of it (`engine.localMaxBytes`)."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading

from lamina.components import Clock, SystemClock
from lamina.errors import StorageError
from lamina.settings import PREFIX

MAINTENANCE = "maintenance-"
"""How the directory of the maintenance process begins, which lies in that of its engine."""

ADVICE_NO_SPACE = (
    "; it needs room for the tables of its stores twice: make some, or set "
    f"{PREFIX}engine.localDirectory (of a command: TMPDIR) to another disk"
)

_LOOK_S = 1.0
_PAUSES = 10
"""After so many seconds another look is worth it, and after so many times as long as the last one took: some
microseconds a file, of which many stores have many."""


class LocalDiskError(StorageError):
    """The local disk is what failed, or is short; of the storage that says nothing."""


class LocalDiskFull(LocalDiskError):
    """It is short: what lies on it is as good as before."""


def failed(error: OSError, message: str, advice: str = "") -> LocalDiskError:
    """What an error of the system means that came from the local disk; `advice` is for one that is full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LocalDiskFull("storage.failed", message + advice)
    return LocalDiskError("storage.failed", message)


def engine_directory() -> str:
    """Where the working files of this engine lie, in the engine's own process and in that of its maintenance."""
    directory = tempfile.gettempdir()
    return os.path.dirname(directory) if os.path.basename(directory).startswith(MAINTENANCE) else directory


def used_bytes(directory: str) -> int:
    """What the files below `directory` take; one that has several names there counts once."""
    seen: set[int] = set()
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            # files come and go meanwhile
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(parent, name))
                if found.st_ino not in seen:
                    seen.add(found.st_ino)
                    total += found.st_size
    return total


class LocalDisk:
    """What the working files of this engine take, as of a look some seconds ago, and what was given since.
    Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._due: float | None = None
        self._used = self._given = 0

    @property
    def bytes(self) -> int:
        """What they took at the last look."""
        return self._used

    def look(self) -> None:
        """To be called when files came or went: has a thread look soon, if it is time. Does not wait."""
        if self._is_due() and self._lock.acquire(blocking=False):
            try:
                threading.Thread(target=self._look_aside, name="lamina-local-disk", daemon=True).start()
            except RuntimeError:
                self._lock.release()  # no more threads: the next one looks

    def _look_aside(self) -> None:
        try:
            self._look()
        finally:
            self._lock.release()

    def _is_due(self) -> bool:
        due = self._due
        return due is None or self._clock.monotonic() >= due

    def take(self, most: int, needed: int) -> None:
        """Gives room for files of `needed` bytes.

        Raises:
            LaminaError: `storage.failed` where they would not fit into `most`.
        """
        with self._lock:
            self._look(anew=self._used + self._given + needed > most)
            if self._used + self._given + needed > most:
                raise LocalDiskFull(
                    "storage.failed",
                    f"working files in {engine_directory()} on local disk take {self._used:,} bytes, and {needed:,} "
                    f"more would pass {PREFIX}engine.localMaxBytes ({most:,}); raise it, or spread the partitions over "
                    "more executors",
                )
            self._given += needed

    def _look(self, *, anew: bool = False) -> None:
        if anew or self._is_due():
            began = self._clock.monotonic()
            self._used, self._given = used_bytes(engine_directory()), 0
            ended = self._clock.monotonic()
            self._due = ended + max(_LOOK_S, _PAUSES * (ended - began))


LOCAL_DISK = LocalDisk(SystemClock())
"""Of this process."""


def require_room(most: int | None, needed: int) -> None:
    """To be called before files of `needed` bytes are written; `most`: the bound, if there is one.

    Raises:
        LaminaError: `storage.failed` where they would not fit.
    """
    if most is not None:
        LOCAL_DISK.take(most, needed)
