"""Databases that are made for who reads them in place: whose they are, and that none is left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.components import RandomIds, SystemClock
from lamina.engine import maintenance
from lamina.engine.maintenance import Maintainer
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.maintenance_turns import Job
from lamina.engine.sessions import LEFT_S, Sessions, StoreHandle
from lamina.engine.store_opener import OpenArgument
from lamina.errors import LaminaError
from lamina.format.table_list import TableListManifest
from lamina.settings import PREFIX, Settings
from lamina.storage import Storage
from lamina.store import Accepted, Committed
from lamina.store.tables.database import Database
from lamina.store.tables.local import LocalTables
from tests.unit.engine.test_maintenance import BEGIN, EMPTY, job
from tests.unit.store.writing import Query, triples

TABLES = {PREFIX + "backend": "rocksdb", PREFIX + "rocksdb.materializeEvery": "2"}
DONE = Accepted("L1.1.1.o.-.x", 0, lambda: Committed("file", 1, 1, 1.0))


class Opened:
    """A store that is open in an engine whose maintenance the test does itself."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
        self.query = Query(
            Storage(str(directory / "state")),
            **{key[len(PREFIX) :].replace(".", "__"): value for key, value in settings.items()},
        )
        self.asked: list[Job] = []
        queue = MaintenanceQueue(SystemClock(), str(directory), 60, workers=1)
        monkeypatch.setattr(queue, "submit", lambda store, one: self.asked.append(one))
        self.later: list[tuple[Hashable, float, Callable[[], None]]] = []
        monkeypatch.setattr(queue, "call_later", lambda *call: self.later.append(call))
        monkeypatch.setattr(queue, "tell_left", lambda store: self.maintainer.leave(store))
        self.sessions = Sessions(Settings(), queue, SystemClock(), RandomIds())
        self.argument = {**job(directory / "state", 0, EMPTY)["open"], "settings": settings}
        self.number = self.sessions.open(self.argument)["handle"]
        self.handle: StoreHandle = self.sessions.get(self.number)
        self.maintainer = Maintainer(SystemClock(), RandomIds())
        self.version = EMPTY

    def materialized(self) -> dict[str, Any]:
        """The report of a job after two more versions; the handle has not heard of it."""
        self.version = self.query.run_batches(self.handle.store, self.version, 2)[-1]
        self.handle.begin({"version": self.version.version, "attempt": self.version.attempt, **BEGIN})
        # and not the first collection
        asked = next(one for one in reversed(self.asked) if not one.collects)
        return self.maintainer.work({**asked.argument, **asked.known(False)})


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "engine"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory  # type: ignore[return-value]


