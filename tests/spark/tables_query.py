"""A query on tables of RocksDB in a JVM of its own, run with one set of settings after another, which its JSON has.

Each run starts with no table in the JVM, and with more batches of input. Prints one JSON list: of each run the batches
with right answers, those with wrong ones, why it failed, and metrics.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.programs import program_session
from tests.spark.streams import LAMINA, PREFIX, Streams
from tests.spark.test_restarts import Answers, engine_pid, expected, rows, totals, unload_all

CONF = {
    PREFIX + "backend": "rocksdb",
    PREFIX + "rocksdb.materializeEvery": "1",
    # nothing is handed over: each run restores from files
    PREFIX + "heap.handOverMs": "0",
}
METRICS = ("laminaFailedMerges", "laminaFetchedBytes", "laminaReusedBytes", "laminaSstFiles")


def process(spark: SparkSession, name: str) -> int:
    """The JVM, its engine, or the maintenance process of that."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    if name == "jvm":
        return int(jvm.java.lang.ProcessHandle.current().pid())
    if name == "engine":
        return engine_pid(spark)
    (child,) = psutil.Process(engine_pid(spark)).children()
    return child.pid


@contextlib.contextmanager
def few_files(spark: SparkSession, spare: dict[str, int]) -> Iterator[None]:
    """Meanwhile these processes may open so many files beside those that they have open."""
    before = {}
    for name, files in spare.items():
        pid = process(spark, name)
        before[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        most = len(os.listdir(f"/proc/{pid}/fd")) + files
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[pid][1]))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def run(streams: Streams, settings: dict[str, str]) -> dict[str, Any]:
    """How a run of the query over what was fed since the last one ends."""
    answers, failure, metrics = Answers(), None, dict.fromkeys(METRICS, 0)
    conf = {**CONF, **settings}
    try:
        done = streams.run(totals, LAMINA, mode="complete", conf=conf, each_batch=answers)
        metrics = {name: done.metric(name) for name in METRICS}
    except StreamingQueryException as error:
        failure = str(error)
    right = [batch for batch, result in sorted(answers.batches.items()) if result == expected(batch + 1)]
    return {"right": right, "wrong": sorted(set(answers.batches) - set(right)), "failure": failure, **metrics}


def main(argument: dict[str, Any]) -> None:
    spark = program_session("local[2]", argument["jar"], argument["session"])
    spark.sparkContext.setLogLevel("OFF")
    streams = Streams(spark, Path(argument["path"]), argument["scheme"])
    batch = len(list(streams.path.glob("in/s/*.json")))
    ends = []
    for one in argument["runs"]:
        for path in one.get("unlink", []):
            for found in Path(path).parent.glob(Path(path).name):
                found.unlink()
        for _ in range(one.get("batches", 1)):
            streams.feed("s", rows(batch))
            batch += 1
        with few_files(spark, one.get("spare", {})):
            ends.append(run(streams, one.get("settings", {})))
        unload_all(spark)
    print(json.dumps(ends))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
