"""Whether the file of a base is still there, asked beside the batch and not before it.

A collector never deletes the file of a version that is being built on, so it is lost only if somebody else took it. The
rows are in the caller's table then, and the next attempt writes them in full: so it is enough to know before the commit
counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class BaseLook:
    """A look that goes on in a thread of its own: a storage that does not answer keeps nobody else's."""

    def __init__(self, has_commit: Callable[[str], bool], lost: Callable[[str], None], attempt: str) -> None:
        self.attempt = attempt
        self._has_commit = has_commit
        self._lost = lost
        self._found = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="lamina-base-look", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._has_commit(self.attempt)
            if not self._found:
                self._lost(self.attempt)
        except Exception as error:
            self._error = error

    @property
    def under_way(self) -> bool:
        """Whether the storage has not answered yet."""
        return self._thread.is_alive()

    def found(self) -> bool:
        """Waits for the answer: whether the file is there.

        Raises:
            LaminaError: `storage.*`.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found


class BaseLooks:
    """The looks of one store. Thread-safe.

    Args:
        has_commit: whether the file of an attempt is there.
        lost: is told of each attempt whose file is not, so that the next attempt finds it out before it begins.
    """

    def __init__(self, has_commit: Callable[[str], bool], lost: Callable[[str], None]) -> None:
        self._has_commit = has_commit
        self._lost = lost
        self._lock = threading.Lock()
        self._newest: BaseLook | None = None

    def begun(self, attempt: str) -> BaseLook:
        """A look for the file of an attempt, or the one that is under way.

        A storage that hangs gets no more with each attempt.
        """
        with self._lock:
            if self._newest is None or self._newest.attempt != attempt or not self._newest.under_way:
                self._newest = BaseLook(self._has_commit, self._lost, attempt)
            return self._newest
