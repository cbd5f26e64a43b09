"""Looks for log objects: one request answers all stores that stand on one, and no answer is kept that should not be."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lamina.errors import LaminaError
from lamina.store.files.latencies import Latencies
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


class Far:
    """A storage on another machine, whose requests end when they are told to."""

    def __init__(self) -> None:
        self.requests: list[Future[bool]] = []

    def __call__(self, _: str) -> bool:
        self.requests.append(Future())
        return self.requests[-1].result(60)

    def asked(self, count: int) -> None:
        """Returns when so many requests were made in all."""
        end = time.monotonic() + 60
        while len(self.requests) < count:
            assert time.monotonic() < end
            time.sleep(0.001)


def far_looks(storage: Far, known: int, *, is_far: bool = True) -> SharedLooks:
    """Looks in a far storage, of which so many took ten milliseconds."""
    latencies = Latencies()
    for _ in range(known):
        latencies.add(0.01)
    return SharedLooks(storage, ManualClock(0), lambda _: is_far, latencies)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("waiting", [1, 8])
def test_a_slow_look_has_one_other_beside_it_and_the_first_answer_is_that_of_all(waiting: int) -> None:
    storage = Far()
    looks = far_looks(storage, 20)
    with ThreadPoolExecutor(waiting) as threads:
        found = [threads.submit(looks.is_there, "a") for _ in range(waiting)]
        storage.asked(2)
        time.sleep(0.1)
        assert len(storage.requests) == 2
        # the first one hangs
        storage.requests[1].set_result(True)
        assert all(one.result(60) for one in found)
    assert looks.was_seen("a")
    # what comes late changes nothing
    storage.requests[0].set_result(False)
    time.sleep(0.05)
    assert looks.was_seen("a") and looks.is_there("a") and len(storage.requests) == 2


def test_a_look_that_fails_leaves_the_answer_to_the_other_one() -> None:
    storage = Far()
    looks = far_looks(storage, 20)
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(looks.is_there, "a")
        storage.asked(2)
        storage.requests[0].set_exception(LaminaError.from_kind("storage.failed", "slow down"))
        time.sleep(0.05)
        assert not found.done()
        storage.requests[1].set_exception(LaminaError.from_kind("storage.failed", "once more"))
        with fails_with("storage.failed") as caught:
            found.result(60)
        assert "once more" in str(caught.error)


@pytest.mark.parametrize(("known", "is_far"), [(19, True), (20, False)])
def test_no_other_look_begins_where_little_is_known_or_the_storage_is_near(known: int, is_far: bool) -> None:
    storage = Far()
    looks = far_looks(storage, known, is_far=is_far)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(looks.is_there, "a") for _ in range(2)]
        storage.asked(1)
        time.sleep(0.1)
        assert len(storage.requests) == 1
        storage.requests[0].set_result(True)
        assert all(one.result(60) for one in found)


def test_a_look_that_gets_no_thread_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    storage = Storage("a")
    looks = SharedLooks(storage, ManualClock(0), lambda _: True)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert looks.is_there("a") and storage.asked == 1


@pytest.mark.parametrize("meanwhile", [True, False])
def test_another_look_that_gets_no_thread_is_not_made(monkeypatch: pytest.MonkeyPatch, meanwhile: bool) -> None:
    """Whoever made it would hang in it, although the first one has answered; which may fail just then."""
    slow_down = LaminaError.from_kind("storage.failed", "slow down")
    storage, began = Far(), threading.Thread.start

    def one_more(thread: threading.Thread) -> None:
        if thread.name == "lamina-look" and storage.requests:
            if meanwhile:
                storage.requests[0].set_exception(slow_down)
                time.sleep(0.05)
            raise RuntimeError("can't start new thread")
        began(thread)

    looks = far_looks(storage, 20)
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as threads:
        patch.setattr(threading.Thread, "start", one_more)
        found = threads.submit(looks.is_there, "a")
        storage.asked(1)
        time.sleep(0.1)
        assert len(storage.requests) == 1
        if not meanwhile:
            storage.requests[0].set_exception(slow_down)
        with fails_with("storage.failed"):
            found.result(60)
