"""Executors and engines that are lost with commits for which only the batch waits."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.kill import processes
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program

pytestmark = pytest.mark.long


def after_the_loss_of(lost: str, path: Path) -> dict[str, Any]:
    """The error of a query that has lost processes, and its batches."""
    argument = json.dumps({"jar": shim_jar(), "path": str(path), "lost": lost})
    mark = {processes.MARK: uuid.uuid4().hex}
    found = json.loads(run_program("lost_writer_query.py", argument, **mark).splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("lost", "reason"),
    [("both", "which was to write it, was lost"), ("engine", "engine.lost")],
)
def test_a_batch_fails_as_soon_as_one_who_writes_for_it_is_lost(tmp_path: Path, lost: str, reason: str) -> None:
    """Long before its time is over, in which this test is not."""
    found = after_the_loss_of(lost, tmp_path)
    assert "is not committed" in found["error"]
    assert reason in found["error"], found["error"]
    assert found["batches"] == ["0"]


def test_engines_write_what_executors_leave_that_are_killed(tmp_path: Path) -> None:
    assert after_the_loss_of("executors", tmp_path) == {"error": "", "batches": ["0", "1"]}
