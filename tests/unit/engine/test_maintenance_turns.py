"""Whose job is next: stores take turns, compactions go first, and no store has two jobs in work."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest

from lamina.components import SystemClock
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.maintenance_turns import AWAITED_IN_A_ROW, COLLECTION_WAITS_S, LEFT_S, Job, Report, Turns
from lamina.testing import ManualClock
from tests.unit.engine.conftest import nothing


def ignore(report: dict[str, Any]) -> None:
    """Nobody waits for the report."""


def asked(collect: bool = False, url: str = "memory://a", confirmed: int = 1) -> Job:
    return Job({"collect": collect, "open": {"url": url, "store": {}}, "confirmed": confirmed}, ignore, nothing)


def order(turns: Turns, now: float = 0.0) -> list[tuple[Hashable, bool]]:
    """The stores in their turn, and whether each one's job collects."""
    found = []
    while (following := turns.next(now, lambda store, job: True)) is not None:
        found.append((following[0], following[1].collects))
    return found


def test_a_store_that_asks_often_gets_no_more_turns_than_others() -> None:
    turns = Turns()
    for now in range(10):
        turns.add("often", asked(confirmed=now), now)
    turns.add("once", asked(), 10)
    turns.add("often", asked(confirmed=10), 11)
    store, job = turns.next(12, lambda *_: True) or ("none", asked())
    assert (store, job.argument["confirmed"]) == ("often", 10)
    turns.add("often", asked(), 12)
    assert order(turns) == [("once", False), ("often", False)]


def test_a_query_of_few_stores_does_not_wait_for_all_of_one_of_many() -> None:
    for collect in (False, True):
        turns = Turns()
        for store in range(1000):
            turns.add(store, asked(collect, url="memory://large"), store / 1000)
        for store in ("small", "smaller"):
            turns.add(store, asked(collect, url="memory://small"), 2)
        found = [store for store, _ in order(turns)]
        assert found[:5] == [0, "small", 1, "smaller", 2]
        assert found[5:] == list(range(3, 1000))


def test_collections_of_another_query_that_are_long_overdue_hold_up_no_compaction() -> None:
    turns = Turns()
    for store in range(1000):
        turns.add(store, asked(True, url="memory://large"), 0)
    turns.add("small", asked(url="memory://small"), 100 * COLLECTION_WAITS_S)
    assert [store for store, _ in order(turns)][:3] == [0, "small", 1]


def test_checkpoints_on_a_storage_that_is_full_are_passed_over_as_a_whole() -> None:
    turns = Turns()
    for store in range(1000):
        turns.add(store, asked(url="memory://full"), 0)
    turns.add("other", asked(url="memory://other"), 1)
    looked: list[Hashable] = []

    def may_go(store: Hashable, _: Job) -> bool:
        looked.append(store)
        return True

    found = turns.next(2, may_go, lambda url: url == "memory://full")
    assert found is not None and found[0] == "other"
    assert turns.next(2, may_go, lambda url: url == "memory://full") is None
    assert looked == ["other"]
    assert len(turns) == 1000


def test_compactions_go_before_collections_that_were_asked_for_a_minute_before_and_no_longer() -> None:
    turns = Turns()
    turns.add("collected", asked(collect=True), 0)
    turns.add("compacted", asked(), COLLECTION_WAITS_S)
    turns.add("late", asked(), COLLECTION_WAITS_S + 1)
    assert order(turns) == [("compacted", False), ("collected", True), ("late", False)]


def test_a_collection_takes_the_compaction_of_its_store_with_it_and_both_know_the_newest_version() -> None:
    turns = Turns()
    assert turns.add("store", asked(collect=True, confirmed=1), 0)
    assert turns.add("store", asked(confirmed=2), COLLECTION_WAITS_S + 1)
    assert not turns.add("store", asked(confirmed=3), COLLECTION_WAITS_S + 2)
    store, job = turns.next(0, lambda *_: True) or ("none", asked())
    assert (store, job.collects, job.argument["confirmed"]) == ("store", True, 3)
    assert len(turns) == 0


