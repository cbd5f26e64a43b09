"""The engine's private directories: where its socket lies, and how nothing of them outlives it.

    <directory of the JVM>/     made by the shim, mode 0700
        data.sock               the socket; a symbolic link to the one below where this path is too long for a socket
        hadoop.sock             the JVM's, for Hadoop files; in a directory of its own where this path is too long
    /tmp/lamina-…/              made by the engine in that case, mode 0700
        data.sock
    <engine.localDirectory>/lamina-…/   made by the engine where that is set, mode 0700
        data.sock               a symbolic link: where there is one, an engine was there
        …                       tables of RocksDB, and files of merges

An engine holds a lock on its directories as long as it lives, and removes them when it ends. One that was killed
cannot: the next engine removes those beside its own that nobody holds. Where there is no data.sock yet, an engine may
be about to start; where there is only a hadoop.sock, a minute old, on which nobody listens, its JVM has died.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

from lamina.components import SystemClock
from lamina.errors import EngineError
from lamina.settings import PREFIX
from lamina.storage.held import hold, own_directories, unheld

_SOCKET = "data.sock"
_HADOOP_SOCKET = "hadoop.sock"
_PREFIX = "lamina-"
_SHORT_BASE = "/tmp"

_MAX_SOCKET_PATH = 100
"""In bytes. The kernel's limit is 107; macOS's is 103."""

_STARTING_S = 60.0
"""A directory this young may be a JVM's that does not listen yet."""

_PROBE_S = 1.0
"""A JVM that takes no connection for so long is busy or stopped, not dead."""


class Directories:
    """The private directories of this engine."""

    def __init__(self, given: str, hadoop_socket: str | None = None) -> None:
        self._locks: list[int] = []
        self._paths: list[Path] = []
        self._hold(Path(given))
        path = Path(given) / _SOCKET
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            short = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT_BASE))
            self._hold(short)
            path = short / _SOCKET
            (Path(given) / _SOCKET).symlink_to(path)
        self.socket_path = str(path)
        # the JVM's own second directory: the engine outlives a JVM that is killed
        if hadoop_socket is not None and Path(hadoop_socket).parent != Path(given):
            self._hold(Path(hadoop_socket).parent)

    def working(self, base: str | None) -> str:
        """Where working files lie: in a directory of `base`, made where there is none, or else in the given one.

        Raises:
            EngineError: `engine.start` where there can be none.
        """
        if base is None:
            return str(self._paths[0])
        try:
            os.makedirs(base, exist_ok=True)
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            self._hold(path)
            (path / _SOCKET).symlink_to(self.socket_path)
        except OSError as error:
            raise EngineError(
                "engine.start",
                f"there can be no working files in {base}, the value of {PREFIX}engine.localDirectory: {error}",
            ) from error
        return str(path)

    def sweep(self) -> list[Path]:
        """Removes what killed engines left beside our directories and in `/tmp`; returns what was removed."""
        removed = []
        for parent in sorted({path.parent for path in self._paths} | {Path(_SHORT_BASE)}):
            removed += [
                path for path in own_directories(parent, _PREFIX) if path not in self._paths and _remove_if_dead(path)
            ]
        return removed

    def remove(self) -> None:
        """Removes the directories; the engine ends."""
        for path in self._paths:
            _remove(path)

    def _hold(self, path: Path) -> None:
        self._locks.append(hold(path))
        self._paths.append(path)


def _remove_if_dead(path: Path) -> bool:
    with contextlib.suppress(OSError), unheld(path) as is_free:
        if is_free and (os.path.lexists(path / _SOCKET) or _is_deserted(path)):
            _remove(path)
            return True
    return False


def _remove(path: Path) -> None:
    """Removes a directory; what is written there meanwhile stays, and is for another engine to find, by the socket."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            if entry.name == _SOCKET:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
        if os.listdir(path) in ([], [_SOCKET]):
            (path / _SOCKET).unlink(missing_ok=True)
            os.rmdir(path)


def _is_deserted(path: Path) -> bool:
    """Whether this is the directory of a JVM that died with its engine, or before that started."""
    if not os.path.lexists(path / _HADOOP_SOCKET) or SystemClock().now_ms() / 1000 - path.stat().st_mtime < _STARTING_S:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path / _HADOOP_SOCKET))
        except ConnectionRefusedError:
            return True
    return False
