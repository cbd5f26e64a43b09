"""The same work on many stores at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

_Store = TypeVar("_Store")
_Result = TypeVar("_Result")

Progress = Callable[[int, int], None]
"""Called with what is done and how much there is."""

_CONCURRENT = 8


def side_by_side(
    work: Callable[[_Store], _Result], stores: Sequence[_Store], progress: Progress = lambda done, total: None
) -> list[_Result]:
    """The results of `work` in the order of `stores`; `progress` counts stores."""
    progress(0, len(stores))
    pool = ThreadPoolExecutor(_CONCURRENT)
    try:
        futures = [pool.submit(work, store) for store in stores]
        for done, _ in enumerate(as_completed(futures), start=1):
            progress(done, len(stores))
        return [future.result() for future in futures]
    finally:
        # an interrupt must not wait for stores that were not begun
        pool.shutdown(wait=False, cancel_futures=True)
