"""Several maintenance jobs at once in one process: workers, long merges, and deletions of many stores together."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lamina.components import Clock, SystemClock
from lamina.engine.maintenance_pool import Deletion, MaintenancePool, Progress, Steps, Turn
from lamina.storage import Backend, Storage
from lamina.store import CheckpointState
from lamina.store.collection.known_others import KnownOthers
from lamina.store.memory.budget import MemoryBudget
from lamina.testing import Fault, FaultyBackend, ManualClock, SequenceIds
from lamina.testing.expect import fails_with

PATIENCE_S = 60
"""How long a test waits for what must come."""


class Told:
    """What a pool tells of its jobs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all: list[Mapping[str, Any]] = []

    def __call__(self, told: Mapping[str, Any]) -> None:
        with self._changed:
            self._all.append(told)
            self._changed.notify_all()

    def wait_for(self, kind: str, *numbers: int) -> None:
        """Waits until that was told of these jobs."""

        def is_told() -> bool:
            return {told["number"] for told in self._all if kind in told} >= set(numbers)

        with self._changed:
            assert self._changed.wait_for(is_told, PATIENCE_S), self._all

    def wait_for_count(self, kind: str, number: int, count: int) -> None:
        """Waits until that was told of a job so often."""

        def is_told() -> bool:
            return sum(kind in told and told["number"] == number for told in self._all) >= count

        with self._changed:
            assert self._changed.wait_for(is_told, PATIENCE_S), self._all

    def count(self, kind: str) -> int:
        return sum(kind in told for told in self._all)

    def reports(self) -> dict[int, Any]:
        return {told["number"]: told["report"] for told in self._all if "report" in told}


def pool_of(steps: Callable[[int], Steps], workers: int, clock: Clock | None = None) -> tuple[MaintenancePool, Told]:
    told = Told()

    def begun(job: Mapping[str, Any], progress: Progress) -> Steps:
        return steps(job["number"])

    return MaintenancePool(begun, workers, told, lambda: None, clock or SystemClock()), told


def test_as_many_jobs_are_in_work_at_once_as_there_are_workers() -> None:
    together = threading.Barrier(4)

    def steps(number: int) -> Steps:
        together.wait(PATIENCE_S)
        return {"ok": True}
        yield Turn.WORKER

    pool, told = pool_of(steps, workers=4)
    for number in range(8):
        pool.begin({"number": number})
    told.wait_for("report", *range(8))


def test_long_merges_go_one_after_the_other_and_short_jobs_get_through() -> None:
    free, merging = threading.Event(), threading.Semaphore(0)
    at_once: list[int] = []

    def steps(number: int) -> Steps:
        if number < 4:
            yield Turn.LONG_MERGE
            at_once.append(number)
            merging.release()
            assert free.wait(PATIENCE_S)
            yield Turn.WORKER
        return {"ok": True}

    pool, told = pool_of(steps, workers=2)
    for number in range(8):
        pool.begin({"number": number})
    told.wait_for("waits", 0, 1, 2, 3)
    told.wait_for("report", 4, 5, 6, 7)
    assert merging.acquire(timeout=PATIENCE_S)
    assert len(at_once) == 1
    free.set()
    told.wait_for("report", *range(4))
    assert sorted(at_once) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_parked", [True, False], ids=["as it waits", "before it does"])
def test_a_long_merge_for_which_somebody_waits_goes_on_beside_those_of_others(is_parked: bool) -> None:
    free, merging, planning = threading.Event(), threading.Event(), threading.Event()
    had_turn: dict[int, bool | None] = {}

    def steps(number: int) -> Steps:
        if number:
            assert planning.wait(PATIENCE_S)
        had_turn[number] = yield Turn.LONG_MERGE
        if not number:
            merging.set()
            assert free.wait(PATIENCE_S)
        return {"ok": True}

    pool, told = pool_of(steps, workers=2)
    pool.begin({"number": 0})
    assert merging.wait(PATIENCE_S)
    pool.begin({"number": 1})
    if is_parked:
        planning.set()
        told.wait_for("waits", 1)
    pool.hurry(1)
    pool.hurry(1)
    planning.set()
    told.wait_for("report", 1)
    pool.hurry(1)
    pool.begin({"number": 2})
    told.wait_for("waits", 2)
    assert had_turn == {0: True, 1: False}
    free.set()
    told.wait_for("report", 0, 2)
    assert had_turn == {0: True, 1: False, 2: True}


