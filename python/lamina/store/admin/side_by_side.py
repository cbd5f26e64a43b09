"""The same work on many stores at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from lamina.errors import LaminaError

_Store = TypeVar("_Store")
_Result = TypeVar("_Result")

Progress = Callable[[int, int], None]
"""Called with what is done and how much there is."""

_CONCURRENT = 8

_IN_A_ROW = 2 * _CONCURRENT


class Outages:
    """Errors of the storage that end the work on one store each. So many in a row say that it answers nobody any more,
    and end the work on all. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = 0

    def note(self, error: LaminaError) -> None:
        """To be called with what ended the work on a store.

        Raises:
            LaminaError: `error`, where it is no error of a storage, or one too many.
        """
        with self._lock:
            self._in_a_row += 1
            if not error.kind.startswith("storage.") or self._in_a_row > _IN_A_ROW:
                raise error

    def over(self) -> None:
        """To be called when the work on a store is done."""
        with self._lock:
            self._in_a_row = 0


def side_by_side(
    work: Callable[[_Store], _Result], stores: Sequence[_Store], progress: Progress = lambda done, total: None
) -> list[_Result]:
    """The results of `work` in the order of `stores`; `progress` counts stores."""
    progress(0, len(stores))
    pool = ThreadPoolExecutor(_CONCURRENT)
    try:
        futures = [pool.submit(work, store) for store in stores]
        for done, future in enumerate(as_completed(futures), start=1):
            # what ends the work on all ends it now
            future.result()
            progress(done, len(stores))
        return [future.result() for future in futures]
    finally:
        # an interrupt must not wait for stores that were not begun
        pool.shutdown(wait=False, cancel_futures=True)
