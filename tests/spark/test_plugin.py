"""Engines that start with their executors."""

from __future__ import annotations

import json
from pathlib import Path

from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program


def test_each_executor_has_an_engine_before_a_store_opens_and_the_first_query_may_set_it_otherwise(
    tmp_path: Path,
) -> None:
    argument = json.dumps({"jar": shim_jar(), "path": str(tmp_path)})
    found = json.loads(run_program("plugin_query.py", argument).splitlines()[-1])
    assert len(found["before"]) == 2
    # the second query, which leaves the setting out, shares the engine of the first one
    assert found["totals"] == [100, 100]
    assert len(found["after"]) == 2 and not set(found["after"]) & set(found["before"])
