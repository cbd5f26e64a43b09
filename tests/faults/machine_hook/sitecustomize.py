"""The hook of the tests of machines: gives the two processes of lamina a quota, sets their clock, and counts refusals.

Python imports this module at its start, since the tests put its directory on PYTHONPATH. The directory that
LAMINA_MACHINE names has a link for each fault, which leads to a number: `quota` to how many bytes there is room for
when a file is written, `clock` to how many milliseconds are added to the time. Each time that the system has no file
handle for one of the processes, a link `refused-…` is added. Links take no file handle, of which one case leaves none.
"""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any


def install(directory: str) -> None:
    """Puts the quota under local files, and the change of time into the clock, as soon as their links are there; counts
    what is refused where files and data connections are opened."""
    from lamina.components import SystemClock
    from lamina.storage.local import LocalBackend

    def said(fault: str) -> int | None:
        try:
            return int(os.readlink(os.path.join(directory, fault)))
        except FileNotFoundError:
            return None

    class Limited(io.BufferedWriter):
        """A file of a file system with quotas."""

        def write(self, data: Any) -> int:
            quota = said("quota")
            if quota is not None and self.tell() + len(data) > quota:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            return super().write(data)

    create = LocalBackend._create
    now_ms = SystemClock.now_ms

    def limited(self: LocalBackend, target: str) -> tuple[str, io.BufferedWriter]:
        temporary, file = create(self, target)
        return temporary, Limited(file.detach())  # type: ignore[attr-defined]

    refusals = itertools.count()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except OSError as error:
                if error.errno == errno.EMFILE:
                    link = os.path.join(directory, f"refused-{os.getpid()}-{next(refusals)}")
                    os.symlink(function.__qualname__, link)
                raise

        return call

    LocalBackend._create = limited  # type: ignore[method-assign]
    for owner, names in ((LocalBackend, ("_create", "read_range", "read_tail", "list")), (socket.socket, ("accept",))):
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))
    SystemClock.now_ms = lambda self: now_ms(self) + (said("clock") or 0)  # type: ignore[method-assign]


_directory = os.environ.get("LAMINA_MACHINE")
if _directory and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("lamina.engine"):
    install(_directory)