def test_a_compaction_that_was_asked_for_after_a_collection_leaves_it_its_turn() -> None:
    turns = Turns()
    turns.add("store", asked(collect=True), 0)
    turns.add("store", asked(), 1)
    assert order(turns) == [("store", False), ("store", True)]


@pytest.mark.parametrize("collect", [False, True])
def test_a_merge_that_was_asked_for_is_not_forgotten_when_somebody_asks_for_less(collect: bool) -> None:
    turns = Turns()
    merge = asked()
    turns.add("store", Job({**merge.argument, "compact": True, "at_once": True}, ignore, nothing), 0)
    turns.add("store", asked(collect, confirmed=2), 1)
    _, job = turns.next(2, lambda *_: True) or ("none", asked())
    assert (job.argument["compact"], job.argument["at_once"], job.argument["confirmed"]) == (True, True, 2)


def awaited(report: Report = ignore, confirmed: int = 1) -> Job:
    job = asked(confirmed=confirmed)
    return Job({**job.argument, "awaited": True}, report, nothing)


def test_what_somebody_waits_for_goes_first_in_its_order_and_its_place_is_no_others() -> None:
    turns = Turns()
    turns.add("others", asked(), 0)
    turns.add("first", awaited(), 1)
    turns.add("second", awaited(), 2)
    # asking again, for a newer version, keeps the turn; a job that nobody waits for waits apart
    turns.add("first", awaited(confirmed=2), 3)
    turns.add("first", asked(collect=True), 4)
    store, job = turns.next(5, lambda *_: True) or ("none", asked())
    assert (store, job.is_awaited, job.argument["confirmed"]) == ("first", True, 2)
    assert order(turns, now=5) == [("second", False), ("others", False), ("first", True)]


def test_two_handles_of_a_store_wait_each_for_its_own() -> None:
    def other(report: dict[str, Any]) -> None:
        """Another handle's."""

    turns = Turns()
    turns.add("store", awaited(), 0)
    turns.add("store", awaited(other), 1)
    turns.leave("store", ignore, 2)
    store, job = turns.next(3, lambda *_: True) or ("none", asked())
    assert (store, job.report) == ("store", other)
    assert len(turns) == 0


def test_collections_go_on_although_somebody_always_waits() -> None:
    turns = Turns()
    turns.add("collected", asked(collect=True), 0)
    gone = []
    for now in range(2 * AWAITED_IN_A_ROW):
        turns.add(("waits", now % 3), awaited(), now)
        store, _ = turns.next(now, lambda *_: True) or ("none", None)
        gone.append(store)
    assert gone.index("collected") == AWAITED_IN_A_ROW


def test_a_job_that_is_waited_for_and_was_begun_in_vain_is_the_next_one() -> None:
    turns = Turns()
    turns.add("other", awaited(), 0)
    turns.put_back("first", awaited(), 1)
    assert order(turns, now=2) == [("first", False), ("other", False)]


def test_a_store_whose_job_may_not_go_holds_up_no_other() -> None:
    turns = Turns()
    for store in ("first", "second"):
        turns.add(store, asked(), 0)
    following = turns.next(0, lambda store, job: store != "first")
    assert following is not None and following[0] == "second"
    assert order(turns) == [("first", False)]


def test_a_job_that_was_begun_in_vain_is_the_next_one() -> None:
    turns = Turns()
    turns.add("other", asked(), 0)
    turns.put_back("store", asked(), 1)
    assert order(turns) == [("store", False), ("other", False)]


def test_a_job_of_a_closed_store_waits_for_a_while_only() -> None:
    turns = Turns()
    turns.add("closed", asked(), 0)
    turns.leave("closed", ignore, 0)
    assert order(turns, LEFT_S + 1) == []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now_ms())


def begin_all(queue: MaintenanceQueue) -> list[Hashable]:
    """The stores whose jobs the process is to get now."""
    begun = []
    while (found := queue._begun()) is not None:
        begun.append(found[1].store)
    return begun


