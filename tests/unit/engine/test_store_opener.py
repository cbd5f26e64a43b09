"""What opening stores leaves in memory: what is open, and nothing of what was tried."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lamina.components import RandomIds, SystemClock
from lamina.engine.store_opener import OpenArgument, StoreOpener
from lamina.engine.ticker import Ticker
from lamina.errors import LaminaError
from lamina.format.manifest import StoreIdentity
from lamina.settings import PREFIX, Settings
from lamina.storage import Storage
from lamina.store import CheckpointState, StoreId, Version
from lamina.store.changelog.groups import Sealed
from lamina.testing import ManualClock
from lamina.testing.expect import fails_with
from tests.unit.storage.recorder import Recorder
from tests.unit.store.grouped import Grouped
from tests.unit.store.writing import Query


def argument(
    url: object, partition: int = 0, *, run: str = "run", settings: Mapping[str, str] | None = None
) -> OpenArgument:
    credentials = {"fs.s3a.secret.key": "secret"}
    return OpenArgument(
        StoreId(str(url), 0, partition, "default"), settings or {}, credentials, run, False, 2, "4.3.0", 3
    )


def opener() -> StoreOpener:
    return StoreOpener(Settings.parse, SystemClock(), RandomIds())


def test_nothing_stays_of_an_opening_that_found_its_checkpoint_open(tmp_path: Path) -> None:
    stores = opener()
    for partition in range(2):
        stores.open(argument(tmp_path, partition))
    assert stores._opening == {}


def test_who_works_for_all_stores_does_not_ask_a_silent_place_again_for_each(tmp_path: Path) -> None:
    """An engine asks when somebody misses an object, and the maintenance process for each of its jobs."""
    for ticker in (None, Ticker()):
        stores = StoreOpener(Settings.parse, SystemClock(), RandomIds(), ticker=ticker)
        stores.open(argument(tmp_path))
        (shared,) = stores._shared.values()
        assert shared.logs.places._remembers_silence is (ticker is None)


def test_handles_of_a_store_share_its_footprints_for_as_long_as_it_is_open_and_an_hour(tmp_path: Path) -> None:
    clock = ManualClock(0)
    stores = StoreOpener(Settings.parse, clock, RandomIds())
    query = Query()
    version = Version(0)
    kept = stores.open(argument(tmp_path, 1))

    def commit() -> str | None:
        nonlocal version
        opened = stores.open(argument(tmp_path))
        version = query.run_batches(opened.store, version, 1)[-1]
        stores.close(opened)
        return version.attempt

    def taken() -> list[str | None]:
        opened = stores.open(argument(tmp_path))
        found = [attempt for attempt, _ in opened.store.take_footprints()]
        stores.close(opened)
        return [*found]

    committed = [commit() for _ in range(3)]
    assert taken() == committed
    last = commit()
    clock.advance(3_500_000)
    stores.close(kept)
    assert taken() == [last]
    commit()
    kept = stores.open(argument(tmp_path, 1))
    clock.advance(3_600_000)
    stores.close(kept)
    assert taken() == []
    held = stores.open(argument(tmp_path)).store
    last = commit()
    kept = stores.open(argument(tmp_path, 1))
    clock.advance(3_600_000)
    stores.close(kept)
    # a handle is open
    assert [attempt for attempt, _ in held.take_footprints()] == [last]


def test_a_name_that_many_commits_need_is_kept_once_although_each_handle_has_read_it(tmp_path: Path) -> None:
    stores = opener()
    query = Query()
    version = Version(0)
    for _ in range(40):
        opened = stores.open(argument(tmp_path))
        version = query.run_batches(opened.store, version, 1)[-1]
        stores.close(opened)
    store = stores.open(argument(tmp_path)).store
    names = [name for _, footprint in store.take_footprints() for name in footprint.names]
    assert len(names) > 10 * len(set(names))
    assert len({id(name) for name in names}) == len(set(names))


def test_nothing_stays_of_an_opening_that_failed(tmp_path: Path) -> None:
    stores = opener()
    for run in ("a", "b"):
        with fails_with("storage.scheme"):
            stores.open(argument("nosuchscheme://bucket/state", run=run))
    assert stores._opening == {}


def test_stores_that_open_at_once_share_one_checkpoint(tmp_path: Path) -> None:
    stores = opener()
    barrier = threading.Barrier(8)
    found: list[CheckpointState] = []

    def open_one(partition: int) -> None:
        barrier.wait()
        found.append(stores.open(argument(tmp_path, partition)).checkpoint)

    threads = [threading.Thread(target=open_one, args=(partition,)) for partition in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(state is found[0] for state in found)
    assert [shared.users for shared in stores._shared.values()] == [8]
    assert stores._opening == {}


def test_an_opening_that_fails_lets_one_of_those_that_wait_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = opener()
    real = CheckpointState.open
    tries = itertools.count(1)
    at_once = threading.Event()
    failing, trying = threading.Event(), threading.Event()

    def wait_for_another() -> None:
        while not at_once.is_set() and sum(opening.users for opening in stores._opening.values()) < 2:
            time.sleep(0)

    def opened(*arguments: Any, **named: Any) -> CheckpointState:
        number = next(tries)
        if number == 1:
            failing.set()
            wait_for_another()
            raise LaminaError.from_kind("storage.failed", "the storage did not answer")
        if number == 2:
            threads[0].join()
            trying.set()
            wait_for_another()
        else:
            at_once.set()
        return real(*arguments, **named)

    def open_one(partition: int) -> None:
        with contextlib.suppress(LaminaError):
            stores.open(argument(tmp_path, partition))

    monkeypatch.setattr(CheckpointState, "open", opened)
    threads = [threading.Thread(target=open_one, args=(partition,)) for partition in range(3)]
    for thread, ready in zip(threads, (failing, trying, None), strict=True):
        thread.start()
        if ready is not None:
            assert ready.wait(60)
    for thread in threads:
        thread.join()
    assert not at_once.is_set()
    assert [shared.users for shared in stores._shared.values()] == [2]
    assert stores._opening == {}


@pytest.mark.parametrize("enabled", [True, False])
def test_commits_and_segments_are_on_the_disk_before_they_count_where_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    settings = {PREFIX + "storage.fsync.enabled": str(enabled).lower()}
    store = opener().open(argument(tmp_path, settings=settings)).store
    query = Query()
    version = store.confirm(query.run_batches(store, Version(0), 8)[-1])
    flushed = ["file", "rename", str(tmp_path / "0" / "0")] if enabled else ["rename"]
    recorder = Recorder(monkeypatch)
    query.run_batches(store, version, 1)
    assert recorder.events == flushed
    recorder.events.clear()
    assert store.compact() is not None
    assert recorder.events == flushed


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_commit_whose_name_may_not_last_does_not_count_although_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A disk that breaks: the file is renamed, and its directory cannot be flushed, or the system says otherwise."""
    settings = {PREFIX + "storage.fsync.enabled": "true"}
    store = opener().open(argument(tmp_path, settings=settings)).store
    query = Query()
    version = store.confirm(query.run_batches(store, Version(0), 2)[-1])
    files = {path.name for path in (tmp_path / "0" / "0").iterdir()}
    flush, rename = os.fsync, os.replace

    def broken_fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(descriptor)

    def broken_replace(source: str, target: str) -> None:
        rename(source, target)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, at, broken_fsync if at == "fsync" else broken_replace)
        with fails_with("storage.failed"):
            query.run_batches(store, version, 1)
    assert len({path.name for path in (tmp_path / "0" / "0").iterdir()} - files) == 1
    assert query.run_batches(store, version, 1)[-1].version == version.version + 1


