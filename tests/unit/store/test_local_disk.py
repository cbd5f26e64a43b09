"""How often what working files take is looked at, and that nobody waits for a look who does not need it."""

from __future__ import annotations

import threading
import time

import pytest

from lamina.store.tables import local_disk
from lamina.store.tables.local_disk import LocalDisk
from lamina.testing import ManualClock


class Looks:
    """Looks that take as long as is said, and wait until they may end."""

    def __init__(self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock
        self.count = self.takes_ms = 0
        self.may_end = threading.Event()
        self.may_end.set()
        monkeypatch.setattr(local_disk, "used_bytes", self._look)

    def _look(self, _: str) -> int:
        self.count += 1
        assert self.may_end.wait(10)
        self.clock.advance(self.takes_ms)
        return self.count


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1)


@pytest.fixture
def looks(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(clock, monkeypatch)


def wait_for(disk: LocalDisk, size: int) -> None:
    ends = time.monotonic() + 10
    while disk.bytes != size or not disk._lock.acquire(blocking=False):
        assert time.monotonic() < ends
        time.sleep(0)
    disk._lock.release()


def test_who_says_that_files_came_waits_for_no_look_and_one_goes_on_at_a_time(looks: Looks, clock: ManualClock) -> None:
    disk = LocalDisk(clock)
    looks.may_end.clear()
    for _ in range(100):
        disk.look()
    assert disk.bytes == 0
    looks.may_end.set()
    wait_for(disk, 1)
    assert looks.count == 1


@pytest.mark.parametrize(("takes_ms", "pause_ms"), [(1, 1_000), (400, 4_000)])
def test_the_next_look_waits_for_ten_times_as_long_as_the_last_one_took(
    looks: Looks, clock: ManualClock, takes_ms: int, pause_ms: int
) -> None:
    disk, looks.takes_ms = LocalDisk(clock), takes_ms
    disk.look()
    wait_for(disk, 1)
    clock.advance(pause_ms - 1)
    disk.look()
    disk.take(1 << 20, 1)
    assert looks.count == 1
    clock.advance(1)
    disk.look()
    wait_for(disk, 2)


def test_before_room_is_refused_it_is_looked_once_more(looks: Looks, clock: ManualClock) -> None:
    disk = LocalDisk(clock)
    disk.look()
    wait_for(disk, 1)
    disk.take(100, 98)
    disk.take(100, 50)
    assert looks.count == 2