def test_no_two_jobs_of_a_store_are_in_work_and_no_more_than_there_are_workers(
    tmp_path: Path, clock: ManualClock
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=3)
    queue.submit("a", asked())
    assert begin_all(queue) == ["a"]
    for store in ("a", "b", "c", "d"):
        queue.submit(store, asked())
    assert begin_all(queue) == ["b", "c"]
    queue._finish(2, {"ok": True})
    assert begin_all(queue) == ["d"]
    queue._finish(1, {"ok": True})
    assert begin_all(queue) == ["a"]


def test_a_job_that_waits_in_the_process_takes_no_worker_and_its_store_has_no_other(
    tmp_path: Path, clock: ManualClock
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=1)
    for store in ("long", "short", "third"):
        queue.submit(store, asked())
    assert begin_all(queue) == ["long"]
    queue._note({"number": 1, "waits": True})
    queue.submit("long", asked())
    assert begin_all(queue) == ["short"]
    clock.advance(1_000_000)
    queue._finish(2, {"ok": True})
    assert queue._newly_hanging() == []
    queue._note({"number": 1, "progress": 0})
    assert begin_all(queue) == []


def test_a_job_that_waits_in_the_process_hears_that_somebody_waits_for_the_next_one_of_its_store(
    tmp_path: Path, clock: ManualClock
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=2)
    queue._alive = True

    def hurried() -> list[int]:
        found = []
        while not queue._lines.empty():
            line = queue._lines.get()
            assert line is not None
            found.append(json.loads(line)["hurry"])
        return found

    queue.submit("a", asked())
    queue.submit("b", asked())
    assert begin_all(queue) == ["a", "b"]
    queue._note({"number": 1, "waits": True})
    queue._note({"number": 2, "waits": True})
    assert hurried() == []
    # while it waits there, and before it does
    queue.submit("a", awaited())
    assert hurried() == [1]
    queue._note({"number": 2, "progress": 0})
    queue.submit("b", awaited())
    assert hurried() == []
    queue._note({"number": 2, "waits": True})
    assert hurried() == [2]


def test_a_storage_in_which_half_of_the_workers_wait_for_an_answer_gets_no_more_of_them(
    tmp_path: Path, clock: ManualClock
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 600, workers=4)
    for store in range(2):
        queue.submit(store, asked(url="s3a://slow/a"))
    assert begin_all(queue) == [0, 1]
    clock.advance(20_000)
    for store in range(2, 4):
        queue.submit(store, asked(url="s3a://slow/b"))
    for store in range(4, 6):
        queue.submit(store, asked(url="s3a://other/a"))
    assert begin_all(queue) == [4, 5]
    queue._finish(1, {"ok": True})
    assert begin_all(queue) == [2]


def test_a_storage_that_stops_answering_all_at_once_leaves_a_worker_to_the_others(
    tmp_path: Path, clock: ManualClock
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 600, workers=4)
    for store in range(6):
        queue.submit(store, asked(url="s3a://stops/a"))
    queue.submit("other", asked(url="s3a://other/a"))
    assert begin_all(queue) == [0, "other", 1, 2]
    queue._finish(2, {"ok": True})
    queue.submit("another", asked(url="s3a://other/a"))
    assert begin_all(queue) == ["another"]


def test_a_storage_that_nobody_has_asked_for_in_an_hour_keeps_no_worker_from_others(
    tmp_path: Path, clock: ManualClock
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 600, workers=2)
    queue.submit("other", asked(url="s3a://other/a"))
    assert begin_all(queue) == ["other"]
    queue._finish(1, {"ok": True})
    for store in range(2):
        queue.submit(store, asked(url="s3a://only/a"))
    assert begin_all(queue) == [0]
    queue._finish(2, {"ok": True})
    clock.advance(3_600_000)
    queue.submit(2, asked(url="s3a://only/a"))
    assert begin_all(queue) == [1, 2]


def test_no_job_is_begun_in_a_process_whose_end_is_being_reported(tmp_path: Path, clock: ManualClock) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 600, workers=4)
    queue._alive = True
    begun: list[Hashable] = []

    def hears(report: dict[str, Any]) -> None:
        queue.submit("late", asked())
        begun.extend(begin_all(queue))

    queue.submit("lost", Job({"collect": False, "open": {"url": "memory://a", "store": {}}}, hears, nothing))
    assert begin_all(queue) == ["lost"]
    queue._lost(1)
    assert begun == []
    assert begin_all(queue) == ["late"]


