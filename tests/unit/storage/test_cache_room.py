"""Room for local copies: who makes it and when, what holds the bound, and what a kill or a stopped process leaves."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lamina.storage import Storage, cache_total
from lamina.storage.cache_eviction import Evictor
from lamina.storage.cache_total import UNKNOWN, SharedTotal
from tests.unit.storage.counted import Counted, pattern, sizes

BOUND = 200_000


def taken(directory: Path) -> int:
    """What all files of the cache take, those being written included."""
    return sum(sizes(path for path in list(directory.iterdir()) if path.name.endswith(".tmp") or len(path.name) == 64))


def counted_total(directory: Path) -> int:
    """What the processes believe that the files take."""
    return SharedTotal(str(directory)).read().total


def full(directory: Path, copies: int = 90) -> Counted:
    """A cache that is nearly full of copies of 2,056 bytes."""
    counted = Counted(directory, max_bytes=BOUND)
    for number in range(copies):
        counted.storage.publish(f"old{number}", bytes(2000))
    counted.settled()
    return counted


def evictor_of(counted: Counted) -> Evictor:
    assert counted.cache.max_bytes
    assert counted.cache._evictor is not None
    return counted.cache._evictor


def test_whoever_publishes_neither_scans_the_directory_nor_evicts(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = full(directory)
    scanned: list[int] = []
    unlinked: list[int] = []
    scandir, unlink = os.scandir, os.unlink
    monkeypatch.setattr(os, "scandir", lambda path: (scanned.append(threading.get_ident()), scandir(path))[1])
    monkeypatch.setattr(os, "unlink", lambda path: (unlinked.append(threading.get_ident()), unlink(path))[1])
    for number in range(60):
        counted.storage.publish(f"new{number}", bytes(2000))
    counted.settled()
    assert counted.cache.stats()["evicted"] > 0
    assert scanned
    assert threading.get_ident() not in scanned
    # a copy for which there was no room is removed by its own writer
    assert unlinked.count(threading.get_ident()) == counted.cache.stats()["no_room"]


def test_eviction_stops_at_the_low_water_mark(directory: Path) -> None:
    counted = full(directory)
    counted.storage.publish("big", bytes(12_000))
    counted.settled()
    evictor = evictor_of(counted)
    assert evictor.low_water - 8 * 2056 < taken(directory) <= evictor.low_water
    assert taken(directory) == counted_total(directory)
    assert counted.cache.stats()["no_room"] == 0


def test_a_copy_that_has_no_room_is_not_made_and_not_waited_for(directory: Path) -> None:
    counted = full(directory)
    with (directory / "evictor").open("w") as other:
        # another process evicts, and does not get on
        fcntl.flock(other, fcntl.LOCK_EX)
        for number in range(30):
            counted.storage.publish(f"new{number}", bytes(2000))
            assert taken(directory) <= BOUND
        assert counted.cache.stats()["no_room"] >= 20
        assert counted.cache.stats()["evicted"] == 0
        assert bytes(counted.storage.read("new29")) == bytes(2000)
    counted.storage.publish("one more", bytes(2000))
    counted.settled()
    counted.storage.publish("and one", bytes(2000))
    counted.inner.calls.clear()
    counted.storage.read("and one")
    assert counted.reads() == 0


def test_a_process_that_stops_with_the_lock_held_holds_nobody_up(directory: Path) -> None:
    counted = full(directory, 3)
    with (directory / "total").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        counted.storage.publish("f", b"x")
        counted.storage.delete_many(["old0"])
        assert bytes(counted.storage.read("f")) == b"x"
        assert counted.cache.stats()["busy"] == 2
        assert counted.cache.stats()["failed"] == 0
    assert taken(directory) < counted_total(directory)
    assert bytes(counted.storage.read("f")) == b"x"
    counted.inner.calls.clear()
    assert bytes(counted.storage.read("f")) == b"x"
    assert counted.reads() == 0


def test_what_is_being_written_is_within_the_bound(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_total, "_MUTEX_WAIT_S", 60)
    counted = Counted(directory, max_bytes=BOUND)
    entered, go_on = threading.Barrier(4), threading.Event()

    def source() -> Iterator[bytes]:
        yield bytes(80_000)
        entered.wait(60)
        assert go_on.wait(60)
        yield bytes(100)

    threads = [threading.Thread(target=counted.storage.publish, args=(f"f{n}", source())) for n in range(3)]
    for thread in threads:
        thread.start()
    entered.wait(60)
    # two of the three have room
    assert 2 * 80_000 <= taken(directory) <= counted_total(directory) <= BOUND
    go_on.set()
    for thread in threads:
        thread.join()
    # not which of them are there: room is being made for a copy as large as the one that had none
    figures = counted.cache.stats()
    assert (figures["kept"], figures["no_room"]) == (2, 1)


@pytest.mark.parametrize("size", [60_000, 150_000])
def test_room_is_made_for_the_next_copy_as_large_as_one_that_had_none(directory: Path, size: int) -> None:
    counted = full(directory)
    counted.storage.publish("large0", bytes(size))
    counted.settled()
    counted.storage.publish("large1", bytes(size))
    counted.settled()
    counted.inner.calls.clear()
    counted.storage.read("large1")
    assert counted.reads() == 0
    assert taken(directory) <= BOUND


def test_a_part_that_is_read_of_an_object_without_room_makes_room_for_it(directory: Path) -> None:
    counted = full(directory)
    Storage(counted.url).publish("f", bytes(60_000))
    for _ in range(2):
        assert b"".join(counted.storage.read_pieces("f", 30_000, 10, 60_000)) == bytes(10)
        counted.settled()
    counted.inner.calls.clear()
    counted.storage.read("f")
    assert counted.reads() == 0


def test_a_directory_that_is_deleted_is_made_again(directory: Path) -> None:
    counted = full(directory, 10)
    shutil.rmtree(directory)
    assert bytes(counted.storage.read("old3")) == bytes(2000)
    assert len(counted.copies()) == 1
    assert directory.stat().st_mode & 0o777 == 0o700
    assert counted_total(directory) == taken(directory)


def test_a_total_that_somebody_deleted_is_found_out_again(directory: Path) -> None:
    counted = full(directory, 10)
    (directory / "total").unlink()
    counted.storage.publish("f", bytes(2000))  # nothing has room in a directory of an unknown total
    evictor_of(counted).wake()
    counted.settled()
    assert counted_total(directory) == taken(directory) == 10 * 2056
    counted.storage.publish("g", bytes(2000))
    assert len(counted.copies()) == 11


def test_copies_that_somebody_deleted_make_room_at_the_next_scan(directory: Path) -> None:
    counted = full(directory)
    for path in counted.copies()[:80]:
        path.unlink()
    for number in range(8):
        counted.storage.publish(f"new{number}", bytes(2000))
        counted.settled()
    assert len(counted.copies()) >= 17
    assert counted_total(directory) == taken(directory)


def test_copies_from_the_future_do_not_stay_for_ever(directory: Path) -> None:
    """The clock was set back: of those copies, too, those go first that are used longest ago from now on."""
    counted = full(directory)
    ahead = 4_000_000_000 * 1_000_000_000
    for path in counted.copies():
        os.utime(path, ns=(ahead, ahead))
    for number in range(300):
        counted.storage.publish(f"new{number}", bytes(2000))
        counted.settled()
    counted.inner.calls.clear()
    for number in range(290, 300):
        counted.storage.read(f"new{number}")
    assert counted.reads() == 0


def with_each_pause(evictor: Evictor, action: Callable[[], None]) -> None:
    """Scans while `action` happens at each pause of the scan."""

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            action()
            return False

    evictor._pause = Pause()
    evictor.wake(scan=True)
    assert evictor.wait(120)
    evictor._pause = threading.Event()


def test_a_scan_never_takes_the_total_for_less_than_there_is_whatever_happens_meanwhile(directory: Path) -> None:
    counted = Counted(directory, max_bytes=4_000_000)
    for number in range(300):
        counted.storage.publish(f"old{number}", bytes(2000))
    numbers = iter(range(300))

    def change() -> None:
        for _ in range(20):
            number = next(numbers)
            counted.storage.publish(f"new{number}", bytes(2000 + number))
            counted.cache.drop([f"{counted.url}/old{number}"])
        assert taken(directory) <= counted_total(directory)

    with_each_pause(evictor_of(counted), change)
    assert taken(directory) <= counted_total(directory)
    with_each_pause(evictor_of(counted), lambda: None)
    assert taken(directory) == counted_total(directory)


def test_bytes_that_were_freed_before_a_scan_are_not_given_back_after_it(directory: Path) -> None:
    counted = full(directory, 20)
    evictor = evictor_of(counted)
    total = SharedTotal(str(directory))
    epoch = total.read().epoch
    assert evictor.free(evictor.set_aside(str(counted.copies()[0])) or "") == 2056
    with_each_pause(evictor, lambda: None)
    total.give_back(2056, epoch)
    assert counted_total(directory) == taken(directory) == 19 * 2056


def test_of_those_that_remove_one_copy_one_gives_its_bytes_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # none of them gives up for another's sake
    monkeypatch.setattr(cache_total, "_MUTEX_WAIT_S", 60)
    counted = full(directory, 40)
    evictor = evictor_of(counted)
    paths = [str(path) for path in counted.copies()]
    removed: list[int] = []
    barrier = threading.Barrier(4)

    def remove() -> None:
        barrier.wait()
        removed.extend(evictor.remove([path]) for path in paths)

    threads = [threading.Thread(target=remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(removed) == 40
    assert counted_total(directory) == taken(directory) == 0


CHURN = """
import sys
from pathlib import Path
from tests.unit.storage.counted import Counted
counted = Counted(Path(sys.argv[1]), max_bytes=200_000)
number = 0
while True:
    number += 1
    counted.storage.publish(f"f{number}", iter([bytes(1000)] * (number % 7 + 1)))
    if number % 5 == 0:
        counted.storage.delete_many([f"f{number - 1}"])
    if counted.cache.stats()["evicted"] or counted.cache.stats()["no_room"]:
        print("full", flush=True)
