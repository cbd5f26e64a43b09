"""The hook of the tests of machines: gives the two processes of lamina a quota, and sets their clock.

Python imports this module at its start, since the tests put its directory on PYTHONPATH. The directory that
LAMINA_MACHINE names has a link for each fault, which leads to a number: `quota` to how many bytes there is room for
when a file is written, `clock` to how many milliseconds are added to the time. Reading a link takes no file handle, of
which one case leaves none.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


def install(directory: str) -> None:
    """Puts the quota under local files, and the change of time into the clock, as soon as their links are there."""
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

    LocalBackend._create = limited  # type: ignore[method-assign]
    SystemClock.now_ms = lambda self: now_ms(self) + (said("clock") or 0)  # type: ignore[method-assign]


_directory = os.environ.get("LAMINA_MACHINE")
if _directory and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("lamina.engine"):
    install(_directory)
