"""Uploads of log objects: retries, second attempts beside slow ones, and what is told of them."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.components import SystemClock
from lamina.errors import LaminaError
from lamina.storage.renaming import RenamingBackend
from lamina.store.changelog.uploads import Retries, Uploads
from lamina.testing import ManualClock
from lamina.testing.expect import fails_with
from tests.conformance.test_storages import HdfsLike


@pytest.fixture
def made() -> Iterator[Callable[..., Uploads]]:
    all_made: list[Uploads] = []

    def make(attempts: int = 3, timeout_s: float = 30.0, hedges: bool = True, in_flight: int = 4) -> Uploads:
        all_made.append(Uploads(Retries(attempts, timeout_s, hedges), in_flight, SystemClock()))
        return all_made[-1]

    yield make
    for one in all_made:
        one.close()


class Storage:
    """Attempts of one upload in their order, each with what it does."""

    def __init__(self, *does: Callable[[], None]) -> None:
        self.does = list(does)
        self.begun = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            number, self.begun = self.begun, self.begun + 1
        self.does[number]()


def refuses() -> None:
    raise LaminaError.from_kind("storage.failed", "slow down")


def works() -> None:
    pass


def warmed(uploads: Uploads, count: int = 30) -> Uploads:
    """As if so many had taken a tenth of a second: long enough for a busy machine to do what takes no time."""
    for _ in range(count):
        uploads._latencies.add(0.1)
    return uploads


def test_an_upload_that_fails_is_tried_again(made: Callable[..., Uploads]) -> None:
    uploads, storage = made(), Storage(refuses, refuses, works)
    uploads.upload("an object", 7, storage)
    assert storage.begun == 3
    assert {name: uploads.stats()[name] for name in ("uploads", "bytes", "attempts", "again", "failed")} == {
        "uploads": 1, "bytes": 7, "attempts": 3, "again": 2, "failed": 0,
    }  # fmt: skip


def test_the_last_error_is_told_when_all_attempts_have_failed(made: Callable[..., Uploads]) -> None:
    uploads, storage = made(attempts=2), Storage(refuses, refuses, works)
    with fails_with("storage.failed") as caught:
        uploads.upload("an object", 7, storage)
    assert "slow down (after 2 attempts)" in caught.error.message
    assert storage.begun == 2
    assert uploads.stats()["failed"] == 1


def test_an_attempt_that_hangs_is_given_up(made: Callable[..., Uploads]) -> None:
    hangs = threading.Event()
    uploads = made(timeout_s=1.0, hedges=False)
    storage = Storage(lambda: hangs.wait(60) and None, works)
    uploads.upload("an object", 7, storage)
    assert storage.begun == 2
    with fails_with("storage.failed") as caught:
        made(attempts=1, timeout_s=0.05).upload("an object", 7, lambda: hangs.wait(60))
    assert "an object was not written in 1 attempts" in caught.error.message
    hangs.set()


def test_a_slow_upload_has_further_attempts_beside_it_and_the_first_that_ends_counts(
    made: Callable[..., Uploads],
) -> None:
    slow = threading.Event()
    uploads = warmed(made())
    storage = Storage(lambda: slow.wait(60) and None, works)
    uploads.upload("an object", 7, storage)
    assert (storage.begun, uploads.stats()["hedges"], uploads.stats()["hedges_won"]) == (2, 1, 1)
    # a third one where the second is slow, too, and no fourth; the first one may be quicker after all
    uploads = warmed(made(attempts=5, in_flight=2))
    storage = Storage(lambda: time.sleep(1.5), *(lambda: slow.wait(60) and None for _ in range(4)))
    uploads.upload("an object", 7, storage)
    assert (storage.begun, uploads.stats()["hedges"], uploads.stats()["hedges_won"]) == (3, 2, 0)
    slow.set()


def test_an_attempt_that_ends_after_another_one_has_won_takes_nothing_away(
    made: Callable[..., Uploads], tmp_path: Path
) -> None:
    """On a storage whose rename replaces nothing: what is durable is counted on."""
    removed: list[str] = []

    class Watched(HdfsLike):
        def rm_file(self, path: str) -> None:
            removed.append(os.path.basename(path))
            super().rm_file(path)

    backend = RenamingBackend(Watched(auto_mkdir=True), str(tmp_path))
    slow, ended = threading.Event(), threading.Event()

    def first() -> None:
        slow.wait(60)
        backend.publish("f", [b"an object"])
        ended.set()

    uploads = warmed(made())
    uploads.upload("an object", 9, Storage(first, lambda: backend.publish("f", [b"an object"]) and None))
    assert (uploads.stats()["hedges_won"], (tmp_path / "f").read_bytes()) == (1, b"an object")
    winner = (tmp_path / "f").stat().st_ino
    slow.set()
    assert ended.wait(60)
    assert (tmp_path / "f").stat().st_ino == winner
    assert "f" not in removed
    assert os.listdir(tmp_path) == ["f"]


def test_there_is_no_second_attempt_before_it_is_known_what_is_slow_or_where_it_is_off(
    made: Callable[..., Uploads],
) -> None:
    for uploads in (made(), warmed(made(hedges=False))):
        storage = Storage(lambda: time.sleep(0.1), refuses)
        uploads.upload("an object", 7, storage)
        assert storage.begun == 1


def test_a_second_attempt_that_fails_leaves_the_first_one_its_time(made: Callable[..., Uploads]) -> None:
    uploads = warmed(made())
    storage = Storage(lambda: time.sleep(1.0), refuses, refuses)
    uploads.upload("an object", 7, storage)
    assert (storage.begun, uploads.stats()["failed"], uploads.stats()["hedges_won"]) == (2, 0, 0)


def test_no_more_are_in_flight_than_there_may_be(made: Callable[..., Uploads]) -> None:
    uploads, lock = made(hedges=False, in_flight=3), threading.Lock()
    now = most = 0

    def counted() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.005)
        with lock:
            now -= 1

    for _ in range(30):
        uploads.submit(lambda: uploads.upload("an object", 1, counted))
    uploads.close()
    assert most == 3
    assert uploads.stats()["uploads"] == 30


@pytest.mark.parametrize("seed", range(10))
def test_whatever_a_storage_does_an_upload_is_durable_exactly_if_it_says_so(
    made: Callable[..., Uploads], seed: int
) -> None:
    """Answers are lost, writes come late, attempts fail before and after they wrote."""
    drawn = random.Random(seed)
    uploads = warmed(made(attempts=3, timeout_s=0.05))
    written: set[int] = set()
    lock = threading.Lock()

    def publish(number: int, fate: float, slow: float) -> None:
        if slow < 0.2:
            time.sleep(0.08 * slow / 0.2)
        if fate < 0.3:
            raise LaminaError.from_kind("storage.failed", "before it wrote")
        written.add(number)
        if fate < 0.5:
            raise LaminaError.from_kind("storage.failed", "its answer was lost")

    for number in range(25):
        fates = iter([(drawn.random(), drawn.random()) for _ in range(3)])

        def attempt(number: int = number, fates: Iterator[tuple[float, float]] = fates) -> None:
            with lock:
                fate, slow = next(fates)
            publish(number, fate, slow)

        try:
            uploads.upload("an object", 1, attempt)
        except LaminaError as error:
            assert error.kind == "storage.failed"  # noqa: PT017
        else:
            assert number in written


def test_an_upload_ends_that_finds_no_thread(made: Callable[..., Uploads]) -> None:
    uploads, hangs = made(attempts=1, timeout_s=0.05, in_flight=1), threading.Event()
    try:
        for _ in range(2):
            with fails_with("storage.failed") as caught:
                uploads.upload("an object", 1, hangs.wait)
            assert "longer than 0.05 s" in caught.error.message
    finally:
        hangs.set()


def test_an_upload_whose_turn_comes_too_late_is_not_begun(made: Callable[..., Uploads]) -> None:
    storage = Storage(works)
    now = SystemClock().monotonic()
    with fails_with("storage.failed") as caught:
        made(2, 0.05).upload("an object", 1, storage, ends=now - 0.01)
    assert storage.begun == 0
    assert "its time was over" in caught.error.message


def test_no_attempt_begins_when_the_time_is_over(made: Callable[..., Uploads]) -> None:
    uploads, ends = made(2, 30.0), SystemClock().monotonic() + 1.0

    def refuses_late() -> None:
        # until the pause before the next attempt would be over too late
        while SystemClock().monotonic() < ends - 0.01:
            time.sleep(0.005)
        refuses()

    storage = Storage(refuses_late, refuses)
    with fails_with("storage.failed"):
        uploads.upload("an object", 1, storage, ends=ends)
    assert storage.begun == 1


@pytest.mark.parametrize(("count", "median", "most"), [(1, 1, 1), (20, 10, 20), (100, 50, 99), (101, 51, 100)])
def test_a_percentile_is_the_least_value_that_so_many_percent_do_not_exceed(count: int, median: int, most: int) -> None:
    clock = ManualClock(0)
    uploads = Uploads(Retries(1, 30.0, False), 1, clock)
    for ms in range(1, count + 1):
        uploads.upload("an object", 1, lambda ms=ms: clock.advance(ms))
    stats = uploads.stats()
    assert (round(stats["p50_ms"]), round(stats["p99_ms"])) == (median, most)
    uploads.close()


def test_uploads_that_wait_for_their_turn_are_counted_and_so_is_how_long_they_waited() -> None:
    clock = ManualClock(0)
    uploads = Uploads(Retries(1, 30.0, False), 1, clock)
    hold, begun, over = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        hold.wait(60)

    uploads.submit(first)
    assert begun.wait(60)
    for _ in range(2):
        uploads.submit(lambda: None)
    uploads.submit(over.set)
    assert uploads.stats()["queued"] == 3
    clock.advance(500)
    hold.set()
    assert over.wait(60)
    assert uploads.stats()["queued"] == 0
    figures = uploads.pop_figures()
    assert figures["queued_ms"] == 1500
    # two behind the first of those that waited, and one behind the next
    assert figures["queue_depth"] == 2 + 1
    uploads.close()


def test_early_bytes_are_among_all_bytes(made: Callable[..., Uploads]) -> None:
    uploads = made()
    uploads.upload("an object", 12, works)
    uploads.count_early(7)
    for found in (uploads.summary(), uploads.pop_figures()):
        assert (found["bytes"], found["early_bytes"]) == (12, 7)


def test_percentiles_of_what_uploads_took_add_up_over_objects() -> None:
    """So who adds them up over stores and processes divides them by the objects."""
    clock = ManualClock(0)
    uploads = Uploads(Retries(1, 30.0, False), 1, clock)
    for took_ms in [100] * 98 + [5000]:
        uploads.upload("an object", 1, lambda took_ms=took_ms: clock.advance(took_ms))
    first = uploads.pop_figures()
    assert first["upload_p50_ms"] == 99 * 100
    # of ninety-nine the largest is the 99th percentile
    assert first["upload_p99_ms"] == 98 * 100 + 5000
    uploads.upload("an object", 1, lambda: clock.advance(100))
    found = uploads.pop_figures()
    assert {name: found[name] for name in ("uploads", "upload_ms", "upload_p50_ms", "upload_p99_ms")} == {
        "uploads": 1, "upload_ms": 100, "upload_p50_ms": 100, "upload_p99_ms": 100,
    }  # fmt: skip
    uploads.close()


def test_attempts_beside_one_that_hangs_leave_others_to_come(made: Callable[..., Uploads]) -> None:
    """Where the storage hangs for a while, all that were begun meanwhile do."""
    hangs = threading.Event()
    uploads = warmed(made(attempts=2, timeout_s=1.0))
    storage = Storage(*(lambda: hangs.wait(60) and None for _ in range(3)), works)
    uploads.upload("an object", 7, storage)
    assert (storage.begun, uploads.stats()["hedges"], uploads.stats()["failed"]) == (4, 2, 0)
    hangs.set()


def test_attempts_without_a_thread_are_not_made_when_their_upload_is_over(made: Callable[..., Uploads]) -> None:
    """They would have the threads first that uploads need which are under way."""
    hangs = threading.Event()
    uploads = made(attempts=2, timeout_s=1.0, hedges=False, in_flight=1)
    # of the four threads two are taken by each of these
    begun: list[str] = []

    def hanging(name: str) -> None:
        begun.append(name)
        hangs.wait(60)

    for name in ("first", "second"):
        with fails_with("storage.failed"):
            uploads.upload("an object", 7, lambda name=name: hanging(name))  # type: ignore[misc]
    assert begun == ["first", "first", "second", "second"]
    with fails_with("storage.failed"):
        uploads.upload("an object", 7, lambda: begun.append("third"))
    hangs.set()
    uploads.upload("an object", 7, lambda: begun.append("fourth"))
    assert begun[4:] == ["fourth"]


class NoThreads:
    """A pool that the system refuses threads from its call with that number on."""

    def __init__(self, pool: Any, refused: Collection[int]) -> None:
        self._pool = pool
        self._refused = refused
        self.asked = 0

    def submit(self, call: Callable[[], None]) -> Any:
        self.asked += 1
        if self.asked in self._refused:
            raise RuntimeError("can't start new thread")
        return self._pool.submit(call)

    def shutdown(self, **how: bool) -> None:
        self._pool.shutdown(**how)


def test_an_attempt_beside_another_that_gets_no_thread_fails_nothing(made: Callable[..., Uploads]) -> None:
    uploads = warmed(made())
    slow = threading.Event()
    pool = uploads._attempts = NoThreads(uploads._attempts, {2})  # type: ignore[assignment]
    threading.Timer(1.0, slow.set).start()
    uploads.upload("an object", 1, slow.wait)
    assert pool.asked == 2
    assert uploads.stats()["hedges"] == 0
    assert uploads.stats()["failed"] == 0


def test_an_attempt_that_gets_no_thread_is_tried_again(made: Callable[..., Uploads]) -> None:
    uploads = made()
    pool = uploads._attempts = NoThreads(uploads._attempts, {1})  # type: ignore[assignment]
    uploads.upload("an object", 1, works)
    assert pool.asked == 2
    uploads._attempts = NoThreads(pool._pool, range(10))  # type: ignore[assignment]
    with fails_with("storage.failed") as caught:
        uploads.upload("an object", 1, works)
    assert "an object was not written in 3 attempts: can't start new thread" in caught.error.message


def test_who_asks_what_hangs_hears_of_it_in_every_python(made: Callable[..., Uploads]) -> None:
    """A future's time-out has been a class of its own up to Python 3.10."""
    uploads = made(timeout_s=0.05)

    class Hangs:
        def result(self, _: float) -> bool:
            raise futures.TimeoutError

    uploads._attempts = SimpleNamespace(submit=lambda _: Hangs(), shutdown=uploads._attempts.shutdown)  # type: ignore[assignment]
    assert uploads.ask(lambda: True) is False
