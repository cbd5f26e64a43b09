"""One thread that seals the groups of all checkpoints when their time has come."""

from __future__ import annotations

import logging
import threading

from lamina.store.changelog.groups import Groups

log = logging.getLogger(__name__)


def _tick(groups: Groups) -> float | None:
    try:
        return groups.tick()
    except Exception:
        # the groups of other checkpoints go on
        log.exception("the groups of a checkpoint could not be looked after")
        return None


class Ticker:
    """Thread-safe; its thread is a daemon."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: list[Groups] = []
        self._woken = False
        self._started = False

    def add(self, groups: Groups) -> None:
        """Looks after them from now on."""
        groups.on_due = self._wake
        with self._changed:
            self._groups.append(groups)
            if not self._started:
                threading.Thread(target=self._run, name="lamina-log-ticker", daemon=True).start()
                self._started = True

    def remove(self, groups: Groups) -> None:
        """Looks after them no more."""
        with self._changed:
            self._groups.remove(groups)

    def _wake(self) -> None:
        """Called when a group is due sooner than was known."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                groups = list(self._groups)
            waits = [left for left in map(_tick, groups) if left is not None]
            with self._changed:
                if not self._woken:
                    self._changed.wait(min(waits) if waits else None)
                self._woken = False
