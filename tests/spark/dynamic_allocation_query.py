"""A query on a local cluster with dynamic allocation: `python dynamic_allocation_query.py <JSON>`.

The tasks of each batch hold their stores open until a second executor has come, and the next batch begins when only one
is left. Prints one JSON object: the rows of each batch, and the executors that ran it and that were left after it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lamina.spark.configure import CHECKPOINT_FORMAT_KEY
from tests.spark.programs import program_session
from tests.spark.streams import Streams
from tests.spark.test_restarts import rows


def session(jar: str, format_version: int) -> SparkSession:
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.locality.wait": "100ms",
        "spark.sql.session.timeZone": "UTC",
        CHECKPOINT_FORMAT_KEY: str(format_version),
        "spark.sql.streaming.metricsEnabled": "true",
    }
    spark = program_session("local-cluster[2,1,1024]", jar, settings)
    # executors that go are noisy
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def wait_for(spark: SparkSession, count: int, busy: int) -> list[str]:
    """The ids of the executors as soon as there are `count`, of which `busy` run a task."""
    context = spark.sparkContext._jsc.sc()
    deadline = time.monotonic() + 180
    while True:
        ids = context.getExecutorIds()
        found = sorted(ids.apply(n) for n in range(ids.size()))
        running = sum(executor.numRunningTasks() > 0 for executor in context.statusTracker().getExecutorInfos())
        if (len(found), running) == (count, busy):
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} are there and {running} are busy, not {count} and {busy} executors")
        time.sleep(0.05)


def holding(folder: Path) -> Callable[[dict[str, DataFrame]], DataFrame]:
    """The totals, of which the task of each row waits for a file that names the newest row."""

    def hold(n: int, newest: int) -> int:
        while not os.path.exists(folder / str(newest)):
            time.sleep(0.05)
        return n

    def query(frames: dict[str, DataFrame]) -> DataFrame:
        newest = frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"), f.max("v").alias("w"))
        held = f.udf(hold, "long").asNondeterministic()("n", (f.col("w") / 50).cast("long"))
        return newest.select("k", held.alias("n"), "total")

    return query


def main(argument: dict[str, Any]) -> None:
    spark = session(argument["jar"], argument["format_version"])
    path = Path(argument["path"])
    (path / "go").mkdir()
    streams = Streams(spark, path)
    answers: dict[int, list[list[Any]]] = {}
    during, between = [], []

    def collect(frame: DataFrame, batch: int) -> None:
        answers[batch] = [[row.k, row.n, row.total] for row in frame.collect()]

    streams.feed("s", rows(0))
    query = (
        holding(path / "go")(streams.sources())
        .writeStream.outputMode("update")
        .foreachBatch(collect)
        .option("checkpointLocation", str(streams.checkpoint()))
        .start()
    )
    try:
        for batch in range(argument["batches"]):
            if batch:
                streams.feed("s", rows(batch))
            during.append(wait_for(spark, count=2, busy=2))
            (path / "go" / str(batch)).touch()
            query.processAllAvailable()
            between.append(wait_for(spark, count=1, busy=0))
        progress = [json.loads(p.json) for p in query.recentProgress]
    finally:
        query.stop()
    reloads = sum(p["stateOperators"][0]["customMetrics"]["laminaReloads"] for p in progress if p["stateOperators"])
    print(json.dumps({"answers": answers, "during": during, "between": between, "reloads": reloads}))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
