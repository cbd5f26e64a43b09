"""What was found broken of a store while its query runs: that it is made anew, however jobs and handles come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.components import RandomIds, SystemClock
from lamina.engine.maintenance import Maintainer
from lamina.engine.merge_failures import MergeFailures
from lamina.format.manifest import RUN
from lamina.format.paths import TableName, parse_name
from lamina.store import Version
from lamina.testing import ManualClock
from tests.unit.engine.test_in_place import TABLES, Opened, temporary
from tests.unit.engine.test_maintenance import BEGIN
from tests.unit.store.writing import file_name, names, rows_of

__all__ = ["temporary"]

FULL = {"ok": False, "merge_failed": True, "error": {"kind": "storage.failed", "message": "no space left"}}


def tables_of(opened: Opened, version: Version) -> list[str]:
    """The names of the tables that a version stands on."""
    manifest = opened.query.open().manifest(version)
    assert manifest is not None
    paths = [reference.path or "" for reference in manifest.references]
    return [path for path in paths if isinstance(parse_name(path), TableName)]


def keep_needed(opened: Opened) -> None:
    """Deletes all that the newest version does not need."""
    storage, store = opened.query.storage, opened.query.open()
    manifest = store.manifest(opened.version)
    assert manifest is not None
    needed = {file_name(str(opened.version.attempt)), *(reference.path for reference in manifest.references)}
    storage.delete_many([f"0/0/{name}" for name in names(storage) if name not in needed])


def begun(opened: Opened) -> list[dict[str, Any]]:
    """Begins a batch on the newest version; the arguments of the merges that it asks for."""
    before = len(opened.asked)
    opened.handle.begin({"version": opened.version.version, "attempt": opened.version.attempt, **BEGIN})
    # the first one of a run asks for a collection, too
    opened.asked[before:] = [job for job in opened.asked[before:] if not job.collects]
    return [job.argument for job in opened.asked[before:]]


def reopen(opened: Opened) -> None:
    """As `unloadOnCommit` does between two batches."""
    opened.sessions.close(opened.number)
    opened.number = opened.sessions.open(opened.argument)["handle"]
    opened.handle = opened.sessions.get(opened.number)


@pytest.fixture
def around(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A store after a restart whose load went around a table that is lost."""
    first = Opened(tmp_path, monkeypatch, TABLES)
    for _ in range(2):
        first.handle._maintained(first.materialized())
    version = first.query.run_batches(first.handle.store, first.version, 1)[-1]
    first.query.storage.delete_many([f"0/0/{tables_of(first, version)[-1]}"])
    again = Opened(tmp_path, monkeypatch, TABLES)
    again.query.states, again.version = first.query.states, version
    loaded = again.handle.store.load(version, have=None, read_only=False)
    assert rows_of(loaded) == again.query.states[version.attempt]
    return again


def test_a_merge_of_what_a_load_went_around_is_asked_for_until_there_is_one(around: Opened) -> None:
    clock = ManualClock(0)
    around.handle._failures = MergeFailures(0, clock.monotonic)
    assert [job["at_once"] for job in begun(around)] == [True]
    around.handle._maintained(FULL)
    # not at once
    assert begun(around) == []
    clock.advance(1000)
    assert [job["at_once"] for job in begun(around)] == [True]
    reopen(around)
    assert [job["at_once"] for job in begun(around)] == [True]
    asked = around.asked[-1]
    around.handle._maintained(around.maintainer.work({**asked.argument, **asked.known(False)}))
    reopen(around)
    assert begun(around) == []
    around.version = around.query.run_batches(around.handle.store, around.version, 1)[-1]
    around.query.assert_restores(around.query.open(), around.version)


def test_a_merge_that_leaves_what_is_broken_is_asked_for_once(around: Opened) -> None:
    """One that has copies of the tables does not notice."""
    begun(around)
    asked = around.asked[-1]
    made = asked.argument["confirmed"]
    around.handle._maintained({"ok": True, "materialized": made, "tried": asked.known(False)["broken"]})
    for _ in range(2):
        assert begun(around) == []
        reopen(around)


