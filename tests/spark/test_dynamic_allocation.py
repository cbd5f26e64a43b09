"""Executors that Spark adds while a batch runs and removes after it: stores move, and no answer changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program
from tests.spark.test_restarts import expected

pytestmark = pytest.mark.long

BATCHES = 3
FORMATS = [2, 1] if os.environ.get("LAMINA_REPEATS") else [2]
"""Checkpoint formats; v1, where the same stores move in the same way, in `make test-nightly`."""


@pytest.mark.parametrize("format_version", FORMATS)
def test_executors_that_come_and_go_between_batches_change_no_answer(tmp_path: Path, format_version: int) -> None:
    argument = {"jar": shim_jar(), "path": str(tmp_path), "batches": BATCHES, "format_version": format_version}
    seen = json.loads(run_program("dynamic_allocation_query.py", json.dumps(argument)).splitlines()[-1])

    for batch in range(BATCHES):
        # Each key is in each batch, so each answer is the whole state.
        assert {k: (n, total) for k, n, total in seen["answers"][str(batch)]} == expected(batch + 1), batch
    # Each batch ran on two executors, of which one was gone before the next.
    during, between = [set(ids) for ids in seen["during"]], [set(ids) for ids in seen["between"]]
    assert [len(ids) for ids in during] == [2] * BATCHES
    assert [len(ids) for ids in between] == [1] * BATCHES
    assert len(set().union(*during)) == BATCHES + 1
    # The stores that moved were loaded from what another executor had committed.
    assert seen["reloads"] >= BATCHES - 1
