"""Merges of a store that fail: tried again less and less often, and an error where they fail too often in a row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from lamina.errors import LaminaError
from lamina.settings import PREFIX

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class MergeFailures:
    """What became of the merges of one store. Thread-safe.

    Args:
        most: so many failures in a row are an error; 0 where none are.
        now: seconds of a clock.
    """

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most = most
        self._now = now
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._again = 0.0
        self._error: Mapping[str, Any] | None = None

    def note(self, report: Mapping[str, Any]) -> None:
        """Hears the report of a job, which may have merged something, looked whether that is worth it, or neither."""
        failed = bool(report.get("merge_failed"))
        if not failed and not report.get("compacted"):
            return
        error = report["error"] if failed else None
        with self._lock:
            self._error = error
            self._in_a_row = 0 if error is None else self._in_a_row + 1
            pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._in_a_row - 1, 10))
            self._again = 0.0 if error is None else self._now() + pause

    def may_try(self) -> bool:
        """Whether another merge may be asked for: some time after one that failed."""
        with self._lock:
            return self._now() >= self._again

    def check(self, store: object) -> None:
        """Raises the last error where merges have failed too often."""
        with self._lock:
            count, error = self._in_a_row, self._error
        if error is not None and 0 < self._most <= count:
            raise LaminaError.from_kind(
                error["kind"],
                f"the last {count} merges of {store} failed, so that its log only grows: {error['message']}. Mend that "
                f"and start the query again; {PREFIX}changelog.materializeFailures says how many are borne",
            )