def test_a_job_that_hangs_fails_alone_and_its_process_is_ended_when_nobody_else_works_there(
    tmp_path: Path, clock: ManualClock
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=4)
    for store in ("hangs", "works"):
        queue.submit(store, asked(url=f"memory://{store}"))
    begin_all(queue)
    clock.advance(60_000)
    queue._note({"number": 2, "progress": 1})
    assert [work.store for work in queue._newly_hanging()] == ["hangs"]
    assert not queue._is_draining(clock.monotonic())
    clock.advance(60_000)
    queue._note({"number": 2, "progress": 2})
    assert queue._newly_hanging() == []
    # too long for what else there is to do
    assert queue._is_draining(clock.monotonic())
    queue.submit("new", asked())
    assert begin_all(queue) == []


@pytest.mark.parametrize("end", ["it is done", "its process dies", "it hangs"])
def test_a_merge_counts_whatever_becomes_of_the_collection_after_it(
    tmp_path: Path, clock: ManualClock, end: str
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=4)
    told: list[dict[str, Any]] = []
    queue.submit("a", Job({**asked().argument, "compact": True, "collect": True}, told.append, nothing))
    begin_all(queue)
    queue._take_merged(1, {"segment": {"name": "made"}, "merge_ms": 5, "compacted": True})
    assert [(one["ok"], one["segment"], one["compacted"]) for one in told] == [(True, {"name": "made"}, True)]
    assert queue.stats()["working_on"] != []
    if end == "it is done":
        queue._finish(1, {"ok": True, "segment": None, "collected": {"delete_files": 2}})
    elif end == "its process dies":
        queue._lost(-9)
    else:
        clock.advance(60_000)
        for work in queue._newly_hanging():
            queue._report(work, work.failed(queue._silent()))
    assert [one["ok"] for one in told] == [True, end == "it is done"]
    assert not told[-1].get("merge_failed")
    stats = queue.stats()
    assert (stats["segments"], stats["failed_merges"]) == (1, 0)
    assert stats["done"] + stats["failed"] == 1
    assert queue.pop_figures("a")["merge_ms"] == 5


def test_what_a_job_made_that_was_taken_for_hanging_is_dropped(tmp_path: Path, clock: ManualClock) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=4)
    told: list[dict[str, Any]] = []
    queue.submit("a", Job({**asked().argument, "compact": True}, told.append, nothing))
    begin_all(queue)
    clock.advance(60_000)
    assert len(queue._newly_hanging()) == 1
    for number in (1, 2):
        database = tmp_path / f"database-{number}"
        database.mkdir()
        queue._take_merged(number, {"segment": {}, "in_place": {"directory": str(database)}})
        assert not database.exists()
    assert told == []


@pytest.mark.parametrize("hung", [False, True], ids=["it died", "it was killed since a job hung"])
def test_of_a_process_that_ended_only_jobs_that_cannot_have_been_the_reason_begin_anew(
    tmp_path: Path, clock: ManualClock, hung: bool
) -> None:
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=4)
    failed: list[tuple[str, str]] = []
    for store in ("working", "waiting"):

        def report(told: dict[str, Any], store: str = store) -> None:
            failed.append((store, told["error"]["kind"]))

        queue.submit(store, Job({**asked().argument, "compact": True}, report, nothing))
    begin_all(queue)
    queue._note({"number": 2, "waits": True})
    if hung:
        clock.advance(60_000)
        for work in queue._newly_hanging():
            queue._report(work, work.failed(queue._silent()))
        queue._killed = True
    queue._lost(-9)
    assert queue.stats()["failed_merges"] == len(failed)
    if hung:
        assert failed == [("working", "engine.deadline")]
        assert begin_all(queue) == ["waiting"]
    else:
        assert failed == [("working", "engine.lost"), ("waiting", "engine.lost")]
        assert begin_all(queue) == []
