"""Local copies that need not be read to be verified: they were, since this machine started, and are unchanged.

A mark on the file says so (an extended attribute): with which checksum, size and time of change, and since which start
of the machine. What a machine had not written to its disk when it failed so is never trusted. A disk that gives other
bytes than were written, or none, shows where a block is read, since RocksDB verifies each: whoever meets that takes the
marks away, and the next one reads and verifies the files. Where a file system has no attributes, all are verified.
"""

from __future__ import annotations

import contextlib
import functools
import os

_MARK = "user.lamina.verified"
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


def distrust(directory: str) -> None:
    """Takes the marks of all files in a directory away, under whatever names they are."""
    if not hasattr(os, "removexattr"):
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):
                os.removexattr(os.path.join(directory, name), _MARK)


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
