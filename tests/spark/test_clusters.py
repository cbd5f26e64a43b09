"""Several queries at once on a standalone cluster of two executors, whose stores commit into shared log objects."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lamina.settings import PREFIX
from tests.spark.clusters import WORKERS, feed
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program
from tests.spark.test_changelog import logged
from tests.spark.test_restarts import expected, rows

pytestmark = pytest.mark.long

PARTITIONS = 6
BATCHES = 4
"""Of each run."""

PATIENT = {PREFIX + "changelog.batchDelayMs": "4000"}
"""Log objects wait for longer than there is between two tasks of a batch, also where the machine is busy."""

QUERIES = {
    "once": {"adaptive": False, "again": False},
    "twice": {"adaptive": False, "again": True},
    "twice, adaptive": {"adaptive": True, "again": True},
}


def run(master: str, path: Path) -> dict[str, Any]:
    """Runs the queries over all files that are not processed yet, with executors of its own."""
    argument = {
        "master": master,
        "jar": shim_jar(),
        "path": str(path),
        "queries": QUERIES,
        "partitions": PARTITIONS,
        "settings": PATIENT,
    }
    found: dict[str, Any] = json.loads(run_program("cluster_queries.py", json.dumps(argument)).splitlines()[-1])
    return found


def test_queries_that_share_two_executors_give_right_answers_after_new_ones(master: str, tmp_path: Path) -> None:
    """Whatever `foreachBatch` does with a batch: adaptive execution of it, or two actions."""
    for number in range(2):
        for batch in range(number * BATCHES, (number + 1) * BATCHES):
            feed(tmp_path / "in" / "s", batch, rows(batch))
        for name, found in run(master, tmp_path).items():
            batches = range(number * BATCHES, (number + 1) * BATCHES)
            assert sorted(map(int, found["totals"])) == list(batches), name
            for batch in batches:
                wanted = expected(batch + 1)
                assert {k: tuple(row) for k, row in found["totals"][str(batch)].items()} == wanted, (name, batch)
                if QUERIES[name]["again"]:
                    counted = {int(n): keys for n, keys in found["by_count"][str(batch)].items()}
                    assert counted == Counter(n for n, _ in wanted.values()), (name, batch)
            assert (found["plans"] == ["AdaptiveSparkPlan"]) == QUERIES[name]["adaptive"], name

    for name, kind in QUERIES.items():
        written = Counter(version for parts in logged(tmp_path / name) for version in {part.to for part in parts})
        # what is written first is a file
        assert sorted(written) == list(range(2, 2 * BATCHES + 1)), (name, written)
        # new executors know of no number of stores that makes an object whole
        del written[BATCHES + 1]
        # One an executor and action. Half as many again: where the machine is busy, a task comes after its object.
        assert written.total() <= 1.5 * len(WORKERS) * (1 + kind["again"]) * len(written), (name, written)
