"""Calls to a storage, several in flight where each is a request to another machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from lamina.storage.storage import Storage

_Asked = TypeVar("_Asked")
_Found = TypeVar("_Found")


def in_flight(
    storage: Storage, call: Callable[[_Asked], _Found], asked: Collection[_Asked], most: int
) -> Generator[Callable[[], _Found], None, None]:
    """For each that is asked for, in this order, what gives the result of `call` for it, or raises its error.

    Whoever stops early closes it, and waits for the calls that are under way.

    Args:
        most: calls that are begun before the first one's result is taken.
    """
    if not storage.remote or len(asked) < 2:
        # a local one takes less time than handing it to a thread
        for one in asked:
            yield partial(call, one)
        return
    pool = ThreadPoolExecutor(most, thread_name_prefix="lamina-requests")
    try:
        begun: deque[Future[_Found]] = deque()
        for one in asked:
            begun.append(pool.submit(call, one))
            if len(begun) == most:
                yield begun.popleft().result
        while begun:
            yield begun.popleft().result
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    # results may be taken later
    pool.shutdown(wait=True)


def all_of(storage: Storage, call: Callable[[_Asked], _Found], asked: Collection[_Asked], most: int) -> list[_Found]:
    """The results of `call` in the order asked for; the first error is raised when nothing is in flight any more."""
    begun = in_flight(storage, call, asked, most)
    try:
        return [found() for found in begun]
    finally:
        begun.close()
