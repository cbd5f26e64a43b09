"""Claims of runs: one listing answers all who asked before it began, and nobody who asked later."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from lamina.checkpoint import QueryRun
from lamina.components import RandomIds, SystemClock
from lamina.errors import LaminaError
from lamina.storage import Listed, Storage
from lamina.store import CheckpointState
from lamina.store.versions import claims as module
from lamina.store.versions.checkpoint_state import Standing
from lamina.store.versions.claims import Claims
from lamina.testing import FaultyBackend
from lamina.testing.expect import fails_with


class Listing(FaultyBackend):
    """A storage that counts its listings, and does something before it says what one of them saw."""

    listings = 0
    then: Callable[[int], None] = staticmethod(lambda _: None)

    def list(self, directory: str) -> Sequence[Listed]:
        self.listings += 1
        found = super().list(directory)
        self.then(self.listings)
        return found


class Asked(Claims):
    """Claims of which it is known how many wait for a listing."""

    def __init__(self, state: Storage) -> None:
        super().__init__(state)
        self.asked = threading.Semaphore(0)

    def _list(self, answer: Future[Sequence[QueryRun]]) -> None:
        self.asked.release()
        super()._list(answer)

    def all_ask(self, count: int) -> None:
        for _ in range(count):
            assert self.asked.acquire(timeout=60)


@pytest.fixture
def backend() -> Listing:
    return Listing(Storage(f"memory://claims/{uuid.uuid4()}")._backend)


@pytest.fixture
def claims(backend: Listing, monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked(Storage("memory://claims", backend=backend))

    def waits(futures: Sequence[Future[Any]], timeout: float) -> None:
        made.asked.release()
        wait(futures, timeout)

    monkeypatch.setattr(module, "wait", waits)
    claim(backend, 1, "first")
    return made


def claim(backend: Listing, epoch: int, run: str) -> None:
    backend.publish_if_absent(f"_lamina/runs/{epoch}_{run}", b"{}")


def test_all_who_ask_while_somebody_lists_share_the_next_listing(claims: Asked, backend: Listing) -> None:
    with ThreadPoolExecutor(8) as threads:
        with claims._listing:
            found = [threads.submit(claims.now) for _ in range(8)]
            claims.all_ask(8)
        assert [list(one.result(60)) for one in found] == [[QueryRun(1, "first")]] * 8
    assert backend.listings == 1


def test_a_run_that_claims_while_somebody_lists_is_seen_by_who_asks_then(claims: Asked, backend: Listing) -> None:
    later: list[Future[Sequence[QueryRun]]] = []
    with ThreadPoolExecutor(1) as threads:

        def claims_and_asks(number: int) -> None:
            if number == 1:
                claim(backend, 2, "second")
                claims.all_ask(1)
                later.append(threads.submit(claims.now))
                claims.all_ask(1)

        backend.then = claims_and_asks
        assert list(claims.now()) == [QueryRun(1, "first")]
        assert list(later[0].result(60)) == [QueryRun(1, "first"), QueryRun(2, "second")]


def test_whoever_waited_for_a_listing_that_failed_lists_by_itself(claims: Asked, backend: Listing) -> None:
    def fails_once(number: int) -> None:
        if number == 1:
            raise LaminaError.from_kind("storage.failed", "slow down")

    backend.then = fails_once
    with ThreadPoolExecutor(2) as threads:
        with claims._listing:
            mine = threads.submit(claims.now)
            claims.all_ask(1)
            other = threads.submit(claims.now)
            claims.all_ask(1)
        assert list(other.result(60)) == [QueryRun(1, "first")]
        with fails_with("storage.failed"):
            mine.result(60)


def test_a_listing_that_hangs_keeps_nobody_else(
    claims: Asked, backend: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 0.0)
    goes_on = threading.Event()

    def hangs_once(number: int) -> None:
        if number == 1:
            claims.asked.release()
            assert goes_on.wait(60)

    backend.then = hangs_once
    with ThreadPoolExecutor(2) as threads:
        hangs = threads.submit(claims.now)
        # it has asked, and lists
        claims.all_ask(2)
        try:
            assert list(threads.submit(claims.now).result(30)) == [QueryRun(1, "first")]
        finally:
            goes_on.set()
        assert list(hangs.result(60)) == [QueryRun(1, "first")]


def test_a_run_above_which_nobody_claimed_makes_no_order_of_all(
    backend: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Storage("memory://claims", backend=backend)
    older, newest = (
        CheckpointState.open(state, run_id=run, read_only=False, clock=SystemClock(), ids=RandomIds()) for run in "ab"
    )
    claim(backend, 7, "b")
    made: list[str] = []
    of = Standing.of

    def counted(run: str, found: Any) -> Standing:
        made.append(run)
        return of(run, found)

    monkeypatch.setattr(Standing, "of", counted)
    assert newest.newer_run() is None
    assert made == []
    assert older.newer_run() == QueryRun(2, "b")
    assert made == ["a"]
