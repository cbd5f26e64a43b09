"""Queries whose checkpoint is not on local files: S3A, and a file system that only Hadoop has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hadoop_jars import hadoop_aws_jars
from lamina.settings import PREFIX
from lamina.storage.local_copies import STEP_BYTES
from tests.s3_server import S3Server
from tests.spark.conftest import shim_jar
from tests.spark.hadoop_jars import ODD, odd_file_system_jar
from tests.spark.streams import BEHIND_BARRIER

KEYS = 7


def feed(folder: Path, batches: range) -> None:
    folder.mkdir(exist_ok=True)
    for batch in batches:
        lines = (json.dumps({"k": f"key {n % KEYS}", "v": n}) for n in range(batch * 20, batch * 20 + 20))
        path = folder / f"{batch:05d}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))


def expected(batches: int) -> dict[str, list[int]]:
    result: dict[str, list[int]] = {}
    for n in range(batches * 20):
        count, total = result.get(f"key {n % KEYS}", (0, 0))
        result[f"key {n % KEYS}"] = [count + 1, total + n]
    return result


def run(
    folder: Path, checkpoint: str, jars: list[Path], conf: dict[str, str], await_segment: bool = False
) -> dict[str, Any]:
    """Runs the query over what was fed since its last run, in a JVM and an engine of their own."""
    argument = {
        "input": str(folder),
        "checkpoint": checkpoint,
        "await_segment": await_segment,
        "conf": {"spark.jars": ",".join(map(str, [shim_jar(), *jars])), **conf},
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "storage_query.py"), json.dumps(argument)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
        cwd=folder.parent,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": ""},
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def check(result: dict[str, Any], batches: range) -> None:
    assert sorted(map(int, result["answers"])) == list(batches)
    for batch in batches:
        assert result["answers"][str(batch)] == expected(batch + 1), batch


def test_a_query_on_s3a_keeps_its_state_beside_sparks_own_logs_and_restarts(tmp_path: Path) -> None:
    folder, jars = tmp_path / "in", hadoop_aws_jars()
    with S3Server() as server:
        checkpoint = f"s3a://{server.bucket}/queries/totals"
        conf = {f"spark.hadoop.{key}": value for key, value in server.hadoop.items()}
        conf["spark.sql.streaming.stateStore.lamina.storage.cache.directory"] = str(tmp_path / "cache")
        feed(folder, range(3))
        check(run(folder, checkpoint, jars, conf), range(3))
        feed(folder, range(3, 5))
        server.proxy.forget()
        result = run(folder, checkpoint, jars, conf)
        check(result, range(3, 5))
        # lamina's files lie beside Spark's, in one bucket
        assert {"metadata", "checkpoint", "0", "4"} <= set(result["files"])
        assert sum(name.endswith(".lam") for name in result["files"]) == 10
        # and the restart read its state from the local copies
        read = [r for r in server.proxy.requests if r.method == "GET" and r.path.endswith((".lam", ".seg"))]
        assert read == []
        # what they take, with the room of a copy that the other store was writing when it was asked
        copies = sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
        assert 0 < result["copied"] <= copies + STEP_BYTES
        for name in list((tmp_path / "cache").iterdir()):
            name.unlink()
        feed(folder, range(5, 6))
        server.proxy.forget()
        check(run(folder, checkpoint, jars, conf), range(5, 6))
        assert sum(r.sent for r in server.proxy.requests if r.method == "GET" and r.path.endswith(".lam")) > 0


@pytest.mark.parametrize("place", ["s3a", "odd"])
def test_a_batch_waits_for_log_objects_that_are_on_such_a_storage_and_the_query_restarts(
    tmp_path: Path, place: str
) -> None:
    """Through each client of theirs: Python's own, and the JVM's. Versions stand on tables of RocksDB besides."""
    folder, jars = tmp_path / "in", hadoop_aws_jars() if place == "s3a" else [odd_file_system_jar()]
    with S3Server() as server:
        keys = server.hadoop if place == "s3a" else {"fs.odd.impl": ODD}
        checkpoint = f"s3a://{server.bucket}/totals" if place == "s3a" else f"odd:{tmp_path}/checkpoint"
        conf = {
            **{f"spark.hadoop.{key}": value for key, value in keys.items()},
            **BEHIND_BARRIER,
            PREFIX + "backend": "rocksdb",
            PREFIX + "rocksdb.materializeEvery": "4",
            PREFIX + "storage.cache.directory": str(tmp_path / "cache"),
        }
        for batches in (range(9), range(9, 11)):
            feed(folder, batches)
            result = run(folder, checkpoint, jars, conf)
            check(result, batches)
            suffixes = Counter(name.rpartition(".")[2] for name in result["files"])
            # the first commit of each store is a file, which has its directory made
            assert suffixes["lam"] == 2 and suffixes["log"] >= batches.stop - 1
        assert suffixes["sst"] > 0


def test_a_query_on_a_file_system_that_only_hadoop_has_keeps_its_state_and_restarts(tmp_path: Path) -> None:
    folder, jars = tmp_path / "in", [odd_file_system_jar()]
    checkpoint = f"odd:{tmp_path}/checkpoint"
    conf = {
        "spark.hadoop.fs.odd.impl": ODD,
        "spark.sql.streaming.stateStore.lamina.storage.cache.maxBytes": "0",
    }
    feed(folder, range(9))
    # more commits than the maintenance process waits for: it writes a segment, through the JVM too
    check(run(folder, checkpoint, jars, conf, await_segment=True), range(9))
    feed(folder, range(9, 11))
    result = run(folder, checkpoint, jars, conf)
    check(result, range(9, 11))
    assert result["copied"] == 0
    # a merge may be under way
    assert not [name for name in result["files"] if name.endswith(".tmp") and ".seg." not in name]
