"""Looks whether objects are there, whose answers all share who ask at about the same time.

The stores of an executor stand on commits in a few log objects, and each looks in each batch whether its own is still
there: one request a batch is enough for all. Since all wait for that one, another begins beside it where it is slow.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from lamina.components import Clock
from lamina.store.files.latencies import SLOW_PERCENT, Latencies

HOLDS_S = 1.0
"""So long it counts that an object was seen. An absence counts once, and a failure for who met it."""

_KEPT = 256


@dataclass
class _Look:
    begun: float
    answer: Future[bool] = field(default_factory=Future)
    under_way: int = 1
    """Requests whose answer may still come."""
    has_other: bool = False
    """Whether another request was begun beside the first one."""

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
        is_far: whether that is a request to another machine for an object; only such have others beside them.
        latencies: of those so far.
    """

    def __init__(
        self,
        look: Callable[[str], bool],
        clock: Clock,
        is_far: Callable[[str], bool] = lambda _: False,
        latencies: Latencies | None = None,
    ) -> None:
        self._look = look
        self._is_far = is_far
        self._clock = clock
        self._latencies = latencies or Latencies()
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
        is_far = self._is_far(name)
        if mine and not (is_far and self._begins(look, name)):
            self._ask(look, name)
        if is_far and not look.has_other:
            self._wait(look, name)
        try:
            return look.answer.result()
        except Exception:
            if mine:
                raise
        # one request that failed says little of the next
        return self._look(name)

    def _begins(self, look: _Look, name: str) -> bool:
        """Asks in a thread of its own, so that whoever began it can wait for another one; False where the system has no
        further thread."""
        thread = threading.Thread(target=self._ask, args=(look, name), name="lamina-look", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        return True

    def _wait(self, look: _Look, name: str) -> None:
        """Until there is an answer, or it is slow and another request was begun."""
        slow_s = self._latencies.slow_s(SLOW_PERCENT)
        left = look.begun + slow_s - self._clock.monotonic()
        wait([look.answer], None if left == math.inf else max(0.0, left))
        with self._lock:
            if look.answer.done() or look.has_other:
                return
            look.has_other = True
            # counted before it, or the first one, can be over: both take the lock for that
            look.under_way += self._begins(look, name)

    def _ask(self, look: _Look, name: str) -> None:
        found, failed = False, None
        try:
            found = self._look(name)
        except BaseException as error:
            failed = error
        with self._lock:
            look.under_way -= 1
            if look.answer.done():
                return
            if failed is None:
                look.answer.set_result(found)
            elif not look.under_way:
                look.answer.set_exception(failed)
        if failed is None:
            self._latencies.add(self._clock.monotonic() - look.begun)

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
