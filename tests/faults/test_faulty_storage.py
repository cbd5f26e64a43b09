"""The storage that fails on purpose does what it says."""

from __future__ import annotations

import threading

import pytest

from lamina.storage import Storage, is_temporary
from lamina.testing import Crashed, Effect, Fault, FaultyBackend, ManualClock, MemoryBackend, Moment, RandomFaults
from lamina.testing.expect import fails_with
from lamina.testing.storage_conformance import StorageConformance

START_MS = 1_790_000_000_000


class TestObjectsInADictionary(StorageConformance):
    def new_storage(self) -> Storage:
        return Storage("dictionary:/", backend=MemoryBackend(ManualClock(START_MS)))


class TestShuffledListings(StorageConformance):
    def new_storage(self) -> Storage:
        return Storage("dictionary:/", backend=FaultyBackend(MemoryBackend(ManualClock(START_MS)), shuffle=7))


@pytest.fixture
def objects() -> MemoryBackend:
    return MemoryBackend(ManualClock(START_MS))


def over(objects: MemoryBackend, *faults: Fault) -> tuple[Storage, FaultyBackend]:
    backend = FaultyBackend(objects)
    for fault in faults:
        backend.inject(fault)
    return Storage("faulty:/", backend=backend), backend


def test_a_failure_before_a_publication_leaves_nothing(objects: MemoryBackend) -> None:
    storage, _ = over(objects, Fault("publish"))
    with fails_with("storage.failed"):
        storage.publish("d/f", b"1234")
    assert objects.objects == {}
    assert storage.publish("d/f", b"1234") == 4


def test_a_lost_answer_leaves_the_object(objects: MemoryBackend) -> None:
    storage, _ = over(objects, Fault("publish", moment=Moment.AFTER))
    with fails_with("storage.failed"):
        storage.publish("d/f", b"1234")
    assert objects.objects["d/f"][0] == b"1234"


def test_a_publication_that_fails_half_way_leaves_its_temporary_name(objects: MemoryBackend) -> None:
    storage, _ = over(objects, Fault("publish", moment=Moment.HALF_WAY))
    with fails_with("storage.failed"):
        storage.publish("d/f", b"1234")
    (path,) = objects.objects
    assert is_temporary(path.removeprefix("d/"))
    assert objects.objects[path][0] == b"12"


def test_a_deletion_that_fails_half_way_has_deleted_the_first_half(objects: MemoryBackend) -> None:
    storage, _ = over(objects, Fault("delete_many", moment=Moment.HALF_WAY))
    for name in "abc":
        storage.publish(f"d/{name}", b"")
    with fails_with("storage.failed"):
        storage.delete_many(["d/a", "d/b", "d/c"])
    assert set(objects.objects) == {"d/c"}


def test_a_torn_object_is_written_and_read_without_an_error(objects: MemoryBackend) -> None:
    storage, _ = over(objects, Fault("publish", effect=Effect.TRUNCATE))
    assert storage.publish("d/f", b"1234") == 4
    assert bytes(storage.read("d/f")) == b"12"
    storage, _ = over(objects, Fault("read", effect=Effect.TRUNCATE), Fault("read_tail", effect=Effect.TRUNCATE))
    assert bytes(storage.read("d/f")) == b"1"
    tail, size = storage.read_tail("d/f", 2)
    assert (bytes(tail), size) == (b"1", 2)


@pytest.mark.parametrize(("moment", "there"), [(Moment.BEFORE, False), (Moment.AFTER, True)])
def test_a_process_that_crashed_does_nothing_any_more_and_its_objects_stay(
    objects: MemoryBackend, moment: Moment, there: bool
) -> None:
    storage, backend = over(objects, Fault("publish", effect=Effect.CRASH, moment=moment))
    with pytest.raises(Crashed):
        storage.publish("d/f", b"1")
    assert ("d/f" in objects.objects) == there
    backend.heal()
    with pytest.raises(Crashed):
        storage.list("d")
    other, _ = over(objects)
    assert other.exists("d/f") == there


def test_a_delay_waits_as_long_as_it_says(objects: MemoryBackend) -> None:
    clock = ManualClock(START_MS)
    backend = FaultyBackend(objects, wait=clock.advance)
    backend.inject(Fault("list", effect=Effect.DELAY, delay_ms=70_000))
    Storage("faulty:/", backend=backend).list("d")
    assert clock.now_ms() == START_MS + 70_000


def test_a_delay_lets_other_calls_pass(objects: MemoryBackend) -> None:
    slow, passed = threading.Event(), threading.Event()

    def wait(milliseconds: int) -> None:
        slow.set()
        assert passed.wait(60)

    backend = FaultyBackend(objects, wait=wait)
    storage = Storage("faulty:/", backend=backend)
    backend.inject(Fault("publish", "slow", effect=Effect.DELAY))
    thread = threading.Thread(target=lambda: storage.publish("slow", b"1"))
    thread.start()
    assert slow.wait(60)
    storage.publish("quick", b"2")
    assert set(objects.objects) == {"quick"}
    passed.set()
    thread.join()
    assert set(objects.objects) == {"quick", "slow"}


def test_a_fault_hits_its_operation_and_path_after_those_that_it_skips(objects: MemoryBackend) -> None:
    storage, _ = over(objects, Fault("publish", "x", skip=1, times=2))
    hit = []
    for path in ("d/y", "d/x1", "d/x2", "d/x3", "d/x4"):
        try:
            storage.publish(path, b"")
        except Exception:
            hit.append(path)
    assert hit == ["d/x2", "d/x3"]


def test_listings_come_in_another_order_each_time_and_the_same_for_a_seed(objects: MemoryBackend) -> None:
    for number in range(9):
        objects.publish(f"d/{number}", [b""])

    def orders(seed: int) -> list[list[str]]:
        storage = Storage("faulty:/", backend=FaultyBackend(objects, shuffle=seed))
        return [[entry.name for entry in storage.list("d")] for _ in range(5)]

    assert all(sorted(order) == [str(number) for number in range(9)] for order in orders(1))
    assert len({tuple(order) for order in orders(1)}) > 1
    assert orders(1) == orders(1)
    assert orders(1) != orders(2)


def test_random_faults_are_as_frequent_as_said_and_the_same_for_a_seed(objects: MemoryBackend) -> None:
    before, lost = Fault("publish"), Fault("publish", moment=Moment.AFTER)

    def failed(seed: int) -> list[int]:
        objects.objects.clear()
        backend = FaultyBackend(objects, random=RandomFaults(seed, [(0.2, before), (0.1, lost)]))
        storage = Storage("faulty:/", backend=backend)
        found = []
        for number in range(1000):
            storage.list("d")
            try:
                storage.publish(f"d/{number}", b"")
            except Exception:
                found.append(number)
        return found

    first = failed(1)
    assert 240 < len(first) < 360
    applied = [number for number in first if f"d/{number}" in objects.objects]
    assert 60 < len(applied) < 140
    assert failed(1) == first
    assert failed(2) != first
