"""A cluster whose engines start with its executors: prints how many there are before any query, and what two queries
gave, of which the first one sets something else of the engine than the application: `python plugin_query.py <JSON>`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.machine import descendants
from lamina.settings import PREFIX
from lamina.spark.configure import PLUGIN, PLUGINS_KEY
from tests.spark.programs import program_session

EXECUTORS = 2
PATIENCE_S = 120.0


def engines(spark: SparkSession) -> list[int]:
    """Processes of the engines below the driver's JVM."""
    assert spark.sparkContext._jvm is not None
    driver = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    return [pid for pid, command in descendants(driver).items() if command.rstrip().endswith("-m lamina.engine")]


def total(spark: SparkSession, checkpoint: str) -> int:
    """The sum over all keys that two batches counted."""
    found: list[int] = []

    def collect(frame: DataFrame, _: int) -> None:
        found.append(sum(row["count"] for row in frame.collect()))

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    query = numbers.selectExpr("value % 5 as k").groupBy("k").count().writeStream.outputMode("complete")
    started = query.foreachBatch(collect).option("checkpointLocation", checkpoint).start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < 2 and time.monotonic() < deadline and started.isActive:
            time.sleep(0.1)
    finally:
        started.stop()
    return found[1]


def main(argument: dict[str, Any]) -> None:
    spark = program_session(f"local-cluster[{EXECUTORS},1,1024]", argument["jar"], {PLUGINS_KEY: PLUGIN})
    spark.sparkContext.setLogLevel("OFF")
    deadline = time.monotonic() + PATIENCE_S
    while len(engines(spark)) < EXECUTORS and time.monotonic() < deadline:
        time.sleep(0.1)
    before = engines(spark)
    key = PREFIX + "engine.connections"
    spark.conf.set(key, "16")
    totals = [total(spark, f"{argument['path']}/one")]
    spark.conf.unset(key)
    totals.append(total(spark, f"{argument['path']}/two"))
    print(json.dumps({"before": before, "totals": totals, "after": engines(spark)}))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
