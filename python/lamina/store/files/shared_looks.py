"""Looks whether objects are there, whose answers all share who ask at about the same time.

The stores of an executor stand on commits in a few log objects, and each looks in each batch whether its own is still
there: one request a batch is enough for all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from lamina.components import Clock

HOLDS_S = 1.0
"""So long it counts that an object was seen. An absence counts once, and a failure for who met it."""

_KEPT = 256


@dataclass
class _Look:
    begun: float
    answer: Future[bool] = field(default_factory=Future)

    def counts(self, now: float) -> bool:
        """Whether somebody who asks now takes its answer; one that hangs gets no others beside it."""
        return not self.answer.done() or (self._found and now - self.begun < HOLDS_S)

    @property
    def _found(self) -> bool:
        return self.answer.exception() is None and self.answer.result()


class SharedLooks:
    """The looks of one process. Thread-safe.

    Args:
        look: asks the storage whether an object is there; may take long, and fail.
    """

    def __init__(self, look: Callable[[str], bool], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._looks: OrderedDict[str, _Look] = OrderedDict()

    def is_there(self, name: str) -> bool:
        """Whether an object is there, or was a moment ago.

        Raises:
            LaminaError: of the storage.
        """
        with self._lock:
            look, mine = self._counting(name), False
            if look is None:
                look, mine = _Look(self._clock.monotonic()), True
                self._looks.pop(name, None)
                self._looks[name] = look
                while len(self._looks) > _KEPT:
                    self._looks.popitem(last=False)
        if mine:
            try:
                look.answer.set_result(self._look(name))
            except BaseException as error:
                look.answer.set_exception(error)
        try:
            return look.answer.result()
        except Exception:
            if mine:
                raise
        # one request that failed says little of the next
        return self._look(name)

    def was_seen(self, name: str) -> bool:
        """Whether `is_there` would be True, and ask nobody."""
        with self._lock:
            look = self._looks.get(name)
            # in this order: the answer may come meanwhile, without the lock
            return look is not None and look.answer.done() and look.counts(self._clock.monotonic())

    def forget(self, name: str) -> None:
        """The next one who asks for an object has the storage asked."""
        with self._lock:
            self._looks.pop(name, None)

    def _counting(self, name: str) -> _Look | None:
        look = self._looks.get(name)
        return look if look is not None and look.counts(self._clock.monotonic()) else None
