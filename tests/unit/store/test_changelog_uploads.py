"""The changelog of a checkpoint: its groups, and what becomes of their uploads where the storage hangs or lies."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lamina.components import RandomIds, SystemClock
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.format.manifest import StoreIdentity
from lamina.settings import PREFIX, Settings
from lamina.storage import NotDurable, Storage
from lamina.store.changelog.changelog import Changelog
from lamina.store.changelog.groups import Told
from lamina.store.files.log_places import LogPlace
from lamina.testing import ManualClock

NUMBERS = itertools.count(1)


class Hanging(Storage):
    """Neither publishes nor answers until it is released."""

    def __init__(self) -> None:
        super().__init__(f"memory://hanging/{next(NUMBERS)}")
        self.released = threading.Event()

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        self.released.wait()
        return super().publish(path, chunks)

    def size(self, path: str) -> int:
        self.released.wait()
        return super().size(path)


class Unsafe(Storage):
    """What it publishes is there, and may not last; so many times."""

    def __init__(self, times: int = 1 << 30) -> None:
        super().__init__(f"memory://unsafe/{next(NUMBERS)}")
        self.times = times

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        size = super().publish(path, chunks)
        self.times -= 1
        if self.times >= 0:
            raise LaminaError.from_kind("storage.failed", "the directory could not be flushed") from NotDurable()
        return size


class HangingFlush(Storage):
    """Local files, which have their names, and whose directory is not flushed until it is released."""

    def __init__(self, directory: Path, *, fsync: bool) -> None:
        super().__init__(str(directory), fsync=fsync)
        self.released = threading.Event()

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        size = super().publish(path, chunks)
        self.released.wait()
        return size


def of(storage: Storage, *, attempts: int = 1, level: str = "task", timeout_ms: int = 100) -> Changelog:
    settings = {"upload.attempts": attempts, "upload.timeoutMs": timeout_ms, "persistDelayMs": 1, "batchDelayMs": 1}
    named = {f"{PREFIX}changelog.{name}": str(value) for name, value in settings.items()}
    parsed = Settings.parse({**named, f"{PREFIX}durability.level": level})
    return Changelog(LogPlace(storage), "uuid", parsed, SystemClock(), RandomIds())


def told(changelog: Changelog, number: int) -> tuple[threading.Event, list[LaminaError | None]]:
    """A commit in a group of its own; what it hears, and when."""
    heard = threading.Event()
    answers: list[LaminaError | None] = []

    def hear(error: LaminaError | None) -> None:
        answers.append(error)
        heard.set()

    filled(changelog, number, hear)
    changelog.groups.seal()
    return heard, answers


def filled(changelog: Changelog, number: int, hear: Told) -> None:
    """A commit for which a task waits."""
    place = changelog.groups.reserve()
    place.fill([bytes(16)], StoreIdentity("uuid", 0, number, "default"), str(place.id), 0, 1, hear)


def test_each_commit_hears_of_a_storage_that_hangs_also_when_it_is_asked_what_is_there() -> None:
    storage = Hanging()
    changelog = of(storage)
    try:
        for heard, answers in [told(changelog, number) for number in range(8)]:
            assert heard.wait(60)
            (error,) = answers
            assert error is not None
            assert error.kind == "storage.failed"
    finally:
        storage.released.set()
    changelog.close()


@pytest.mark.parametrize(("delay", "known", "left"), [("auto", 20, None), ("auto", 19, 0.01), ("10", 20, 0.01)])
def test_a_task_waits_no_longer_for_others_than_uploads_take_unless_it_is_set(
    delay: str, known: int, left: float | None
) -> None:
    settings = Settings.parse({f"{PREFIX}changelog.persistDelayMs": delay})
    # by this clock uploads take no time
    clock = ManualClock(0)
    place = LogPlace(Storage(f"memory://quick/{next(NUMBERS)}"))
    changelog = Changelog(place, "uuid", settings, clock, RandomIds())
    for number in range(known):
        heard, answers = told(changelog, number)
        assert heard.wait(60)
        assert answers == [None]
    filled(changelog, known, lambda _: None)
    assert changelog.groups.tick() == left
    changelog.close()


def test_an_attempt_that_hung_until_its_time_was_over_publishes_nothing_any_more() -> None:
    storage = Hanging()
    changelog = of(storage)
    heard, answers = told(changelog, 0)
    assert heard.wait(60)
    assert answers[0] is not None
    # its time is over soon after it counted as failed
    threading.Event().wait(0.5)
    storage.released.set()
    changelog.close()
    threading.Event().wait(0.2)
    assert not list(storage.list(paths.LOG))


@pytest.mark.parametrize("fsync", [True, False])
def test_an_object_whose_flush_hangs_is_not_taken_for_durable_by_its_name(tmp_path: Path, fsync: bool) -> None:
    storage = HangingFlush(tmp_path, fsync=fsync)
    changelog = of(storage, timeout_ms=2000)
    try:
        heard, answers = told(changelog, 0)
        assert heard.wait(60)
        assert len(list(storage.list(paths.LOG))) == 1
        # where nothing is flushed its name is all that it will ever have
        assert (answers[0] is not None) == fsync
    finally:
        storage.released.set()
    changelog.close()


def test_an_object_that_may_not_last_is_there_for_nobody() -> None:
    storage = Unsafe()
    changelog = of(storage, timeout_ms=5000)
    heard, answers = told(changelog, 0)
    assert heard.wait(60)
    assert answers[0] is not None
    assert not list(storage.list(paths.LOG))
    changelog.close()


def test_an_object_that_the_barrier_may_have_seen_is_written_again_and_never_deleted() -> None:
    """Spark's log may name it already: to delete it would lose the batch for certain."""
    storage = Unsafe(times=1)
    changelog = of(storage, attempts=2, level="executor", timeout_ms=5000)
    heard, answers = told(changelog, 0)
    assert heard.wait(60)
    assert answers == [None]
    assert storage.times == -1
    changelog.close()
    never = Unsafe()
    changelog = of(never, attempts=2, level="executor", timeout_ms=5000)
    heard, answers = told(changelog, 0)
    assert heard.wait(60)
    assert answers[0] is not None
    assert len(list(never.list(paths.LOG))) == 1
    changelog.close()