@pytest.fixture
def opened(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(tmp_path, monkeypatch, TABLES)


def databases(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.startswith("lamina-database-")]


def test_a_new_list_is_named_with_the_next_commit_once(opened: Opened, temporary: Path) -> None:
    assert opened.handle.durable(DONE)["in_place"] is None
    opened.handle._maintained(opened.materialized())
    named = opened.handle.durable(DONE)["in_place"]
    assert (named["version"], named["attempt"]) == (2, opened.version.attempt)
    assert opened.handle.durable(DONE)["in_place"] is None
    with Database(named["directory"], read_only=True) as database:
        rows = {key: value for batch in database.entries() for key, _, value in triples([batch])}
    assert rows == opened.query.states[opened.version.attempt]
    # whoever it was named to removes it; where nobody heard of it, it goes with the handle
    assert databases(temporary) == [os.path.basename(named["directory"])]
    opened.sessions.close(opened.number)
    assert databases(temporary) == []


def test_one_that_the_maintenance_process_made_is_taken_out_of_its_directory(opened: Opened, temporary: Path) -> None:
    own = temporary / "maintenance-1"
    own.mkdir()
    report = opened.materialized()
    made = os.path.join(own, os.path.basename(report["in_place"]["directory"]))
    os.rename(report["in_place"]["directory"], made)
    report["in_place"]["directory"] = made
    opened.handle._maintained(report)
    assert os.listdir(own) == []
    named = opened.handle.durable(DONE)["in_place"]
    assert [os.path.basename(named["directory"])] == databases(temporary)
    # one of a process that has ended meanwhile is no error
    late = opened.materialized()
    late["in_place"]["directory"] = made
    opened.handle._maintained(late)
    assert opened.handle.durable(DONE)["in_place"] is None


def test_one_that_was_not_named_goes_when_there_is_a_newer_one_or_the_handle_is_closed(
    opened: Opened, temporary: Path
) -> None:
    opened.handle._maintained(opened.materialized())
    (first,) = databases(temporary)
    opened.handle._maintained(opened.materialized())
    (second,) = databases(temporary)
    assert first != second
    opened.sessions.close(opened.number)
    assert databases(temporary) == []


def test_one_that_comes_after_the_handle_was_closed_goes_at_once(opened: Opened, temporary: Path) -> None:
    report = opened.materialized()
    assert len(databases(temporary)) == 1
    opened.sessions.close(opened.number)
    opened.handle._maintained(report)
    assert databases(temporary) == []


class Materialization:
    """A call in a thread of its own that waits until tables are made."""

    def __init__(self, opened: Opened) -> None:
        self.answer: dict[str, Any] | None = None
        self.error: LaminaError | None = None
        before = len(opened.asked)
        base = {"version": opened.version.version, "attempt": opened.version.attempt}
        self._thread = threading.Thread(target=self._run, args=(opened.handle, base))
        self._thread.start()
        deadline = time.monotonic() + 60
        while len(opened.asked) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        self.asked = opened.asked[-1]

    def _run(self, handle: StoreHandle, base: dict[str, Any]) -> None:
        try:
            self.answer = handle.materialize(base)
        except LaminaError as error:
            self.error = error

    @property
    def waits(self) -> bool:
        # who was told has some time to end
        self._thread.join(0.1)
        return self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(60)
        assert not self.waits


def test_who_waits_for_tables_gets_those_of_the_version_that_it_asked_for(opened: Opened, temporary: Path) -> None:
    # a job that was begun before knows of one version less
    earlier = opened.materialized()
    opened.version = opened.query.run_batches(opened.handle.store, opened.version, 1)[-1]
    waits = Materialization(opened)
    opened.handle._maintained(earlier)
    # one increment is not worth it unless somebody waits
    assert waits.waits
    assert waits.asked.argument["at_once"] and waits.asked.argument["awaited"]
    assert waits.asked.argument["confirmed"]["version"] == 3
    opened.handle._maintained(opened.maintainer.work({**waits.asked.argument, **waits.asked.known(False)}))
    waits.end()
    assert waits.answer is not None
    named = waits.answer["in_place"]
    assert (named["version"], named["attempt"]) == (3, opened.version.attempt)
    with Database(named["directory"], read_only=True) as database:
        rows = {key: value for batch in database.entries() for key, _, value in triples([batch])}
    assert rows == opened.query.states[opened.version.attempt]
    # the earlier one was not named to anybody
    assert databases(temporary) == [os.path.basename(named["directory"])]


def test_who_waits_for_tables_hears_why_there_are_none(opened: Opened) -> None:
    opened.materialized()
    waits = Materialization(opened)
    full = {"kind": "storage.failed", "message": "the disk is full"}
    # a job that nobody waited for says nothing of the one that somebody does
    confirmed = waits.asked.argument["confirmed"]
    opened.handle._maintained({"ok": False, "awaited": False, "confirmed": confirmed, "error": full})
    assert waits.waits
    # nor does one of an older version, for which somebody has waited before
    older = {**confirmed, "version": confirmed["version"] - 1}
    opened.handle._maintained({"ok": False, "awaited": True, "confirmed": older, "error": full})
    assert waits.waits
    opened.handle._maintained({"ok": False, "awaited": True, "confirmed": confirmed, "error": full})
    waits.end()
    assert waits.error is not None
    assert (waits.error.kind, waits.error.message) == ("storage.failed", "the disk is full")


@pytest.mark.parametrize("is_made", [False, True], ids=["was not made", "is gone"])
def test_who_waits_for_tables_hears_why_it_cannot_have_them(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    opened.version = opened.query.run_batches(opened.handle.store, opened.version, 3)[-1]
    waits = Materialization(opened)

    handed_out = LocalTables.hand_out

    def full(tables: LocalTables, manifest: TableListManifest | None, parent: str | None = None) -> str:
        if parent is not None:
            raise LaminaError.from_kind("storage.failed", "the disk is full")
        return handed_out(tables, manifest)

    if not is_made:
        monkeypatch.setattr(LocalTables, "hand_out", full)
    report = opened.maintainer.work({**waits.asked.argument, **waits.asked.known(False)})
    assert report["segment"] is not None
    if is_made:
        shutil.rmtree(report["in_place"]["directory"])
    opened.handle._maintained({**report, "awaited": True, "confirmed": waits.asked.argument["confirmed"]})
    waits.end()
    assert waits.error is not None
    assert waits.error.kind == ("engine.lost" if is_made else "storage.failed")
    assert opened.handle.durable(DONE)["in_place"] is None


def test_tables_of_another_attempt_of_a_version_are_not_those_that_somebody_waits_for(opened: Opened) -> None:
    opened.materialized()
    waits = Materialization(opened)
    mine = waits.asked.argument["confirmed"]
    opened.handle._maintained({"ok": True, "materialized": {**mine, "attempt": "another"}})
    assert waits.waits
    # of an older version neither, and nothing of its own comes after those of a newer one
    opened.handle._maintained({"ok": True, "materialized": {**mine, "version": mine["version"] - 1}})
    assert waits.waits
    opened.handle._maintained({"ok": True, "materialized": mine})
    waits.end()
    assert waits.error is None


def test_who_waits_for_an_attempt_that_another_took_the_place_of_hears_so(opened: Opened) -> None:
    opened.materialized()
    base = opened.version
    opened.version = opened.query.run_batches(opened.handle.store, base, 1)[-1]
    earlier = Materialization(opened)
    opened.version = opened.query.run_batches(opened.handle.store, base, 1)[-1]
    later = Materialization(opened)
    earlier.end()
    assert earlier.error is not None and earlier.error.kind == "state.superseded"
    assert later.waits
    opened.handle._maintained({"ok": True, "materialized": later.asked.argument["confirmed"]})
    later.end()
    assert later.error is None


def test_tables_that_were_made_are_heard_of_although_what_came_after_them_failed(opened: Opened) -> None:
    opened.materialized()
    waits = Materialization(opened)
    error = {"kind": "storage.failed", "message": "the files could not be listed"}
    failed = {"ok": False, "awaited": True, "confirmed": waits.asked.argument["confirmed"], "error": error}
    opened.handle._maintained({**failed, "materialized": waits.asked.argument["confirmed"]})
    waits.end()
    assert waits.error is None


def test_who_waits_for_tables_of_a_store_that_is_closed_waits_no_longer(opened: Opened) -> None:
    opened.materialized()
    waits = Materialization(opened)
    opened.sessions.close(opened.number)
    waits.end()
    assert waits.error is not None
    assert waits.error.kind == "store.closed"


def test_a_version_that_stands_on_tables_alone_gives_none(opened: Opened) -> None:
    opened.handle._maintained(opened.materialized())
    opened.handle.durable(DONE)
    waits = Materialization(opened)
    opened.handle._maintained(opened.maintainer.work({**waits.asked.argument, **waits.asked.known(False)}))
    waits.end()
    assert waits.answer == {"in_place": None}


def test_a_commit_says_that_its_rows_have_got_their_share_of_memory(opened: Opened) -> None:
    opened.version = opened.query.run_batches(opened.handle.store, opened.version, 1)[-1]
    base = {"version": opened.version.version, "attempt": opened.version.attempt, **BEGIN}
    opened.handle.begin(base)
    # the first collection
    assert [one.argument["at_once"] for one in opened.asked] == [False]
    opened.handle.begin({**base, "due": True})
    assert opened.asked[-1].argument["at_once"] and not opened.asked[-1].argument["awaited"]
    # a job that takes its place does it, too, until it is done
    opened.handle.maintain({})
    assert opened.asked[-1].argument["at_once"]
    opened.handle._maintained({"ok": True, "materialized": base})
    opened.handle.maintain({})
    assert not opened.asked[-1].argument["at_once"]


def test_nothing_is_made_for_a_store_that_keeps_all_rows_in_memory(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heap = Opened(tmp_path, monkeypatch, {PREFIX + "compaction.maxChain": "64"})
    for _ in range(3):
        heap.version = heap.query.run_batches(heap.handle.store, heap.version, 2)[-1]
    heap.handle.begin({"version": heap.version.version, "attempt": heap.version.attempt, **BEGIN})
    asked = heap.asked[-1]
    assert asked.argument["in_place"] is False
    report = heap.maintainer.work({**asked.argument, **asked.known(False)})
    assert report["segment"] is not None
    assert "in_place" not in report
    assert databases(temporary) == []


def test_the_tables_of_a_store_that_stays_closed_go(opened: Opened, temporary: Path) -> None:
    """Its partition may be on another executor, of which nobody tells."""
    assert opened.materialized()["ok"]
    (tables,) = temporary.glob("lamina-tables-*")
    opened.sessions.close(opened.number)
    ((key, after_s, leave),) = opened.later
    assert (key, after_s) == (("left", opened.handle.argument.store), LEFT_S)
    # for reading it may be open
    reader = opened.sessions.open({**opened.argument, "read_only": True})["handle"]
    again = opened.sessions.open(opened.argument)["handle"]
    leave()
    assert tables.exists()
    opened.sessions.close(again)
    opened.maintainer._working[opened.handle.argument.store] = False
    leave()
    assert tables.exists(), "a job may hand them out"
    del opened.maintainer._working[opened.handle.argument.store]
    leave()
    assert not tables.exists()
    opened.sessions.close(reader)
    assert len(opened.later) == 2
    leave()
    # when it comes back it goes on
    opened.number = opened.sessions.open(opened.argument)["handle"]
    opened.handle = opened.sessions.get(opened.number)
    assert opened.materialized()["ok"]


def test_a_store_without_tables_that_stays_closed_is_left_too(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heap = Opened(tmp_path, monkeypatch, {})
    heap.version = heap.query.run_batches(heap.handle.store, heap.version, 1)[-1]
    heap.handle.begin({"version": heap.version.version, "attempt": heap.version.attempt, **BEGIN})
    heap.handle.maintain({})
    asked = heap.asked[-1]
    assert asked.argument["closed"] is False
    assert heap.maintainer.work({**asked.argument, **asked.known(True)})["ok"]
    heap.sessions.close(heap.number)
    monkeypatch.setattr(maintenance, "_LEFT_KEPT", 0)
    ((_, _, leave),) = heap.later
    leave()
    assert not heap.maintainer._kept
    heap.handle.maintain({})
    assert heap.asked[-1].argument["closed"] is True


def test_the_maintenance_process_hears_of_stores_that_were_left(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path / "state")), backend="rocksdb", rocksdb__materializeEvery=2)
    version = query.run_batches(query.open(), EMPTY, 2)[-1]
    queue = MaintenanceQueue(SystemClock(), str(tmp_path), 60, workers=1)
    queue.start()
    try:
        asked = job(tmp_path / "state", 0, version, collect=False)
        asked["open"]["settings"] = TABLES
        store, done = OpenArgument.from_json(asked["open"]).store, threading.Event()
        queue.submit(store, Job({**asked, "in_place": False}, lambda report: done.set(), lambda _: {}))
        assert done.wait(60)
        (tables,) = tmp_path.glob("maintenance-*/lamina-tables-*")
        for _ in range(600):
            queue.tell_left(store)
            if not tables.exists():
                break
            done.clear()
            done.wait(0.1)
        assert not tables.exists()
    finally:
        queue.close()


def test_what_the_maintenance_process_leaves_goes_with_it(tmp_path: Path) -> None:
    queue = MaintenanceQueue(SystemClock(), str(tmp_path), 60, workers=1)
    queue.start()
    try:
        (own,) = tmp_path.glob("maintenance-*")
        (own / "lamina-tables-x").mkdir()
        (own / "lamina-tables-x" / "left.sst").write_bytes(b"x")
        first = queue.pid
        assert first is not None
        os.kill(first, 9)
        for _ in range(600):
            if not own.exists():
                break
            queue._changed.acquire()
            queue._changed.wait(0.1)
            queue._changed.release()
        assert not own.exists()
    finally:
        queue.close()
