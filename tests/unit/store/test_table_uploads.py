"""Uploads of new tables: as many at once as there is memory for, and none that a collector could take for old."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage
from lamina.store.files.store_files import StoreFiles
from lamina.store.materialization.table_uploads import TableUploads
from lamina.store.memory.budget import MemoryBudget
from lamina.testing import FaultyBackend, ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store.aging import MIN_AGE_MS, START_MS

STORE = StoreIdentity("uploads", 0, 0, "default")
SIZE = 3000
COUNT = 12


class Place(FaultyBackend):
    """A storage that stamps, and calls whoever wants to see each publication."""

    def __init__(self, directory: Path, remote: bool) -> None:
        super().__init__(Storage(str(directory))._backend)
        self.remote = remote
        self.published: Callable[[str], None] = lambda path: None
        self.stamped: list[str] = []

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        self.published(path)
        return super().publish(path, chunks)

    def stamp(self, path: str) -> bool:
        self.stamped.append(path.rpartition("/")[2])
        return super().stamp(path)


def made(directory: Path, budget: MemoryBudget, remote: bool = True) -> tuple[Place, TableUploads, ManualClock]:
    place, clock = Place(directory / "state", remote), ManualClock(START_MS)
    files = StoreFiles(Storage(str(directory / "state"), backend=place), STORE)
    share = budget.share()
    share.take(1)
    return place, TableUploads(files, share, clock, MIN_AGE_MS, lambda: None), clock


def tables(directory: Path, count: int = COUNT) -> dict[str, str]:
    found = {}
    for number in range(count):
        local = directory / f"{number}.sst"
        local.write_bytes(bytes([number]) * SIZE)
        found[f"{number:032x}.sst"] = str(local)
    return found


@pytest.mark.parametrize(("remote", "room", "expected"), [(True, 2, 2), (True, 0, 1), (True, 100, 4), (False, 0, 4)])
def test_as_many_are_sent_at_once_as_there_is_memory_for(
    tmp_path: Path, remote: bool, room: int, expected: int
) -> None:
    budget = MemoryBudget(1 + room * 2 * SIZE)
    place, uploads, _ = made(tmp_path, budget, remote)
    changed = threading.Condition()
    running = most = begun = 0

    def published(_: str) -> None:
        nonlocal running, most, begun
        with changed:
            running, begun = running + 1, begun + 1
            most = max(most, running)
            changed.notify_all()
            # the first ones wait for each other
            assert changed.wait_for(lambda: begun >= expected, timeout=60)
            running -= 1

    place.published = published
    found = uploads.publish(tables(tmp_path))
    assert most == expected
    assert budget.stats()["held_bytes"] == 1
    assert budget.stats()["peak_bytes"] == 1 + (expected * 2 * SIZE if remote else 0)
    assert found == {
        path: (SIZE, hashlib.sha256(Path(local).read_bytes()).hexdigest()[: len(found[path][1])])
        for path, local in tables(tmp_path).items()
    }


def test_those_that_are_there_are_stamped_while_the_others_are_on_their_way(tmp_path: Path) -> None:
    # one after the other, each for so long
    place, uploads, clock = made(tmp_path, MemoryBudget(1))
    each = MIN_AGE_MS // 20
    times: dict[str, int] = {}

    def published(path: str) -> None:
        times[path.rpartition("/")[2]] = clock.now_ms()
        clock.advance(each)

    def stamp(path: str) -> bool:
        times[path.rpartition("/")[2]] = clock.now_ms()
        return True

    place.published, place.stamp = published, stamp  # type: ignore[method-assign]
    uploads.publish(tables(tmp_path))
    assert len(times) == COUNT
    # none is older than what waits for a list may be
    assert max(clock.now_ms() - when for when in times.values()) <= MIN_AGE_MS // 8
    assert uploads.published_ms == min(times.values())


def test_a_storage_without_stamps_is_asked_once(tmp_path: Path) -> None:
    place, uploads, clock = made(tmp_path, MemoryBudget(1))
    place.published = lambda _: clock.advance(MIN_AGE_MS // 4)
    asked: list[str] = []

    def stamp(path: str) -> bool:
        asked.append(path)
        return False

    place.stamp = stamp  # type: ignore[method-assign]
    uploads.publish(tables(tmp_path))
    assert len(asked) == 1
    assert uploads.published_ms == START_MS


def test_a_young_one_is_not_stamped(tmp_path: Path) -> None:
    place, uploads, _ = made(tmp_path, MemoryBudget(1 << 20))
    uploads.publish(tables(tmp_path))
    assert place.stamped == []
    assert uploads.published_ms == START_MS


def test_one_that_fails_ends_them(tmp_path: Path) -> None:
    budget = MemoryBudget(1 << 20)
    place, uploads, _ = made(tmp_path, budget)
    found = tables(tmp_path)
    bad = list(found)[5]

    def published(path: str) -> None:
        if path.endswith(bad):
            raise OSError("full")

    place.published = published
    with fails_with("storage.failed") as caught:
        uploads.publish(found)
    assert bad in caught.error.message
    assert len(list((tmp_path / "state").rglob("*.sst"))) < COUNT


@pytest.mark.parametrize(("waited", "stamping", "stamped"), [(3, 0, True), (6, 0, False), (4, 5, False)])
def test_one_that_a_collector_may_have_in_its_hands_does_not_count_as_young_by_a_stamp(
    tmp_path: Path, waited: int, stamping: int, stamped: bool
) -> None:
    """Tenths of the minimum age: that the second one takes, and that the stamp takes."""
    place, uploads, clock = made(tmp_path, MemoryBudget(1))
    begun: list[str] = []

    def published(path: str) -> None:
        begun.append(path)
        if len(begun) == 2:
            clock.advance(waited * MIN_AGE_MS // 10)

    def stamp(path: str) -> bool:
        clock.advance(stamping * MIN_AGE_MS // 10)
        return True

    place.published, place.stamp = published, stamp  # type: ignore[method-assign]
    uploads.publish(tables(tmp_path, 2))
    assert (uploads.published_ms > START_MS) == stamped


def test_files_on_this_disk_wait_for_no_memory(tmp_path: Path) -> None:
    budget = MemoryBudget(2)
    _, uploads, _ = made(tmp_path, budget, remote=False)
    holding, growing = budget.share(), budget.share()
    holding.take(1)
    growing._held = 1
    # somebody who holds some waits for more, before all others
    budget._growing.append(growing)
    assert len(uploads.publish(tables(tmp_path))) == COUNT
