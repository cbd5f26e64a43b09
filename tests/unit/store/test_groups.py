"""Groups of commits: what is published together, when, and that each is told once what became of it."""

from __future__ import annotations

import gc
import math
import random
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lamina.components import RandomIds
from lamina.errors import LaminaError
from lamina.format.manifest import StoreIdentity
from lamina.store.changelog.groups import Groups, Place, Policy, Sealed
from lamina.store.changelog.uploads import Retries, Uploads
from lamina.testing import ManualClock, SequenceIds
from lamina.testing.expect import fails_with

STORE = StoreIdentity("uuid", 0, 0, "default")
DELAY_S = 5.0


class Log:
    """Groups whose objects are published when the test says so."""

    def __init__(self, policy: Policy | None = None, pause_s: float = math.inf) -> None:
        self.clock = ManualClock(0)
        self.published: list[tuple[str, list[int]]] = []
        self.began: list[float] = []
        self.early = 0
        self.waiting: list[Callable[[], None]] = []
        self.told: dict[str, list[LaminaError | None]] = {}
        self.fails = False
        self.stores = 0
        self.groups = Groups(
            policy or Policy(DELAY_S, 60.0, 300.0, 1000),
            self._publish,
            self.waiting.append,
            self.clock,
            SequenceIds(1),
            self._add_early,
            lambda: pause_s,
        )

    def _add_early(self, size: int) -> None:
        self.early += size

    def _publish(self, group: Sealed) -> None:
        self.began.append(group.began)
        if self.fails:
            raise LaminaError.from_kind("storage.failed", "the storage is full")
        self.published.append((group.log, [commit.number for commit in group.commits]))

    def fill(self, place: Place, size: int = 10, store: int | None = None, patient: bool = False, to: int = 1) -> str:
        """Of a store that has not committed before, or of one that may have."""
        attempt = str(place.id)
        self.told[attempt] = []
        self.stores += 1
        written_by = replace(STORE, partition=1000 + self.stores if store is None else store)
        place.fill([bytes(size)], written_by, attempt, 0, to, self.told[attempt].append, patient=patient)
        return attempt

    def work(self) -> None:
        while self.waiting:
            self.waiting.pop()()


def test_at_the_end_of_a_process_what_waits_is_published_and_each_further_commit_by_itself() -> None:
    log = Log()
    first = log.groups.reserve()
    late = log.groups.reserve()
    log.fill(first, patient=True)
    assert (log.waiting, log.groups.left(0.0)) == ([], 1)
    log.groups.end()
    # it takes the commit along that has its place already
    assert (log.waiting, log.groups.left(0.0)) == ([], 1)
    log.fill(late)
    assert log.groups.left(0.0) == 2
    log.work()
    assert (log.published, log.groups.left(0.0)) == ([(first.id.log, [0, 1])], 0)
    after = log.groups.reserve()
    log.fill(after, patient=True)
    log.fails = True
    log.work()
    assert log.groups.left(0.0) == 1
    assert [None if error is None else error.kind for (error,) in log.told.values()] == [None, None, "storage.failed"]


def test_who_waits_for_the_end_is_woken_by_the_last_commit() -> None:
    log = Log()
    log.fill(log.groups.reserve())
    log.groups.end()
    left: list[int] = []
    waiting = threading.Thread(target=lambda: left.append(log.groups.left(60.0)))
    waiting.start()
    log.work()
    waiting.join(20)
    assert left == [0]


def test_a_group_is_sealed_after_the_delay_of_its_first_commit_and_not_of_its_first_place() -> None:
    log = Log()
    first, second = log.groups.reserve(), log.groups.reserve()
    log.clock.advance(60_000)
    assert log.groups.tick() is None
    log.fill(first)
    log.clock.advance(2_000)
    log.fill(second)
    assert log.groups.tick() == DELAY_S - 2
    log.clock.advance(3_000)
    assert log.groups.tick() is None
    log.work()
    assert log.published == [(first.id.log, [0, 1])]
    assert list(log.told.values()) == [[None], [None]]
    # the next one has an object of its own
    assert log.groups.reserve().id.log != first.id.log


def test_a_task_waits_for_others_while_they_come_quickly() -> None:
    log = Log(pause_s=2.0)
    places = [log.groups.reserve() for _ in range(6)]
    left = []
    for place in places[:4]:
        log.fill(place)
        left.append(log.groups.tick())
        log.clock.advance(1_500)
    # and for no longer than the delay of the first one
    assert left == [2.0, 2.0, 2.0, 0.5]
    log.fill(places[4])
    places[5].drop()
    assert log.groups.tick() is None
    after = log.groups.reserve()
    log.fill(after)
    log.clock.advance(2_000)
    assert log.groups.tick() is None
    while log.waiting:
        log.waiting.pop(0)()
    assert log.published == [(places[0].id.log, [0, 1, 2, 3, 4]), (after.id.log, [0])]


