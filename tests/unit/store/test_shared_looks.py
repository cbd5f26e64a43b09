"""Looks for log objects: one request answers all stores that stand on one, and no answer is kept that should not be."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from lamina.errors import LaminaError
from lamina.store.files.shared_looks import HOLDS_S, SharedLooks, _Look
from lamina.testing import ManualClock
from lamina.testing.expect import fails_with


class Storage:
    """Objects that are there, and how often it was asked."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.asked = 0
        self.fails = False

    def __call__(self, name: str) -> bool:
        self.asked += 1
        if self.fails:
            raise LaminaError.from_kind("storage.failed", "slow down")
        return name in self.there


def test_all_who_ask_while_a_look_goes_on_have_its_answer() -> None:
    answers, asked, all_ask = threading.Event(), [], threading.Barrier(9)

    def look(name: str) -> bool:
        asked.append(name)
        return answers.wait(60)

    looks = SharedLooks(look, ManualClock(0))

    def ask() -> bool:
        all_ask.wait(60)
        return looks.is_there("a")

    with ThreadPoolExecutor(8) as threads:
        found = [threads.submit(ask) for _ in range(8)]
        all_ask.wait(60)
        while not asked:
            pass
        assert not looks.was_seen("a")
        answers.set()
        assert all(one.result(60) for one in found)
    assert asked == ["a"] and looks.was_seen("a")


def test_whoever_waited_for_a_look_that_failed_asks_once() -> None:
    fails, asked, lock = threading.Event(), [0], threading.Lock()

    def look(_: str) -> bool:
        with lock:
            asked[0] += 1
            first = asked[0] == 1
        if first:
            fails.wait(60)
            raise LaminaError.from_kind("storage.failed", "slow down")
        return True

    looks = SharedLooks(look, ManualClock(0))
    with ThreadPoolExecutor(2) as threads:
        mine = threads.submit(looks.is_there, "a")
        while not asked[0]:
            pass
        other = threads.submit(looks.is_there, "a")
        while not other.running():
            pass
        time.sleep(0.05)
        fails.set()
        assert other.result(60)
        with fails_with("storage.failed"):
            mine.result(60)
    assert asked == [2]


def test_what_was_seen_counts_for_a_moment() -> None:
    storage, clock = Storage("a"), ManualClock(0)
    looks = SharedLooks(storage, clock)
    assert looks.is_there("a") and looks.is_there("a")
    clock.advance(round(500 * HOLDS_S))
    assert looks.was_seen("a") and looks.is_there("a") and storage.asked == 1
    storage.there.clear()
    clock.advance(round(1000 * HOLDS_S))
    assert not looks.was_seen("a") and not looks.is_there("a") and storage.asked == 2


def test_neither_an_absence_nor_a_failure_counts_twice() -> None:
    storage = Storage()
    looks = SharedLooks(storage, ManualClock(0))
    assert not looks.is_there("a")
    storage.there.add("a")
    storage.fails = True
    with fails_with("storage.failed"):
        looks.is_there("a")
    storage.fails = False
    assert looks.is_there("a") and storage.asked == 3


def test_an_absence_that_comes_while_somebody_asks_whether_an_object_was_seen_is_none_that_was() -> None:
    """The answer comes without the lock."""

    class Coming(Future[bool]):
        """An answer that comes as soon as somebody has seen that it is not there yet."""

        def done(self) -> bool:
            is_done = super().done()
            if not is_done:
                self.set_result(False)
            return is_done

    looks = SharedLooks(Storage(), ManualClock(0))
    looks._looks["a"] = _Look(0.0, Coming())
    assert not looks.was_seen("a")
    assert not looks.was_seen("a")


def test_what_is_forgotten_is_asked_for() -> None:
    storage = Storage("a")
    looks = SharedLooks(storage, ManualClock(0))
    assert looks.is_there("a")
    storage.there.clear()
    looks.forget("a")
    assert not looks.is_there("a")
