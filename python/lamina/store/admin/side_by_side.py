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
    and end the work on all; a refusal is an answer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = 0

    def outlived(self, work: Callable[[], _Result], unread: Callable[[LaminaError], _Result]) -> _Result:
        """What the work on a store gives, or `unread` of the error of its storage.

        Raises:
            LaminaError: of `work`, where it is no error of a storage, or one too many.
        """
        try:
            result = work()
        except LaminaError as error:
            with self._lock:
                self._in_a_row = 0 if error.kind == "storage.denied" else self._in_a_row + 1
                if not error.kind.startswith("storage.") or self._in_a_row > _IN_A_ROW:
                    raise
            return unread(error)
        with self._lock:
            self._in_a_row = 0
        return result


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