@pytest.mark.parametrize("waits_for", ["a worker", "a deletion"])
def test_a_job_that_was_hurried_goes_on_once_whatever_it_waits_for_next(checkpoint: Checkpoint, waits_for: str) -> None:
    goes_on = threading.Event()
    sent: list[bool | None] = []

    def steps(number: int) -> Steps:
        if number == 0:
            sent.append((yield Turn.LONG_MERGE))
            assert goes_on.wait(PATIENCE_S)
        elif number == 1:
            sent.append((yield Turn.LONG_MERGE))
            if waits_for == "a deletion":
                return (yield from checkpoint.steps(1))
        else:
            return (yield from checkpoint.steps(number))
        return {"ok": True}

    pool, told = pool_of(steps, workers=3)
    pool.begin({"number": 0})
    told.wait_for("progress", 0)
    if waits_for == "a deletion":
        pool.begin({"number": 2})
        assert checkpoint.backend.deleting.wait(PATIENCE_S)
    pool.begin({"number": 1})
    told.wait_for("waits", 1)
    for _ in range(3):
        pool.hurry(1)
    if waits_for == "a deletion":
        told.wait_for_count("waits", 1, 2)
        pool.hurry(1)
        time.sleep(0.1)
        assert 1 not in told.reports()
        checkpoint.backend.goes_on.set()
        told.wait_for("report", 1, 2)
        assert told.reports()[1] == {"stopped": None}
        assert checkpoint.left() == 4
    told.wait_for("report", 1)
    goes_on.set()
    told.wait_for("report", 0)
    assert sent == [True, False]
    assert told.count("report") == len(told.reports())


@pytest.mark.parametrize("is_late", [False, True], ids=["that has memory", "before it asks for any"])
def test_the_memory_of_a_job_that_hangs_is_free_for_others(is_late: bool) -> None:
    budget = MemoryBudget(100)
    asks, answers = threading.Event(), threading.Event()

    def steps(number: int) -> Steps:
        share = budget.share()
        if number == 0:
            if is_late:
                assert asks.wait(PATIENCE_S)
            yield share
            with fails_with("engine.cancelled") if is_late else contextlib.nullcontext():
                share.take(100)
            assert answers.wait(PATIENCE_S)
        else:
            yield share
            share.take(100)
        share.close()
        return {"ok": True}

    pool, told = pool_of(steps, workers=2)
    try:
        pool.begin({"number": 0})
        while not is_late and not budget.stats()["held_bytes"]:
            time.sleep(0)
        if is_late:
            pool.cancel_memory(0)
            asks.set()
        pool.begin({"number": 1})
        if not is_late:
            while not budget.stats()["waiting"]:
                time.sleep(0)
            pool.cancel_memory(0)
        told.wait_for("report", 1)
    finally:
        answers.set()
    told.wait_for("report", 0)
    pool.cancel_memory(0)
    assert budget.stats()["held_bytes"] == 0


