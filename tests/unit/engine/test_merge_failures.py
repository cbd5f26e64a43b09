"""Merges that fail: tried again after a while, and an error of the query where they go on failing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.components import RandomIds, SystemClock
from lamina.engine.maintenance import Maintainer
from lamina.engine.maintenance_queue import MaintenanceQueue, _Work
from lamina.engine.maintenance_turns import Job
from lamina.engine.merge_failures import MergeFailures
from lamina.engine.sessions import Sessions
from lamina.errors import LaminaError
from lamina.settings import PREFIX, Settings
from lamina.storage import Storage
from lamina.testing.components import ManualClock
from tests.unit.engine.test_maintenance import BEGIN, EMPTY, job
from tests.unit.store.writing import Query

FULL = {"ok": False, "merge_failed": True, "error": {"kind": "storage.failed", "message": "no space left"}}
DONE: dict[str, Any] = {"ok": True, "compacted": True}


def test_a_merge_that_failed_is_tried_again_after_longer_and_longer() -> None:
    clock = ManualClock(0)
    failures = MergeFailures(0, clock.monotonic)
    waited = []
    for _ in range(9):
        assert failures.may_try()
        failures.note(FULL)
        began = clock.monotonic()
        while not failures.may_try():
            clock.advance(500)
        waited.append(clock.monotonic() - began)
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    failures.check("store")
    failures.note(FULL)
    failures.note(DONE)
    assert failures.may_try()


@pytest.mark.parametrize("last", [DONE, {**DONE, "ok": False}], ids=["done", "merged, and something else failed"])
def test_too_many_in_a_row_are_an_error_until_one_succeeds(last: dict[str, Any]) -> None:
    failures = MergeFailures(2, ManualClock(0).monotonic)
    failures.note(FULL)
    failures.note(last)
    failures.note(FULL)
    failures.check("store")
    failures.note(FULL)
    with pytest.raises(LaminaError, match=r"the last 2 merges of store failed.*no space left") as raised:
        failures.check("store")
    assert raised.value.kind == "storage.failed"
    # these say nothing of merges
    failures.note({"ok": True})
    failures.note({"ok": False, "error": FULL["error"]})
    with pytest.raises(LaminaError):
        failures.check("store")
    failures.note(last)
    failures.check("store")


@pytest.mark.parametrize(("changelog", "unloads"), [(True, False), (True, True), (False, False)])
def test_a_query_fails_whose_merges_do(
    changelog: bool, unloads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(Storage(str(tmp_path)))
    versions = query.run_batches(query.open(), EMPTY, 12)
    clock = ManualClock(SystemClock().now_ms())
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=1)
    asked: list[Job] = []
    monkeypatch.setattr(queue, "submit", lambda store, one: one.collects or asked.append(one))
    monkeypatch.setattr(queue, "call_later", lambda *_: None)
    opened = Sessions(Settings(), queue, clock, RandomIds())
    settings = {
        PREFIX + "changelog.enabled": str(changelog).lower(),
        PREFIX + "changelog.materializeFailures": "2",
        PREFIX + "changelog.materializeParts": "4",
    }
    argument = {**job(tmp_path, 0, versions[-1])["open"], "settings": settings}
    number = opened.open(argument)["handle"]
    (damaged,) = (path for path in tmp_path.rglob("*.lam") if path.name.startswith("5_"))
    data = damaged.read_bytes()
    damaged.write_bytes(data[:40] + bytes(len(data) - 40))
    begin = {"version": 12, "attempt": versions[-1].attempt, **BEGIN}

    def started() -> None:
        nonlocal number
        if unloads:
            # as `unloadOnCommit` does
            opened.close(number)
            number = opened.open(argument)["handle"]
        opened.get(number).begin(begin)

    def maintained() -> dict[str, Any]:
        report = Maintainer(clock, RandomIds()).work({**asked[-1].argument, **asked[-1].known(False)})
        queue._report(_Work(opened.get(number).argument.store, asked[-1], began=0.0, heard=None), report)
        return report

    started()
    assert not maintained()["ok"]
    # not asked for at once
    started()
    assert len(asked) == 1
    clock.advance(1000)
    started()
    assert len(asked) == 2
    assert not maintained()["ok"]
    clock.advance(2000)
    if changelog:
        with pytest.raises(LaminaError, match=r"the last 2 merges.*5_L1") as raised:
            started()
        assert raised.value.kind == "file.damaged"
    else:
        started()
    # and tried again all the same
    assert len(asked) == 3
    damaged.write_bytes(data)
    assert maintained()["ok"]
    started()
