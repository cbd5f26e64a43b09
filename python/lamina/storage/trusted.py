"""Local copies that need not be read to be verified: they were, since this machine started, and are unchanged.

A mark on the file says so (an extended attribute): with which checksum, size and time of change, and since which start
of the machine. What a machine had not written to its disk when it failed so is never trusted. A disk that gives other
bytes than were written, or none, shows where a block is read, since RocksDB verifies each: whoever meets that takes the
marks away, and marks the files as distrusted, under all of their names. The next one reads and verifies them. Where a
file system has no attributes, all are verified when they are linked.
"""

from __future__ import annotations

import contextlib
import functools
import os

_MARK = "user.lamina.verified"
_DISTRUST = "user.lamina.distrusted"
_BOOT = "/proc/sys/kernel/random/boot_id"


def is_trusted(path: str, checksum: str) -> bool:
    """Whether a file is known to have this checksum."""
    wanted = _mark(path, checksum)
    if wanted is None:
        return False
    try:
        return os.getxattr(path, _MARK) == wanted
    except OSError:
        return False


def trust(path: str, checksum: str) -> None:
    """Marks a file that was just found to have this checksum, under all of its names."""
    mark = _mark(path, checksum)
    if mark is not None:
        with contextlib.suppress(OSError):
            os.setxattr(path, _MARK, mark)
    acquit(path)


def distrust(directory: str) -> None:
    """Says of all files in a directory, under whatever names they are, that they have to be verified."""
    if not hasattr(os, "removexattr"):
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            with contextlib.suppress(OSError):
                os.removexattr(path, _MARK)
            with contextlib.suppress(OSError):
                os.setxattr(path, _DISTRUST, b"1")


def is_distrusted(path: str) -> bool:
    """Whether that was said of a file, and it was not verified since."""
    try:
        return hasattr(os, "getxattr") and bool(os.getxattr(path, _DISTRUST))
    except OSError:
        return False


def acquit(path: str) -> None:
    """Says of a file that it was verified since."""
    if hasattr(os, "removexattr"):
        with contextlib.suppress(OSError):
            os.removexattr(path, _DISTRUST)


def _mark(path: str, checksum: str) -> bytes | None:
    """None where nothing can be marked."""
    boot = _boot()
    if boot is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return f"{boot} {checksum} {status.st_size} {status.st_mtime_ns}".encode()


@functools.cache
def _boot() -> str | None:
    """Which start of the machine this is; None where nobody says, or files have no attributes."""
    if not hasattr(os, "setxattr"):
        return None
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None
