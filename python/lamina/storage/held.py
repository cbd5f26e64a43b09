"""Directories that a process holds by a lock as long as it lives, however it ends; what nobody holds was left."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def hold(path: str | Path) -> int:
    """Holds a directory; gives the descriptor that does, which no child inherits.

    Whoever looks whether it is held may have it for a moment. Where the file system has no locks, nobody else gets one
    either, and nothing counts as left.
    """
    descriptor = os.open(path, _OPENED)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def own_directories(parent: str | Path, prefix: str) -> list[Path]:
    """The directories of this user in another one whose names begin so."""
    try:
        with os.scandir(parent) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if entry.name.startswith(prefix)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.getuid()
            ]
    except OSError:
        return []


@contextlib.contextmanager
def unheld(path: Path) -> Iterator[bool]:
    """Whether nobody holds a directory; nobody else does meanwhile."""
    try:
        descriptor = os.open(path, _OPENED | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except OSError:
            is_free = False
        yield is_free
    finally:
        os.close(descriptor)