def test_one_that_is_hurried_waits_for_the_whole_delay_until_a_task_does() -> None:
    log = Log(pause_s=2.0)
    places = [log.groups.reserve() for _ in range(3)]
    log.fill(places[0], patient=True)
    left = []
    for place in places[1:]:
        log.groups.hurry(place.id.log)
        log.clock.advance(500)
        left.append(log.groups.tick())
        log.fill(place, patient=place is places[1])
        left.append(log.groups.tick())
    assert left == [DELAY_S - 0.5, DELAY_S - 0.5, DELAY_S - 1.0, 2.0]


def test_a_commit_for_which_a_task_waits_hurries_those_for_which_none_does() -> None:
    log, woken = Log(), []
    log.groups.on_due = lambda: woken.append(log.groups.tick())
    first, second, third = (log.groups.reserve() for _ in range(3))
    log.fill(first, patient=True)
    log.clock.advance(20_000)
    log.fill(second)
    log.fill(third, patient=True)
    assert woken == [60.0, DELAY_S]
    log.clock.advance(5_000)
    assert log.groups.tick() is None
    log.work()
    assert [numbers for _, numbers in log.published] == [[0, 1, 2]]


def test_a_commit_for_which_somebody_waits_after_all_waits_as_if_a_task_did_in_its_own_group_alone() -> None:
    log, woken = Log(), []
    log.groups.on_due = lambda: woken.append(log.groups.tick())
    first, second = (log.groups.reserve() for _ in range(2))
    log.groups.hurry("another")
    log.fill(first, patient=True)
    log.clock.advance(20_000)
    log.groups.hurry("another")
    assert woken == [60.0]
    log.groups.hurry(first.id.log)
    log.clock.advance(1_000)
    # the first to ask counts, and others still come
    log.groups.hurry(first.id.log)
    log.fill(second, patient=True)
    assert woken == [60.0, DELAY_S]
    log.clock.advance(4_000)
    assert log.groups.tick() is None
    log.work()
    assert [numbers for _, numbers in log.published] == [[0, 1]]
    log.fill(log.groups.reserve(), patient=True)
    log.groups.hurry(first.id.log)
    assert (log.groups.tick(), log.groups.stats()) == (60.0, {"open": 1, "sealed": 0})


def test_a_group_is_sealed_at_its_size() -> None:
    log = Log(Policy(DELAY_S, 60.0, 300.0, 100))
    places = [log.groups.reserve() for _ in range(3)]
    log.fill(places[0], 60)
    log.fill(places[2], 40)
    assert log.waiting == []
    log.fill(places[1], 10)
    log.work()
    assert [numbers for _, numbers in log.published] == [[0, 1, 2]]


def test_bytes_are_early_whose_batch_goes_on_after_they_were_sealed_however_that_came() -> None:
    log = Log(Policy(DELAY_S, 60.0, 300.0, 100, max_parts=3))

    def batch(to: int, *sizes: int, until: Callable[[int], object] = lambda _: None) -> int:
        """How many bytes are early of commits to this version, of so many bytes each."""
        before = log.early
        for number, size in enumerate(sizes):
            log.fill(log.groups.reserve(), size, store=number, to=to)
            until(number)
            log.work()
        log.groups.seal()
        log.work()
        return log.early - before

    def delayed(number: int) -> None:
        if number == 1:
            log.clock.advance(round(1000 * DELAY_S))
            log.groups.tick()

    # nobody knows how many come, and all places of a group are taken
    assert batch(1, 10, 10, 10, 10) == 30
    # the last store of the batch comes, also one that makes it full
    assert batch(2, 10, 10) == 0
    assert batch(3, 50, 50) == 0
    # full, and goes on; a commit of the next batch says nothing of this one
    assert batch(4, 60, 60, 60, 1) == 120
    # sealed since it had waited for as long as it may
    assert batch(5, 10, 20, 5, until=delayed) == 30
    # somebody asks for it, and the batch goes on all the same
    assert batch(6, 7, 8, until=lambda _: log.groups.seal()) == 7


def test_a_group_that_waits_for_its_own_last_place_is_not_early_by_what_came_before_that() -> None:
    log = Log(Policy(DELAY_S, 60.0, 300.0, 100))
    own = log.groups.reserve()
    log.fill(log.groups.reserve(), 100, store=0, to=7)
    # the next group, and a late one of the batch before, which says nothing of this one
    log.fill(log.groups.reserve(), 10, store=1, to=7)
    log.fill(log.groups.reserve(), 10, store=2, to=6)
    log.fill(own, 10, store=3, to=7)
    log.work()
    assert log.early == 0
    log.fill(log.groups.reserve(), 10, store=4, to=7)
    assert log.early == 110


