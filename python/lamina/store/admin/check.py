"""Checks stores of a checkpoint beside its query, several at once. Reads only."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from lamina.checkpoint import LoggedStores, Pin, read_pins
from lamina.components import SystemClock
from lamina.errors import LaminaError
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage
from lamina.store.admin.side_by_side import Outages, Progress, side_by_side
from lamina.store.check.checker import StoreChecker
from lamina.store.check.log_checker import LogChecker, summed
from lamina.store.check.other_pins import OtherPins
from lamina.store.check.report import LogCheck, Problem, StoreCheck
from lamina.store.files.log_parts import LogObjects


def check_stores(found: LoggedStores, *, contents: bool, progress: Progress) -> list[StoreCheck]:
    """What is wrong with each store, and with what Spark's log says of it.

    Args:
        contents: whether files are read whole and rows counted, or only manifests and sizes looked at.
        progress: called with the bytes that were read, and those that are known to be read.
    Raises:
        LaminaError: `file.*` about Spark's log; `storage.*` where the storage answers nobody any more.
    """
    lock = threading.Lock()
    LogObjects.of(found.state).places.remember_silence()
    pins, of_pins = _pins(found.state)
    others = OtherPins()
    outages = Outages()
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

    def one(identity: StoreIdentity) -> StoreCheck:
        store = found.log.store(identity)
        checker = StoreChecker(
            found.state,
            identity,
            store.named,
            still_named=found.named_now,
            clock=SystemClock(),
            pins=pins,
            others=others,
            read=read,
            plan=plan,
            contents=contents,
        )
        check = outages.outlived(checker.check, lambda error: StoreCheck.unread(identity, store.named, error))
        of_log = (Problem("file.damaged", (), text) for text in store.problems)
        of_checkpoint = of_pins if identity == found.identities[0] else ()
        return replace(check, problems=(*of_checkpoint, *of_log, *check.problems))

    return side_by_side(one, found.identities)


def check_log(
    found: LoggedStores, checks: Sequence[StoreCheck], *, contents: bool, progress: Progress = lambda done, total: None
) -> LogCheck:
    """What is wrong with the log objects that the checked stores need, and what is beside them.

    Args:
        checks: of these stores.
        contents: whether objects are read whole, or only their indexes.
        progress: called with the objects that were looked at, and how many there are.
    """
    checker = LogChecker(found.state, checks, contents=contents)
    checked = side_by_side(checker.check, checker.listed(), progress)
    return summed([*checked, *checker.unreached()])


def _pins(state: Storage) -> tuple[Sequence[Pin], Sequence[Problem]]:
    """What other checkpoints need of this one; where that cannot be read, what is wrong with it."""
    try:
        return read_pins(state), ()
    except LaminaError as error:
        if not error.kind.startswith(("file.", "attempt-id.")):
            raise
        return (), (Problem(error.kind, (), error.message),)
