"""Commits that others publish: each is answered once, whoever is first, and gives back what it took."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import pytest

from lamina.engine.publications import Publications
from lamina.engine.requests import Requests
from lamina.errors import LaminaError
from lamina.format.manifest import CommitManifest, StoreIdentity
from lamina.store.changelog.groups import Place
from lamina.store.changelog.waiting import Waiting
from lamina.store.memory.budget import MemoryBudget

COMMITS = 300
CONNECTIONS = 1
SIZE = 20_000


class Answers:
    """What each request was answered, in its order."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send_header(self, header: dict[str, Any]) -> None:
        self.sent.append(header)

    def shut_down(self) -> None:
        pass


class Manifest(CommitManifest):
    """What a place asks of a manifest."""

    def __init__(self) -> None:
        for name, value in {
            "base": None,
            "store": StoreIdentity("uuid", 0, 0, "default"),
            "attempt": "",
            "version": 1,
        }.items():
            object.__setattr__(self, name, value)


class Held(Place):
    """A place whose holder is told when the test says so."""

    def __init__(self) -> None:
        self.tell: Callable[[LaminaError | None], None] = lambda _: None

    def fill(self, *arguments: Any, patient: bool = False) -> None:
        self.tell = arguments[-1]


class Commit:
    """A commit that was accepted and waits in a group."""

    def __init__(self, requests: Requests, number: int, budget: MemoryBudget, deadline_ms: float) -> None:
        self.answers, self.outcomes = Answers(), Answers()
        self.share = budget.share()
        self.share.take(SIZE // 2)
        self.place = Held()
        self.waiting = Waiting(self.place, [], Manifest(), self.share.close, True)
        with requests.started(self.answers, {"id": number, "op": "commit", "deadline_ms": deadline_ms}) as self.request:
            self.request.accept({"accepted": str(number)}, self.outcomes, lambda: None)

    def outcome(self) -> Mapping[str, Any]:
        self.waiting.result()
        return {"file": str(self.request.id)}

    def tell(self, error: LaminaError | None = None) -> None:
        self.place.tell(error)

    def follow(self, publications: Publications) -> None:
        taken = publications.take("storage", SIZE, self.share)
        assert taken
        publications.follow(self.request, "storage", self.outcome, self.share, taken, self.waiting.when_told)


def ended(requests: Requests) -> None:
    while requests.stats()["active"]:
        time.sleep(0)


@pytest.mark.parametrize("seed", range(3))
def test_each_is_answered_once_whether_it_is_told_cancelled_or_late_first(seed: int) -> None:
    requests, budget = Requests(time.monotonic), MemoryBudget(1 << 30)
    publications = Publications(requests, CONNECTIONS, 1 << 30)
    choose = random.Random(seed)
    error = LaminaError.from_kind("storage.failed", "the object was not written")
    commits = [Commit(requests, number, budget, choose.choice([0, 0, 1, 5, 50])) for number in range(COMMITS)]
    calls: list[Callable[[], object]] = []
    for commit in commits:
        calls += [partial(commit.follow, publications), partial(commit.tell, choose.choice([None, None, error]))]
        if choose.random() < 0.5:
            calls.append(partial(requests.cancel, commit.request.id))
    choose.shuffle(calls)
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()
    ended(requests)
    kinds: Counter[str] = Counter()
    for commit in commits:
        assert [header["accepted"] for header in commit.answers.sent] == [str(commit.request.id)]
        (outcome,) = commit.outcomes.sent
        kinds["durable" if outcome["ok"] else outcome["error"]["kind"]] += 1
    assert set(kinds) == {"durable", "storage.failed", "engine.cancelled", "engine.deadline"}
    stats = publications.stats()
    assert (stats["in_groups"], stats["in_work"], stats["waiting"], stats["held_bytes"]) == (0, 0, 0, {})
    assert stats["abandoned"] == 0
    assert budget.stats()["held_bytes"] == 0
    requests.close()


def test_a_commit_that_was_told_before_somebody_asked_is_answered_at_once() -> None:
    requests, budget = Requests(time.monotonic), MemoryBudget(1 << 30)
    publications = Publications(requests, CONNECTIONS, 1 << 30)
    commit = Commit(requests, 1, budget, 0)
    commit.tell()
    commit.follow(publications)
    assert [header["durable"] for header in commit.outcomes.sent] == [{"file": "1"}]
    assert not requests.stats()["active"]
    requests.close()


def test_what_hangs_in_a_storage_keeps_no_request_from_going_beyond_the_bound() -> None:
    requests, budget = Requests(time.monotonic), MemoryBudget(6 * SIZE)
    publications = Publications(requests, CONNECTIONS, 6 * SIZE)
    commit = Commit(requests, 1, budget, 0)
    commit.follow(publications)
    restores = [budget.share() for _ in range(2)]
    for share in restores:
        share.take(2 * SIZE)
    with ThreadPoolExecutor(2) as pool:
        growing = [pool.submit(share.take, 2 * SIZE) for share in restores]
        try:
            wait(growing, 60, FIRST_COMPLETED)
            assert sorted(share.held for share in restores) == [2 * SIZE, 4 * SIZE]
        finally:
            for share in restores:
                share.cancel()
    commit.tell()
    requests.close()


def test_those_that_wait_leave_all_places_to_others() -> None:
    requests, budget = Requests(time.monotonic), MemoryBudget(1 << 30)
    publications = Publications(requests, CONNECTIONS, 1 << 30)
    waiting = [Commit(requests, number, budget, 0) for number in range(COMMITS)]
    for commit in waiting:
        commit.follow(publications)
    other = Commit(requests, COMMITS, budget, 0)
    published = threading.Event()
    taken = publications.take("storage", SIZE, other.share)

    def publish() -> dict[str, Any]:
        published.set()
        return {}

    publications.submit(other.request, "storage", publish, other.share, taken)
    assert published.wait(60)
    assert publications.stats()["in_groups"] == COMMITS
    for commit in waiting:
        commit.tell()
    ended(requests)
    assert all(len(commit.outcomes.sent) == 1 for commit in waiting)
    requests.close()


def test_the_memory_of_one_that_is_cancelled_is_free_at_once_and_that_of_a_later_one_only_when_it_is_told() -> None:
    requests, budget = Requests(time.monotonic), MemoryBudget(1 << 30)
    publications = Publications(requests, CONNECTIONS, 1 << 30)
    first, second = (Commit(requests, number, budget, 0) for number in range(2))
    for commit in (first, second):
        commit.follow(publications)
    assert requests.cancel(0)
    assert publications.stats()["held_bytes"] == {"storage": SIZE}
    assert budget.stats()["held_bytes"] == SIZE
    second.tell()
    assert publications.stats()["held_bytes"] == {}
    first.tell()
    assert publications.stats()["held_bytes"] == {}
    assert budget.stats()["held_bytes"] == 0
    assert [header["ok"] for header in first.outcomes.sent] == [False]
    requests.close()
