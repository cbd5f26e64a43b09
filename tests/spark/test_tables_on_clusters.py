"""Executors of a cluster on tables of RocksDB: one that is killed as it reads them, and one whose Python cannot."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina.settings import PREFIX
from tests.spark.clusters import WORKERS, feed
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program

pytestmark = pytest.mark.long

KEYS = 8_000
CHANGED = 50
"""Keys of each batch but the first one."""

CONF = {
    PREFIX + "backend": "rocksdb",
    PREFIX + "changelog.enabled": "false",
    PREFIX + "durability.level": "task",
    PREFIX + "rocksdb.materializeEvery": "1",
}


class Cluster:
    """Runs of a query on it, each with executors of its own; batches are fed in order."""

    def __init__(self, master: str, path: Path) -> None:
        self.master = master
        self.path = path
        self.state: dict[str, tuple[int, int]] = {}
        self.fed = 0

    def feed(self, keys: int) -> None:
        rows = [{"t": "2024-01-01T00:00:00Z", "k": f"key {n}", "v": n + self.fed} for n in range(keys)]
        feed(self.path / "in" / "s", self.fed, rows)
        self.fed += 1
        for row in rows:
            count, total = self.state.get(row["k"], (0, 0))
            self.state[row["k"]] = (count + 1, total + row["v"])

    def run(self, settings: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        argument = {
            "master": self.master,
            "jar": shim_jar(),
            "path": str(self.path),
            "partitions": 4,
            "settings": settings or {},
            "conf": CONF,
            **more,
        }
        output = run_program("tables_cluster_query.py", json.dumps(argument))
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found

    def is_right(self, found: dict[str, Any]) -> bool:
        """Whether a run had the newest batch, with right answers."""
        assert found["failure"] is None, found["failure"]
        newest = found["answers"][str(self.fed - 1)]
        return {key: tuple(row) for key, row in newest.items()} == self.state


@pytest.fixture
def cluster(master: str, tmp_path: Path) -> Cluster:
    cluster = Cluster(master, tmp_path)
    cluster.feed(KEYS)
    cluster.feed(CHANGED)
    assert cluster.is_right(cluster.run())
    cluster.feed(CHANGED)
    return cluster


def test_an_executor_that_is_killed_as_a_task_reads_its_tables_costs_no_row(cluster: Cluster) -> None:
    marker = cluster.path / "killed"
    found = cluster.run(marker=str(marker), row=KEYS // 16)
    assert marker.exists()
    assert found["tables"] > 0
    assert cluster.is_right(found)
    cluster.feed(CHANGED)
    assert cluster.is_right(cluster.run())


def test_an_executor_without_rocksdict_says_what_it_lacks_and_the_query_goes_on_with_it(cluster: Cluster) -> None:
    lacking = cluster.path / "modules" / "rocksdict.py"
    lacking.parent.mkdir()
    lacking.write_text("raise ImportError(\"No module named 'rocksdict'\")\n", encoding="utf-8")
    python = cluster.path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$(tr "\\0" " " < /proc/$PPID/cmdline)" in *"--hostname {WORKERS[1]} "*)\n'
        f'  export PYTHONPATH="{lacking.parent}:$PYTHONPATH" ;;\n'
        "esac\n"
        f'PYTHONDONTWRITEBYTECODE=1 exec "{sys.executable}" "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    settings = {
        PREFIX + "engine.python": str(python),
        "spark.task.maxFailures": "1",
        # else all tasks may go where the batch's input was read
        "spark.locality.wait": "0s",
    }
    failure = cluster.run(settings)["failure"]
    assert failure is not None
    for words in ("[engine.dependency]", "pip install 'rocksdict>=0.3.29,<0.4'", platform.node()):
        assert words in failure, failure
    lacking.unlink()
    assert cluster.is_right(cluster.run(settings))
