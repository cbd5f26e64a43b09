"""Executors and engines that are lost with commits for which only the batch waits."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from tests.kill import processes
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("role", "reason"),
    [(processes.EXECUTOR, "which was to write it, was lost"), (processes.ENGINE, "engine.lost")],
    ids=["executor", "engine"],
)
def test_a_batch_fails_as_soon_as_one_who_writes_for_it_is_lost(tmp_path: Path, role: str, reason: str) -> None:
    """Long before its time is over, in which this test is not."""
    argument = json.dumps({"jar": shim_jar(), "path": str(tmp_path), "role": role})
    found = json.loads(
        run_program("lost_writer_query.py", argument, **{processes.MARK: uuid.uuid4().hex}).splitlines()[-1]
    )
    assert "is not committed" in found["error"]
    assert reason in found["error"], found["error"]
    assert found["batches"] == ["0"]
