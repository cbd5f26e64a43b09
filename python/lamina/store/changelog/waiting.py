"""A commit that waits in a group until its log object is durable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from lamina.errors import LaminaError
from lamina.format.manifest import CommitManifest
from lamina.store.changelog.groups import Place


class Waiting:
    """A commit in its place, which it takes at once.

    Args:
        chunks: the bytes of the commit.
        over: called once when nothing of it is in memory any more.
        patient: only the batch waits for it, at its end.
    """

    def __init__(
        self, place: Place, chunks: Sequence[Any], manifest: CommitManifest, over: Callable[[], None], patient: bool
    ) -> None:
        self._over = over
        self._lock = threading.Lock()
        self._told = threading.Event()
        self._error: LaminaError | None = None
        self._callback: Callable[[], None] | None = None
        base = manifest.base.version if manifest.base is not None else 0
        place.fill(chunks, manifest.store, manifest.attempt, base, manifest.version, self._tell, patient=patient)

    def _tell(self, error: LaminaError | None) -> None:
        self._error = error
        try:
            self._over()
        finally:
            with self._lock:
                self._told.set()
                callback, self._callback = self._callback, None
            if callback is not None:
                callback()

    def when_told(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when `result` does not wait any more: on the thread that published the group, which
        it must not hold up, or at once. For one caller."""
        with self._lock:
            if not self._told.is_set():
                self._callback = callback
                return
        callback()

    def result(self) -> None:
        """Returns when the commit is durable.

        Raises:
            LaminaError: why it is not.
        """
        self._told.wait()
        if self._error is not None:
            raise LaminaError.from_kind(self._error.kind, self._error.message) from self._error