class Gathering(FaultyBackend):
    """A storage whose first deletion takes until it is told to go on."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.deleting, self.goes_on = threading.Event(), threading.Event()

    def delete_many(self, paths: Any) -> None:
        self.deleting.set()
        assert self.goes_on.wait(PATIENCE_S)
        super().delete_many(paths)


class Checkpoint:
    """A checkpoint with some files, and the run that maintains it."""

    def __init__(self, name: str) -> None:
        inner = Storage(f"memory://maintenance-pool/{name}")
        self.backend = Gathering(inner._backend)
        self.storage = Storage(inner.url, backend=self.backend)
        self.state = self.opened("run")
        self.runs = KnownOthers(self.state, SystemClock())
        for number in range(6):
            self.storage.publish(f"0/{number}/file", b"x")

    def opened(self, run: str) -> CheckpointState:
        return CheckpointState.open(self.storage, run_id=run, read_only=False, clock=SystemClock(), ids=SequenceIds())

    def steps(self, number: int) -> Steps:
        deletion = Deletion(self.runs, [(self.storage, f"0/{number}/file")])
        yield deletion
        try:
            return {"stopped": deletion.outcome()}
        except Exception as error:
            return {"error": str(error)}

    def left(self) -> int:
        return sum(self.storage.exists(f"0/{number}/file") for number in range(6))

    def requests(self) -> list[str]:
        return [operation for operation, _ in self.backend.calls]


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    return Checkpoint(request.node.name)


def gather(checkpoint: Checkpoint, meanwhile: Callable[[], object] = lambda: None) -> dict[int, Any]:
    """Six collections that delete, of which five come while the first one does; what they report."""
    pool, told = pool_of(checkpoint.steps, workers=2)
    checkpoint.backend.calls.clear()
    pool.begin({"number": 0})
    assert checkpoint.backend.deleting.wait(PATIENCE_S)
    for number in range(1, 6):
        pool.begin({"number": number})
    told.wait_for("waits", *range(1, 6))
    meanwhile()
    checkpoint.backend.goes_on.set()
    told.wait_for("report", *range(6))
    return told.reports()


def test_deletions_that_come_while_one_is_made_take_one_look_and_one_request_together(checkpoint: Checkpoint) -> None:
    assert gather(checkpoint) == {number: {"stopped": None} for number in range(6)}
    assert checkpoint.requests() == ["list", "delete_many", "list", "delete_many"]
    assert checkpoint.left() == 0


class Slow(FaultyBackend):
    """Takes two seconds of a clock for each deletion."""

    def __init__(self, inner: Backend, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.sizes: list[int] = []

    def delete_many(self, paths: Any) -> None:
        self.sizes.append(len(paths))
        self._clock.advance(2_000)
        super().delete_many(paths)


def test_a_long_deletion_says_that_its_jobs_go_on_after_each_thousand_files(checkpoint: Checkpoint) -> None:
    clock = ManualClock(0)
    slow = Slow(checkpoint.backend._inner, clock)
    storage = Storage(checkpoint.storage.url, backend=slow)

    def steps(_: int) -> Steps:
        yield Deletion(checkpoint.runs, [(storage, f"0/0/{number}") for number in range(2_500)])
        return {}

    pool, told = pool_of(steps, 1, clock)
    pool.begin({"number": 0})
    told.wait_for("report", 0)
    assert slow.sizes == [1000, 1000, 500]
    assert told.count("progress") == 4


def test_a_newer_run_that_starts_before_a_deletion_is_made_stops_it(checkpoint: Checkpoint) -> None:
    checkpoint.runs.recently()
    reports = gather(checkpoint, lambda: checkpoint.opened("newer"))
    assert reports[0] == {"stopped": None}
    assert all("newer" in reports[number]["stopped"] for number in range(1, 6))
    assert checkpoint.left() == 5


def test_a_deletion_that_fails_fails_for_each_store_that_it_was_made_for(checkpoint: Checkpoint) -> None:
    reports = gather(checkpoint, lambda: checkpoint.backend.inject(Fault("delete_many", "0/1", times=2)))
    assert all("could not delete" in reports[number]["error"] for number in range(1, 6))
    assert checkpoint.left() == 5


def test_the_newest_run_is_looked_for_once_a_minute_and_not_after_a_newer_one_was_seen(checkpoint: Checkpoint) -> None:
    clock = ManualClock(0)
    runs = KnownOthers(checkpoint.state, clock)
    checkpoint.backend.calls.clear()
    for _ in range(3):
        standing = runs.recently()
        assert standing is not None and standing.newer is None
    assert checkpoint.requests() == ["list"]
    checkpoint.opened("newer")
    checkpoint.backend.calls.clear()
    clock.advance(60_000)
    for look in (runs.recently, runs.now, runs.recently):
        standing = look()
        assert standing is not None and standing.newer is not None
    assert checkpoint.requests() == ["list"]