def test_a_group_whose_upload_was_queued_and_refused_is_told_once_and_is_no_object() -> None:
    """So it is where the system has no further thread: an object without its commits would be taken for durable."""
    log = Log()
    queued: list[Callable[[], None]] = []

    def refused(call: Callable[[], None]) -> None:
        queued.append(call)
        raise RuntimeError("can't start new thread")

    uploads = Uploads(Retries(1, 30.0, False), 1, log.clock)
    uploads._waits = SimpleNamespace(submit=refused)  # type: ignore[assignment]
    groups = Groups(Policy(DELAY_S, 60.0, 300.0, 10), log._publish, uploads.submit, log.clock, SequenceIds(1))
    told: list[LaminaError | None] = []
    groups.reserve().fill([bytes(10)], STORE, "attempt", 0, 1, told.append)
    for call in queued:
        call()
    assert len(queued) == len(told) == 1 and told[0] is not None
    assert log.published == []


def test_early_bytes_count_once_they_are_durable_and_not_where_they_never_are() -> None:
    log = Log(Policy(DELAY_S, 60.0, 300.0, 100))
    log.fill(log.groups.reserve(), 100, store=0)
    log.fill(log.groups.reserve(), 100, store=1)
    log.fill(log.groups.reserve(), 10, store=2)
    assert log.early == 0
    log.waiting.pop()()
    assert log.early == 100
    log.fails = True
    log.work()
    log.fill(log.groups.reserve(), 10, store=3)
    assert log.early == 100


def test_a_group_is_sealed_with_the_last_store_that_committed_in_the_batch_before() -> None:
    log = Log()

    def batch(*stores: int) -> list[int]:
        """The sizes of the objects that are written without a wait."""
        before = len(log.published)
        for store in stores:
            log.fill(log.groups.reserve(), store=store)
        log.work()
        return sorted(len(numbers) for _, numbers in log.published[before:])

    # in the first batch nobody knows how many there are
    assert batch(0, 1, 2) == []
    log.groups.seal()
    log.work()
    assert batch(2, 0, 1) == [3]
    # a store that has moved here is one more: it comes alone once, and is known from then on
    assert batch(0, 1, 2, 3) == [3]
    log.groups.seal()
    log.work()
    assert batch(3, 1, 0, 2) == [4]
    # one that has moved away is waited for once, as long as any
    assert batch(0, 1, 2) == []
    log.clock.advance(int(DELAY_S * 1000))
    log.groups.tick()
    log.work()
    assert batch(0, 1, 2) == [3]


def test_the_last_store_of_a_batch_seals_what_is_open_also_where_its_own_place_is_in_an_older_group() -> None:
    log = Log()
    for store in range(3):
        log.fill(log.groups.reserve(), store=store)
    log.groups.seal()
    late = log.groups.reserve()
    log.fill(log.groups.reserve(), store=0, size=1000)
    log.fill(log.groups.reserve(), store=1)
    assert log.groups.stats() == {"open": 1, "sealed": 1}
    log.work()
    log.fill(late, store=2)
    assert log.groups.stats()["open"] == 0
    log.work()
    assert sorted(len(numbers) for _, numbers in log.published) == [1, 2, 3]


def test_a_sealed_group_waits_for_its_places_and_has_none_that_was_dropped() -> None:
    log = Log()
    places = [log.groups.reserve() for _ in range(3)]
    log.fill(places[1])
    log.groups.seal("another")
    log.groups.seal(places[1].id.log)
    assert log.groups.stats() == {"open": 0, "sealed": 1}
    log.fill(places[2])
    assert log.waiting == []
    places[0].drop()
    places[1].drop()
    log.work()
    assert [numbers for _, numbers in log.published] == [[1, 2]]
    with pytest.raises(ValueError, match="not open"):
        log.fill(places[0])


def test_what_was_uploaded_is_in_memory_no_longer_also_where_no_further_commit_comes() -> None:
    class Chunk(bytearray):
        """May be referred to weakly."""

    log = Log(Policy(DELAY_S, 60.0, 300.0, 100))
    chunk = Chunk(100)
    left = weakref.ref(chunk)
    log.groups.reserve().fill([chunk], STORE, "attempt", 0, 1, lambda _: None)
    del chunk
    gc.collect()
    assert left() is not None
    log.work()
    gc.collect()
    assert left() is None


def test_a_group_without_commits_is_no_object() -> None:
    log = Log()
    place = log.groups.reserve()
    log.groups.seal()
    place.drop()
    log.groups.close()
    log.work()
    assert log.published == []
    with fails_with("store.closed"):
        log.groups.reserve()


