"""Several queries at once over the same files, on a cluster: `python cluster_queries.py <JSON>`.

Of some of them each batch is executed twice, by two actions of `foreachBatch`, with adaptive execution or without it.
Prints one JSON object: the answers of each query and batch, by action, and how the plans of the actions began.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from tests.spark.programs import program_session
from tests.spark.streams import BEHIND_BARRIER, Streams
from tests.spark.test_backends import totals

ADAPTIVE = "spark.sql.adaptive.enabled"


def session(argument: dict[str, Any]) -> SparkSession:
    settings = {
        **BEHIND_BARRIER,
        **argument["settings"],
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(argument["partitions"]),
        # nothing begins on one executor alone
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }
    spark = program_session(argument["master"], argument["jar"], settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Answers:
    """What the actions of each batch gave."""

    def __init__(self, adaptive: bool, again: bool) -> None:
        self._adaptive = adaptive
        self._again = again
        self.totals: dict[int, dict[str, tuple[int, int]]] = {}
        self.by_count: dict[int, dict[int, int]] = {}
        self.plans: set[str] = set()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.totals[batch] = {row.k: (row.n, row.total) for row in frame.collect()}
        if self._again:
            # the user's own shuffle, above the query's
            frame.sparkSession.conf.set(ADAPTIVE, str(self._adaptive).lower())
            counted = frame.groupBy("n").agg(f.count("*").alias("keys"))
            self.by_count[batch] = {row.n: row["keys"] for row in counted.collect()}
            self.plans.add(counted._jdf.queryExecution().executedPlan().nodeName())


def start(streams: Streams, name: str, answers: Callable[[DataFrame, int], None]) -> StreamingQuery:
    return (
        totals(streams.sources())
        .writeStream.outputMode("complete")
        .foreachBatch(answers)
        .option("checkpointLocation", str(streams.path / name))
        .trigger(availableNow=True)
        .start()
    )


def main(argument: dict[str, Any]) -> None:
    spark = session(argument)
    streams = Streams(spark, Path(argument["path"]))
    answers = {name: Answers(**kind) for name, kind in argument["queries"].items()}
    running = [start(streams, name, of) for name, of in answers.items()]
    for query in running:
        query.awaitTermination()
    found = {
        name: {"totals": of.totals, "by_count": of.by_count, "plans": sorted(of.plans)} for name, of in answers.items()
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