def test_settings_are_read_once_for_each_store_that_is_opened(tmp_path: Path) -> None:
    read: list[Mapping[str, str]] = []

    def settings_of(conf: Mapping[str, str]) -> Settings:
        read.append(conf)
        return Settings.parse(conf)

    stores = StoreOpener(settings_of, SystemClock(), RandomIds())
    for partition in range(3):
        stores.close(stores.open(argument(tmp_path, partition)))
    assert len(read) == 3


def test_handles_of_a_store_share_since_when_something_is_in_the_log(tmp_path: Path) -> None:
    """With `unloadOnCommit` each batch has another one."""
    clock = ManualClock(0)
    interval_ms = 60_000
    stores = StoreOpener(Settings.parse, clock, RandomIds(), ticker=Ticker())
    grouped = Grouped(Query(Storage(str(tmp_path))))
    (store,), versions = grouped.begun()
    (version,) = grouped.batch([store], versions, 0)
    settings = {PREFIX + "changelog.enabled": "true", PREFIX + "changelog.materializeIntervalMs": str(interval_ms)}
    due = []
    for _ in range(3):
        opened = stores.open(argument(tmp_path, settings=settings))
        begun = opened.store.begin(version, task_attempt=0, load_empty=False, force_snapshot=False, have=True)
        due.append(begun.materialization_due)
        stores.close(opened)
        clock.advance(interval_ms // 2)
    assert due == [False, False, True]


def test_what_a_run_knew_goes_when_the_next_one_begins_and_its_stores_are_closed(tmp_path: Path) -> None:
    """A query that is restarted in a living application has another run each time, and what they know is large."""
    stores = StoreOpener(Settings.parse, SystemClock(), RandomIds(), ticker=Ticker())
    settings = {PREFIX + "changelog.enabled": "true"}

    def runs() -> list[str]:
        return [key[1] for key in stores._shared]

    for number in range(3):
        opened = [
            stores.open(argument(tmp_path, partition, run=f"run {number}", settings=settings)) for partition in (0, 1)
        ]
        assert runs() == [f"run {number}"]
        for one in opened:
            stores.close(one)
        # the same one may go on: with `unloadOnCommit` it has no store open between two batches
        assert runs() == [f"run {number}"]
    old = stores.open(argument(tmp_path, 0, run="run 2", settings=settings))
    new = stores.open(argument(tmp_path, 0, run="run 3", settings=settings))
    other = stores.open(argument(tmp_path / "other", 0, run="run 0", settings=settings))
    assert runs() == ["run 2", "run 3", "run 0"]
    stores.close(other)
    stores.close(old)
    assert runs() == ["run 3", "run 0"]
    assert old.changelog is not None
    with pytest.raises(RuntimeError):
        old.changelog._uploads.submit(lambda: None)
    stores.close(new)


@pytest.mark.parametrize("unused_s", [0, 3600])
def test_what_is_known_of_a_query_that_ended_is_forgotten_in_time(tmp_path: Path, unused_s: int) -> None:
    """An engine waits an hour, since the query may go on; what the maintenance process knows is read again."""
    clock = ManualClock(1)
    options = {} if unused_s else {"unused_s": 0.0}
    stores = StoreOpener(Settings.parse, clock, RandomIds(), **options)

    def known() -> set[str]:
        return {Path(key[0].removeprefix("file:")).name for key in stores._shared}

    open_, ended = stores.open(argument(tmp_path / "open")), stores.open(argument(tmp_path / "ended"))
    stores.close(ended)
    if unused_s:
        clock.advance(1000 * unused_s - 1)
        stores.close(stores.open(argument(tmp_path / "open")))
        assert known() == {"open", "ended"}
        clock.advance(1)
        stores.close(stores.open(argument(tmp_path / "open")))
    assert known() == {"open"}
    stores.close(open_)
    assert known() == ({"open"} if unused_s else set())


def test_an_engine_that_ends_waits_for_what_was_accepted_into_a_checkpoint_that_is_just_forgotten(
    tmp_path: Path,
) -> None:
    stores = StoreOpener(Settings.parse, SystemClock(), RandomIds(), ticker=Ticker())
    settings = {PREFIX + "changelog.enabled": "true"}
    old = stores.open(argument(tmp_path, run="run 1", settings=settings))
    new = stores.open(argument(tmp_path, run="run 2", settings=settings))
    assert old.changelog is not None
    asked, may_end = threading.Event(), threading.Event()
    publish = old.changelog.groups._publish

    def held(group: Sealed) -> None:
        asked.set()
        assert may_end.wait(60)
        publish(group)

    old.changelog.groups._publish = held
    place = old.changelog.groups.reserve()
    told: list[LaminaError | None] = []
    place.fill([bytes(16)], StoreIdentity("uuid", 0, 0, "default"), str(place.id), 0, 1, told.append, patient=True)
    # the last store of an older run goes, and with it what its checkpoint is known by
    stores.close(old)
    assert asked.wait(60)
    assert stores.finish(0.0) == 1
    may_end.set()
    assert stores.finish(60.0) == 0
    assert told == [None]
    stores.close(new)
    ends = time.monotonic() + 20
    while stores._left and time.monotonic() < ends:
        time.sleep(0.01)
    assert not stores._left
