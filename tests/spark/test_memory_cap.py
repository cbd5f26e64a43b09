"""State, and a batch, that outgrow their memory: what the user is told, and that nothing is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lamina.settings import PREFIX
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program

FED = (1_000, 500_000, 10)
"""The numbers of each batch end here: the state of the second batch takes tens of MiB."""


def feed(directory: Path) -> None:
    """The files of the batches."""
    directory.mkdir()
    for batch, upto in enumerate(FED):
        file = directory / f"{batch}.json"
        file.write_text(json.dumps({"upto": upto}), encoding="utf-8")
        # the source takes files by time of modification
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))


def run(path: Path, **settings: str) -> dict[str, Any]:
    argument = {"jar": shim_jar(), "input": str(path / "in"), "checkpoint": str(path / "checkpoint")}
    argument["settings"] = {PREFIX + key.replace("__", "."): value for key, value in settings.items()}
    seen: dict[str, Any] = json.loads(run_program("memory_query.py", json.dumps(argument)).splitlines()[-1])
    return seen


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    feed(tmp_path / "in")
    return tmp_path


def test_a_query_at_the_cap_fails_with_what_to_do_and_goes_on_under_a_larger_one(fed: Path) -> None:
    capped = run(fed, heap__maxBytes="16m")
    assert capped["answers"] == {"0": [1_000, 1_000]}
    assert "[memory.cap]" in capped["failure"]
    assert f"of the {16 << 20} bytes that rows may have by heap.maxBytes are in use" in capped["failure"]
    assert "raise spark.sql.streaming.stateStore.lamina.heap.maxBytes" in capped["failure"]

    larger = run(fed, heap__maxBytes="256m")
    assert larger == {"answers": {"1": [500_000, 501_000], "2": [500_000, 501_010]}, "failure": None, "spilled": 0}


def test_on_tables_a_batch_that_outgrows_the_memory_keeps_its_changes_on_the_disk(fed: Path) -> None:
    seen = run(fed, backend="rocksdb", rocksdb__memory__fixedPerExecutorBytes="24m")
    assert seen["failure"] is None
    assert seen["answers"] == {"0": [1_000, 1_000], "1": [500_000, 501_000], "2": [500_000, 501_010]}
    assert seen["spilled"] > 1 << 20