def collected(opened: Opened, *, merges: bool = True) -> dict[str, Any]:
    """The report of a collection as Spark's maintenance asks for it; the handle has heard of it."""
    opened.handle.begin({"version": opened.version.version, "attempt": opened.version.attempt, **BEGIN})
    opened.handle.maintain({})
    asked = opened.asked[-1]
    argument = asked.argument if merges else {**asked.argument, "compact": False, "at_once": False}
    report = opened.maintainer.work({**argument, **asked.known(True)})
    opened.handle._maintained(report)
    return report


def test_what_a_collection_misses_is_written_anew_while_the_rows_are_here(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Opened(tmp_path, monkeypatch, {})
    opened.version = opened.query.run_batches(opened.handle.store, opened.version, 6)[-1]
    begun(opened)
    asked = opened.asked[-1]
    opened.handle._maintained(opened.maintainer.work({**asked.argument, **asked.known(False)}))
    opened.version = opened.query.run_batches(opened.handle.store, opened.version, 1)[-1]
    manifest = opened.handle.store.manifest(opened.version)
    assert manifest is not None
    (segment,) = (one.path or "" for one in manifest.references if one.kind == RUN)
    opened.query.storage.delete_many([f"0/0/{segment}"])
    assert segment in collected(opened)["stopped"]
    opened.version = opened.query.run_batches(opened.handle.store, opened.version, 1)[-1]
    assert collected(opened)["stopped"] is None
    keep_needed(opened)
    opened.query.assert_restores(opened.query.open(), opened.version)
    assert [segment in record.getMessage() for record in caplog.records].count(True) == 1


def on_tables(directory: Path, patch: pytest.MonkeyPatch) -> tuple[Opened, str]:
    """A store on tables, with one version above them, and the name of one that is lost now."""
    opened = Opened(directory, patch, TABLES)
    for _ in range(2):
        opened.handle._maintained(opened.materialized())
    opened.version = opened.query.run_batches(opened.handle.store, opened.version, 1)[-1]
    lost = tables_of(opened, opened.version)[-1]
    opened.query.storage.delete_many([f"0/0/{lost}"])
    return opened, lost


def test_that_nothing_is_collected_since_a_file_is_lost_is_said_once(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened, lost = on_tables(tmp_path, monkeypatch)
    for _ in range(3):
        assert lost in collected(opened, merges=False)["stopped"]
        opened.version = opened.query.run_batches(opened.handle.store, opened.version, 1)[-1]
    assert [lost in record.getMessage() for record in caplog.records] == [True]


def test_what_no_merge_can_make_anew_is_asked_for_once(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that goes on without it must not end since merges fail."""
    opened, lost = on_tables(tmp_path, monkeypatch)
    keep_needed(opened)
    clock = ManualClock(0)
    opened.handle._failures = MergeFailures(0, clock.monotonic)
    assert lost in collected(opened)["stopped"]
    assert [job["at_once"] for job in begun(opened)] == [True]
    asked = opened.asked[-1]
    report = Maintainer(SystemClock(), RandomIds()).work({**asked.argument, **asked.known(False)})
    assert report["merge_failed"] and lost in report["error"]["message"]
    opened.handle._maintained(report)
    clock.advance(60_000)
    assert begun(opened) == []


def test_a_table_that_a_collection_misses_is_published_anew_from_this_machine(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, lost = on_tables(tmp_path, monkeypatch)
    assert lost in collected(opened)["stopped"]
    assert [job["at_once"] for job in begun(opened)] == [True]
    asked = opened.asked[-1]
    opened.handle._maintained(opened.maintainer.work({**asked.argument, **asked.known(False)}))
    opened.version = opened.query.run_batches(opened.handle.store, opened.version, 1)[-1]
    assert lost not in tables_of(opened, opened.version)
    assert collected(opened)["stopped"] is None
    keep_needed(opened)
    opened.query.assert_restores(opened.query.open(), opened.version)
