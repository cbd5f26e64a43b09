"""What was found broken of a store while its query runs: that it is made anew, however jobs and handles come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.engine.merge_failures import MergeFailures
from lamina.format.paths import TableName, parse_name
from lamina.store import Version
from lamina.testing import ManualClock
from tests.unit.engine.test_in_place import TABLES, Opened, temporary
from tests.unit.engine.test_maintenance import BEGIN
from tests.unit.store.writing import rows_of

__all__ = ["temporary"]

FULL = {"ok": False, "merge_failed": True, "error": {"kind": "storage.failed", "message": "no space left"}}


def tables_of(opened: Opened, version: Version) -> list[str]:
    """The names of the tables that a version stands on."""
    manifest = opened.query.open().manifest(version)
    assert manifest is not None
    paths = [reference.path or "" for reference in manifest.references]
    return [path for path in paths if isinstance(parse_name(path), TableName)]


def begun(opened: Opened) -> list[dict[str, Any]]:
    """Begins a batch on the newest version; the arguments of the jobs that it asks for."""
    before = len(opened.asked)
    opened.handle.begin({"version": opened.version.version, "attempt": opened.version.attempt, **BEGIN})
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
