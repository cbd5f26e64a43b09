"""The hook of the tests of publications: holds or refuses what the engine publishes in local directories.

Python imports this module at its start, since the tests put its directory on PYTHONPATH. A commit whose checkpoint or
store has a pipe `gate` in its directory waits until somebody has written to it; one whose store has a file `refusal`
fails then. The same holds for log objects, whose store is their directory.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any


def install() -> None:
    """Puts the gates before local publications."""
    from lamina.storage.local import LocalBackend

    publish = LocalBackend.publish

    def held(self: LocalBackend, path: str, chunks: Iterable[Any]) -> int:
        store = os.path.join(self._root, os.path.dirname(path))
        if path.endswith((".lam", ".log")):
            for directory in (self._root, store) if path.endswith(".lam") else (store,):
                with contextlib.suppress(FileNotFoundError), open(os.path.join(directory, "gate")):
                    pass
            if os.path.exists(os.path.join(store, "refusal")):
                raise OSError("the storage refuses it")
        return publish(self, path, chunks)

    LocalBackend.publish = held  # type: ignore[method-assign]


if list(sys.orig_argv[1:3]) == ["-m", "lamina.engine"]:
    install()