"""

SLACK = 3 * (7000 + 56 + BOUND // 128)
"""Each of three writers has made a file larger, by what it needs and a step, and not counted that yet."""


def test_processes_that_are_killed_while_they_evict_leave_a_total_that_is_not_too_small(directory: Path) -> None:
    """Three at a time, in rounds; the bound holds at every moment, for all files."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for lines in range(1, 13, 2):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", CHURN, str(directory)], env=environment, stdout=subprocess.PIPE, text=True
            )
            for _ in range(3)
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                for _ in range(lines):
                    assert process.stdout.readline() == "full\n"
                    assert sum(sizes(path for path in list(directory.iterdir()) if len(path.name) == 64)) <= BOUND
                    assert taken(directory) <= BOUND + SLACK
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
            for process in processes:
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
        assert taken(directory) <= counted_total(directory) + SLACK
        assert counted_total(directory) <= BOUND
    counted = Counted(directory, max_bytes=BOUND)
    evictor_of(counted).wake(scan=True)
    counted.settled()
    assert taken(directory) == counted_total(directory)
    assert [path.name for path in directory.iterdir() if path.name.endswith(".tmp")] == []
    counted.storage.publish("f", pattern(1000))
    assert len(counted.copies()) > 1
    assert counted_total(directory) < UNKNOWN
