"""The budget of memory: nobody exceeds it, nobody starves, and no order of requests locks up."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lamina.format import entries
from lamina.format.entries import PUT
from lamina.format.manifest import Count
from lamina.storage import Storage
from lamina.store import CommitRequest, Version
from lamina.store.files import store_files as files
from lamina.store.memory.budget import MemoryBudget, Share, default_bytes
from lamina.testing import FaultyBackend
from lamina.testing.expect import fails_with
from tests.unit.store.writing import FAMILY, SEEDS, Change, Query, rows_of
from tests.unit.store.writing import entries as entries_of

EMPTY = Version(0)
MIB = 1 << 20


def waiting(budget: MemoryBudget, count: int) -> None:
    """Returns when so many shares wait."""
    with budget._changed:
        assert budget._changed.wait_for(lambda: len(budget._waiting) + len(budget._growing) == count, timeout=60)


def taking(budget: MemoryBudget, share: Share, size: int) -> threading.Thread:
    """A thread that takes and ends; it waits when this returns."""
    before = budget.stats()["waiting"]

    def told() -> None:
        share.take(size)

    thread = threading.Thread(target=told)
    thread.start()
    while budget.stats()["waiting"] == before and thread.is_alive():
        thread.join(0.001)
    return thread


def test_who_finds_no_room_waits_until_it_is_given_back() -> None:
    budget = MemoryBudget(100)
    first, second = budget.share(), budget.share()
    first.take(80)
    thread = taking(budget, second, 30)
    assert budget.stats()["held_bytes"] == 80
    first.give(20)
    thread.join(60)
    assert budget.stats() == {"max_bytes": 100, "held_bytes": 90, "peak_bytes": 90, "waiting": 0, "waits": 1}
    second.close()
    first.close()
    assert budget.stats()["held_bytes"] == 0


def test_who_waits_says_so_again_and_again() -> None:
    budget = MemoryBudget(100)
    said = threading.Semaphore(0)
    first, second = budget.share(waiting=said.release), budget.share(waiting=said.release)
    first.take(80)
    thread = taking(budget, second, 30)
    assert all(said.acquire(timeout=60) for _ in range(2))
    first.close()
    thread.join(60)
    assert second.held == 30


def test_nobody_overtakes_those_who_wait() -> None:
    budget = MemoryBudget(100)
    first, large, small = budget.share(), budget.share(), budget.share()
    first.take(50)
    thread = taking(budget, large, 100)
    assert not small.try_take(1)
    assert not first.try_take(1)
    behind = taking(budget, small, 1)
    assert behind.is_alive()
    first.close()
    thread.join(60)
    assert budget.stats()["held_bytes"] == 100
    large.close()
    behind.join(60)
    assert budget.stats()["held_bytes"] == 1


def test_more_than_the_bound_is_had_alone() -> None:
    budget = MemoryBudget(100)
    first, huge = budget.share(), budget.share()
    first.take(1)
    thread = taking(budget, huge, 1000)
    assert thread.is_alive()
    first.close()
    thread.join(60)
    assert budget.stats()["held_bytes"] == 1000
    assert not first.try_take(1)


def test_a_share_that_holds_something_waits_before_those_that_hold_nothing() -> None:
    budget = MemoryBudget(100)
    first, grows, new = budget.share(), budget.share(), budget.share()
    first.take(50)
    grows.take(50)
    behind = taking(budget, new, 30)
    before = taking(budget, grows, 40)
    first.close()
    before.join(60)
    assert (grows.held, new.held) == (90, 0)
    grows.close()
    behind.join(60)
    assert new.held == 30


def test_where_all_that_hold_something_wait_one_goes_beyond_the_bound_until_it_has_given_all_back() -> None:
    budget = MemoryBudget(100)
    shares = [budget.share() for _ in range(4)]
    for share in shares:
        share.take(25)
    waiting_ones = [taking(budget, share, 25) for share in shares[:3]]
    assert all(thread.is_alive() for thread in waiting_ones)
    # the last one that did not wait does: the first one goes on, and it alone
    last = threading.Thread(target=lambda: shares[3].take(25))
    last.start()
    waiting_ones[0].join(60)
    assert shares[0].held == 50
    waiting(budget, 3)
    shares[0].take(30)
    assert budget.stats()["held_bytes"] == 155
    shares[0].give(60)
    waiting(budget, 3)
    shares[0].close()
    for share, thread in zip(shares[1:], [*waiting_ones[1:], last], strict=True):
        thread.join(60)
        assert share.held == 50
        share.close()
    assert budget.stats()["held_bytes"] == 0
    assert budget.stats()["peak_bytes"] == 155


def test_a_share_that_waits_for_nobody_goes_on_beyond_the_bound() -> None:
    budget = MemoryBudget(100)
    slow, other = budget.share(waits=False), budget.share(waits=False)
    slow.take(100)
    other.take(40)
    assert not other.try_take(1)
    assert budget.stats()["held_bytes"] == 140
    other.cancel()
    with fails_with("engine.cancelled"):
        other.take(1)
    slow.close()
    assert budget.stats()["held_bytes"] == 0


@pytest.mark.parametrize("before", [True, False], ids=["before it waits", "while it waits"])
def test_a_share_that_is_cancelled_waits_no_longer(before: bool) -> None:
    budget = MemoryBudget(100)
    first, cancelled, behind = budget.share(), budget.share(), budget.share()
    first.take(100)
    if before:
        cancelled.cancel()
        with fails_with("engine.cancelled"):
            cancelled.take(1)
    else:
        failed: list[bool] = []

        def run() -> None:
            with fails_with("engine.cancelled"):
                cancelled.take(100)
            failed.append(True)

        thread = threading.Thread(target=run)
        thread.start()
        while not budget.stats()["waiting"]:
            thread.join(0.001)
        next_one = taking(budget, behind, 10)
        cancelled.cancel()
        thread.join(60)
        assert failed == [True]
        assert next_one.is_alive()
        first.close()
        next_one.join(60)
        assert budget.stats()["held_bytes"] == 10


def test_what_a_cancelled_share_holds_is_free_for_others_and_is_not_given_back_twice() -> None:
    budget = MemoryBudget(100)
    hanging, other = budget.share(), budget.share()
    hanging.take(70)
    waits = taking(budget, other, 60)
    hanging.cancel()
    hanging.cancel()
    waits.join(60)
    assert budget.stats()["held_bytes"] == 60
    # its thread goes on after all, to the next point where it notices
    assert not hanging.try_take(1)
    with fails_with("engine.cancelled"):
        hanging.take(30)
    hanging.give(50)
    hanging.close()
    assert budget.stats()["held_bytes"] == 60
    other.close()
    assert budget.stats()["held_bytes"] == 0


def test_shares_that_are_parked_keep_nobody_from_going_beyond_the_bound() -> None:
    budget = MemoryBudget(100)
    parked, first, second = (budget.share() for _ in range(3))
    parked.take(40)
    assert parked.park(50)
    first.take(25)
    second.take(25)
    threads = [taking(budget, share, 10) for share in (first, second)]
    threads[0].join(60)
    assert first.held == 35
    assert not parked.park(51)
    first.close()
    threads[1].join(60)
    assert second.held == 35
    second.close()
    # beside them alone one gets more than there is, and it alone
    first.take(60)
    others = [taking(budget, share, 1) for share in (second, budget.share())]
    assert (budget.stats()["held_bytes"], budget.stats()["waiting"]) == (110, 2)
    parked.close()
    for other in others:
        other.join(60)
    assert budget.stats()["held_bytes"] == 62


def test_beside_parked_shares_nothing_is_read_ahead_or_parked_beyond_the_bound() -> None:
    budget = MemoryBudget(100)
    parked, other = budget.share(), budget.share()
    assert parked.park(90)
    assert not other.try_take(11)
    assert not other.park(11)
    other.take(11)
    # what it holds suffices, but what is beyond the bound is not to stay
    assert not other.park(11)
    other.give(1)
    assert other.park(10)


@pytest.mark.parametrize("parks", [False, True], ids=["all end", "storages hang"])
@pytest.mark.parametrize("seed", range(5))
def test_requests_of_any_size_in_any_order_stay_within_the_bound_and_all_end(seed: int, parks: bool) -> None:
    """Each takes its first piece, more with and without waiting, and gives back in any order; some are cancelled, and
    some are parked and never end."""
    budget = MemoryBudget(1000)
    parked: list[Share] = []
    excess = threading.Semaphore(0)

    def request(number: int) -> str:
        own = random.Random(seed * 1000 + number)
        share = budget.share()
        timer = threading.Timer(own.random() / 100, share.cancel) if own.random() < 0.1 else None
        if timer:
            timer.start()
        try:
            for _ in range(own.randrange(1, 10)):
                try:
                    share.take(own.randrange(1, 400) if own.random() < 0.98 else 1500)
                except Exception:
                    return "cancelled"
                for _ in range(own.randrange(20)):
                    share.try_take(own.randrange(1, 200))
                    if own.random() < 0.2:
                        try:
                            share.take(own.randrange(1, 200))
                        except Exception:
                            return "cancelled"
                    if own.random() < 0.2:
                        share.give(own.randrange(share.held + 1))
                    if budget.stats()["held_bytes"] > 1000 + 5000:
                        excess.release()
                if parks and own.random() < 0.2 and share.park(own.randrange(1, 200)):
                    parked.append(share)
                    assert sum(one.held for one in parked) <= 1000
                    return "parked"
                share.close()
            return "done"
        finally:
            if share not in parked:
                share.close()

    with ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(request, range(200), timeout=120))
    assert ends.count("done") > 100
    assert bool(parked) == parks
    assert budget.stats()["held_bytes"] == sum(share.held for share in parked)
    for share in parked:
        share.cancel()
    found = budget.stats()
    assert (found["held_bytes"], found["waiting"]) == (0, 0)
    assert found["peak_bytes"] <= 1000 + 5000
    assert not excess.acquire(blocking=False)


def test_the_default_follows_the_container(tmp_path: Path) -> None:
    for limit, expected in ((512 * MIB, 64), (2048 * MIB, 128), (1 << 40, None)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        found = default_bytes(tmp_path)
        assert 64 * MIB <= found <= 256 * MIB
        assert expected is None or found == expected * MIB
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{1024 * MIB}\n")
    assert default_bytes(tmp_path) == 64 * MIB


@pytest.mark.parametrize("large", [True, False], ids=["read in pieces", "read whole"])
def test_restores_at_once_share_the_budget_give_everything_back_and_are_right(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "BATCH_ROWS", 50)
    if large:
        monkeypatch.setattr(files, "_IN_MEMORY_BYTES", 0)
    query = Query()
    store, version = query.open(), EMPTY
    for number in range(4):
        changes: dict[bytes, Change] = {b"k%04d" % key: (PUT, b"%d" % number) for key in range(number, 1000, 3)}
        version = query.commit(store, version, changes)
    budget = MemoryBudget(1)

    def restored(_: int) -> bool:
        load = query.open(read_only=True).load(version, have=None, read_only=True, share=budget.share())
        return rows_of(load) == query.states[version.attempt]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(restored, range(16), timeout=300))
    found = budget.stats()
    assert found["held_bytes"] == 0
    assert found["waits"] > 0


def test_a_restore_that_its_reader_leaves_gives_its_memory_back() -> None:
    query = Query()
    version = query.run_batches(query.open(), EMPTY, 5)[-1]
    budget = MemoryBudget(100 * MIB)
    batches = query.open().load(version, have=None, read_only=True, share=budget.share()).batches
    next(batches)
    assert budget.stats()["held_bytes"] > 0
    batches.close()
    assert budget.stats()["held_bytes"] == 0


def test_a_large_commit_waits_for_memory_and_a_small_one_does_not() -> None:
    query = Query()
    store = query.open()
    budget = MemoryBudget(1)
    holder = budget.share()
    holder.take(1)
    small = query.commit(store, EMPTY, {b"k": (PUT, b"v")}, share=budget.share())
    assert budget.stats()["waits"] == 0
    random_bytes = random.Random(3).randbytes
    large: dict[bytes, Change] = {b"%d" % key: (PUT, random_bytes(1000)) for key in range(2000)}
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(query.commit, store, small, large, share=budget.share())
        while not budget.stats()["waiting"]:
            assert not done.done()
        holder.close()
        version = done.result(120)
    query.assert_restores(query.open(), version)
    assert budget.stats()["held_bytes"] == 0


VALUE = (b'{"state":"open","attempts":0,"tags":[],"history":[' + b'{"at":0,"what":"seen"},' * 20)[:490]


def compressible(version: int) -> dict[bytes, Change]:
    """Rows that take ten times as much in memory as in a file."""
    return {b"%d-%d" % (version, key): (PUT, VALUE) for key in range(4000)}


def test_restores_of_rows_that_compress_well_stay_within_the_budget() -> None:
    query = Query()
    store, version = query.open(), EMPTY
    for number in range(4):
        version = query.commit(store, version, compressible(number))
    batch_bytes = next(iter(query.open().load(version, have=None, read_only=True).batches)).nbytes
    assert batch_bytes > 4000 * len(VALUE)
    budget = MemoryBudget(5 * batch_bytes)
    lock = threading.Lock()
    together = most = begun = 0

    def restored(_: int) -> int:
        nonlocal together, most, begun
        rows = kept = 0
        for batch in query.open().load(version, have=None, read_only=True, share=budget.share()).batches:
            with lock:
                # as a loop does, the batch before is kept until this one has come
                together += batch.nbytes
                most = max(most, together)
                together -= kept
                begun += not rows
            kept = batch.nbytes
            rows += batch.num_rows
            # nobody goes on before each of the others has a batch or waits for one
            while begun + budget.stats()["waiting"] < 12:
                threading.Event().wait(0.001)
        with lock:
            together -= kept
        return rows

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(restored, range(12), timeout=300)) == [16000] * 12
    assert most <= 8 * batch_bytes
    assert budget.stats()["peak_bytes"] <= 8 * batch_bytes
    assert budget.stats()["held_bytes"] == 0


def test_a_commit_of_rows_that_compress_well_takes_what_they_are_in_memory() -> None:
    query = Query()
    budget = MemoryBudget(100 * MIB)
    version = query.commit(query.open(), EMPTY, compressible(1), share=budget.share())
    assert budget.stats()["peak_bytes"] >= 4000 * len(VALUE)
    query.assert_restores(query.open(), version)
    assert budget.stats()["held_bytes"] == 0


def test_commits_to_a_remote_storage_take_what_they_have_gathered_and_go_on_beside_each_other() -> None:
    inner = Storage(f"memory://store-tests/{next(SEEDS)}")
    backend = FaultyBackend(inner._backend)
    backend.remote = True
    query = Query(Storage(inner.url, backend=backend))
    random_bytes = random.Random(4).randbytes
    large: dict[bytes, Change] = {b"%d" % key: (PUT, random_bytes(1000)) for key in range(2000)}
    budget = MemoryBudget(96 * MIB)
    version = query.commit(query.open(), EMPTY, large, share=budget.share())
    assert 4 * MIB <= budget.stats()["peak_bytes"] <= 16 * MIB
    query.assert_restores(query.open(), version)


def test_a_large_commit_to_local_files_takes_of_what_it_wrote_only_what_it_gathered(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path / "state"), fsync=True))
    store = query.open()
    begun = query.begin(store, EMPTY)
    random_bytes = random.Random(5).randbytes
    batches = (entries_of([(0, PUT, b"%d" % number, random_bytes(MIB // 2))]) for number in range(40))
    request = CommitRequest(begun.attempt, 1, EMPTY, {0: Count(40, 1)}, (FAMILY,), 1, 1)
    budget = MemoryBudget(96 * MIB)
    accepted = store.accept(request, {"increment": batches}, budget.share(), most_held=4 * MIB)
    assert accepted.held_bytes == 0
    assert 4 * MIB <= budget.stats()["peak_bytes"] <= 8 * MIB
    assert accepted.publish().bytes > 20 * MIB


@pytest.mark.parametrize(("remote", "copies"), [(False, 1), (True, 2)])
def test_what_waits_for_a_remote_storage_counts_twice_and_for_a_local_one_once(
    remote: bool, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query()
    monkeypatch.setattr(FaultyBackend, "remote", remote)
    query.storage = Storage(query.storage.url, backend=query.faults)
    begun = query.begin(store := query.open(), EMPTY)
    request = CommitRequest(begun.attempt, 1, EMPTY, {0: Count(1, 1)}, (FAMILY,), 1, 1)
    batch = entries_of([(0, PUT, b"k", random.Random(5).randbytes(MIB))])
    accepted = store.accept(request, {"increment": [batch]}, most_held=4 * MIB)
    assert accepted.held_bytes == copies * accepted.publish().bytes


def test_a_feed_whose_reader_pauses_stops_no_other_feed() -> None:
    query = Query()
    store = query.open()
    version = query.commit(store, EMPTY, compressible(1))
    budget = MemoryBudget(1)
    paused = store.feed(1, version, None, budget.share(waits=False)).batches
    assert next(paused).num_rows
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: [*store.feed(1, version, None, budget.share(waits=False)).batches])
        assert sum(batch.num_rows for batch in other.result(60)) == 4000
    paused.close()
    assert budget.stats()["held_bytes"] == 0
