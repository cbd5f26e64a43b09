"""Checks stores of a checkpoint beside its query, several at once. Reads only."""

from __future__ import annotations

import threading
from dataclasses import replace

from lamina.checkpoint import LoggedStore, LoggedStores
from lamina.components import SystemClock
from lamina.store.admin.side_by_side import Progress, side_by_side
from lamina.store.check.checker import Problem, StoreCheck, StoreChecker


def check_stores(found: LoggedStores, *, contents: bool, progress: Progress) -> list[StoreCheck]:
    """What is wrong with each store, and with what Spark's log says of it.

    Args:
        contents: whether files are read whole and rows counted, or only manifests and sizes looked at.
        progress: called with the bytes that were read, and those that are known to be read.
    """
    lock = threading.Lock()
    done = total = 0

    def read(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done, total)

    def plan(count: int) -> None:
        nonlocal total
        with lock:
            total += count
            progress(done, total)

    def one(store: LoggedStore) -> StoreCheck:
        checker = StoreChecker(
            found.state,
            store.identity,
            store.named,
            still_named=found.named_now,
            clock=SystemClock(),
            read=read,
            plan=plan,
            contents=contents,
        )
        check = checker.check()
        of_log = (Problem("file.damaged", (), text) for text in store.problems)
        return replace(check, problems=(*of_log, *check.problems))

    return side_by_side(one, found.stores)
