"""State that outgrows `heap.maxBytes`: what the user is told, and that nothing is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program

FED = (1_000, 500_000, 10)
"""The numbers of each batch end here: the state of the second batch takes tens of MiB."""


def run(path: Path, cap: str) -> dict[str, Any]:
    argument = {"jar": shim_jar(), "input": str(path / "in"), "checkpoint": str(path / "checkpoint"), "cap": cap}
    seen: dict[str, Any] = json.loads(run_program("memory_query.py", json.dumps(argument)).splitlines()[-1])
    return seen


def test_a_query_at_the_cap_fails_with_what_to_do_and_goes_on_under_a_larger_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for batch, upto in enumerate(FED):
        file = tmp_path / "in" / f"{batch}.json"
        file.write_text(json.dumps({"upto": upto}), encoding="utf-8")
        # the source takes files by time of modification
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))

    capped = run(tmp_path, "16m")
    assert capped["answers"] == {"0": [1_000, 1_000]}
    assert "[memory.cap]" in capped["failure"]
    assert f"of the {16 << 20} bytes that rows may have by heap.maxBytes are reserved" in capped["failure"]
    assert "raise spark.sql.streaming.stateStore.lamina.heap.maxBytes" in capped["failure"]

    larger = run(tmp_path, "256m")
    assert larger == {"answers": {"1": [500_000, 501_000], "2": [500_000, 501_010]}, "failure": None}
