"""Who is in a call of which storage; a storage that does not answer refuses further calls at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from lamina.errors import StorageError


def storage_of(url: str) -> str:
    """What stands still together with `url`: a bucket or a name node; of local files, that URL alone."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme and parts.netloc else url


class StorageCalls:
    """The calls in progress, by storage.

    A call that hangs cannot be ended: its thread stays until the storage answers. So a storage in which `most_late`
    calls are past their deadlines gets no further ones. Other storages do not notice.

    Args:
        timeout_s: the deadline of a call that brings none.
    """

    def __init__(self, now: Callable[[], float], most_late: int, timeout_s: float) -> None:
        self._now = now
        self._most_late = most_late
        self._timeout_s = timeout_s
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._deadlines: dict[str, dict[int, float]] = {}

    @contextmanager
    def entered(self, url: str, deadline: float | None = None) -> Iterator[None]:
        """Counts the caller as being in the storage of `url`.

        Raises:
            StorageError: `storage.failed` where too many calls hang in it.
        """
        storage, number, now = storage_of(url), next(self._numbers), self._now()
        with self._lock:
            calls = self._deadlines.setdefault(storage, {})
            # few calls cannot be many late ones: mostly nothing is counted
            late = _late(calls, now) if len(calls) >= self._most_late else 0
            if late >= self._most_late:
                raise StorageError(
                    "storage.failed",
                    f"{storage} does not answer: {late} calls to it have not ended although their deadlines passed, so "
                    "no further ones are made until some of them end. Look at the storage and the network to it; what "
                    "failed is tried again with its task",
                )
            calls[number] = now + self._timeout_s if deadline is None else deadline
        try:
            yield
        finally:
            with self._lock:
                del calls[number]
                if not calls:
                    self._deadlines.pop(storage, None)

    def stats(self) -> dict[str, int]:
        """Of each storage with calls past their deadlines: how many."""
        now = self._now()
        with self._lock:
            counts = {storage: _late(calls, now) for storage, calls in self._deadlines.items()}
        return {storage: late for storage, late in counts.items() if late}


def _late(calls: dict[int, float], now: float) -> int:
    return sum(deadline <= now for deadline in calls.values())
