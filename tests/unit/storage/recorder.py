"""What a process asked the system to flush and to rename, for tests of what outlives a power failure."""

from __future__ import annotations

import os
import stat

import pytest


class Recorder:
    """What os.fsync, os.replace and os.link were called for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        real_fsync, real_replace, real_link = os.fsync, os.replace, os.link

        def fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self.events.append(path if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
            real_fsync(descriptor)

        def replace(source: str, target: str) -> None:
            self.events.append("rename")
            real_replace(source, target)

        def link(source: str, target: str) -> None:
            self.events.append("link")
            real_link(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(os, "link", link)