def test_what_fails_is_told_to_each_and_to_nobody_else() -> None:
    log = Log()
    log.fails = True
    failed = [log.fill(log.groups.reserve()) for _ in range(2)]
    log.groups.seal()
    log.work()
    log.fails = False
    well = log.fill(log.groups.reserve())
    log.groups.close()
    log.work()
    assert [error.kind for attempt in failed for error in log.told[attempt] if error] == ["storage.failed"] * 2
    assert log.told[well] == [None]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_threads_do_each_commit_is_in_one_object_and_told_once(seed: int) -> None:
    drawn = random.Random(seed)
    lock = threading.Lock()
    objects: dict[str, list[tuple[int, str]]] = {}
    told: dict[str, list[bool]] = {}
    durable: list[int] = []
    early: list[int] = []

    def publish(group: Sealed) -> None:
        with lock:
            # no name is written twice
            assert group.log not in objects
            objects[group.log] = [(commit.number, commit.attempt) for commit in group.commits]
            fails = drawn.random() < 0.2
            if not fails:
                durable.append(10 * len(group.commits))
        if fails:
            raise LaminaError.from_kind("storage.failed", "now and then")

    with ThreadPoolExecutor(4) as publishers:
        groups = Groups(
            Policy(0.0005, 1.0, 20.0, drawn.choice([50, 500])), publish, publishers.submit, ManualClock(0), RandomIds(),
            early.append,
        )  # fmt: skip

        def write(number: int) -> None:
            mine = random.Random(seed * 1000 + number)
            for _ in range(50):
                place = groups.reserve()
                if mine.random() < 0.2:
                    place.drop()
                    continue
                attempt = f"{place.id}"
                with lock:
                    told[attempt] = []
                place.fill([bytes(10)], STORE, attempt, 0, 1, lambda error, one=attempt: told[one].append(not error))
                if mine.random() < 0.1:
                    groups.seal()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        groups.close()
    found = {attempt: log for log, commits in objects.items() for _, attempt in commits}
    assert sum(map(len, objects.values())) == len(found) == len(told) > 0
    assert all(len(outcomes) == 1 for outcomes in told.values())
    assert all(attempt == f"{log}-{number}" for log, commits in objects.items() for number, attempt in commits)
    assert groups.stats() == {"open": 0, "sealed": 0}
    # all are of one batch, so all is early but what each of the threads did last, and what was open at the end
    assert sum(durable) - sum(sorted(durable)[-9:]) <= sum(early) <= sum(durable)


def test_a_group_for_which_only_the_batch_waits_waits_while_commits_come_and_no_longer_than_it_may() -> None:
    log = Log(Policy(DELAY_S, 60.0, 150.0, 100_000))
    first = log.groups.reserve()
    log.fill(first, patient=True)
    for _ in range(2):
        log.clock.advance(50_000)
        log.fill(log.groups.reserve(), patient=True)
        assert log.groups.tick() is not None
    assert not log.published
    # a further one does not help beyond the end
    log.clock.advance(40_000)
    log.fill(log.groups.reserve(), patient=True)
    assert log.groups.tick() == 10
    log.clock.advance(10_000)
    assert log.groups.tick() is None
    log.work()
    assert log.published == [(first.id.log, [0, 1, 2, 3])]


def test_a_group_for_which_only_the_batch_waits_is_sealed_when_nothing_comes_any_more() -> None:
    log = Log(Policy(DELAY_S, 60.0, 150.0, 100_000))
    first = log.groups.reserve()
    log.fill(first, patient=True)
    log.clock.advance(30_000)
    log.fill(log.groups.reserve(), patient=True)
    log.clock.advance(59_000)
    assert log.groups.tick() == 1
    log.clock.advance(1_000)
    assert log.groups.tick() is None
    log.work()
    assert log.published == [(first.id.log, [0, 1])]


def test_a_place_that_was_dropped_leaves_no_time_of_its_own_behind() -> None:
    log = Log()
    log.groups.reserve().drop()
    log.clock.advance(3_600_000)
    log.fill(log.groups.reserve())
    log.clock.advance(5_000)
    log.groups.tick()
    log.work()
    assert log.began == [log.clock.monotonic() - 5]


def test_most_of_a_round_waits_a_few_gaps_for_the_rest_of_it() -> None:
    """Fewer stores may change in a batch than in the one before: no batch waits for long for those."""
    log = Log(Policy(DELAY_S, 60.0, 300.0, 100_000))
    for store in range(10):
        log.fill(log.groups.reserve(), store=store, patient=True)
    log.clock.advance(60_000)
    log.groups.tick()
    for store in range(4):
        log.fill(log.groups.reserve(), store=store, patient=True)
        log.clock.advance(100)
    assert log.groups.tick() == pytest.approx(59.9)
    log.fill(log.groups.reserve(), store=4, patient=True)
    assert log.groups.tick() == pytest.approx(0.4)
    log.clock.advance(401)
    assert log.groups.tick() is None
    log.work()
    assert sorted(len(numbers) for _, numbers in log.published) == [5, 10]
