"""Builds a chain of versions with one state store, or restores the last version of one in a fresh JVM."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import session
from benchmarks.rounds import print_result
from benchmarks.scala import benchmark_jar
from benchmarks.variants import HDFS, shim_jar

WARM_KEYS, WARM_ROWS, WARM_INCREMENTS = 200_000, 20_000, 6


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked: `build` or `restore`."""
    variant = request["variant"]
    jars = [benchmark_jar("micro", [shim_jar()]), benchmark_jar("restore", [benchmark_jar("micro", [shim_jar()])])]
    spark = session.start(variant, driver_memory=request["driver_memory"], extra_jars=jars)
    # the chain is driven without a query: nobody would answer reports, and no maintenance may run into the clock
    spark.conf.set("spark.sql.streaming.stateStore.commitValidation.enabled", "false")
    spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1000")
    benchmark = session.jvm(spark).lamina.benchmarks.restore.RestoreBenchmark
    classic = spark._jsparkSession
    checkpoint, increments = request["checkpoint"], request["increments"]

    def shape(keys: int, rows: int) -> Any:
        return benchmark.shape(session.PARTITIONS, keys, rows, variant != HDFS)

    whole = shape(request["keys"], request["rows"])
    if request["action"] == "build":
        ids = benchmark.build(classic, checkpoint, whole, increments)
        result: dict[str, Any] = {"ids": ids, "bytes": sum(session.directory_bytes(Path(checkpoint)).values())}
    else:
        if request["warm"]:
            # beside the chains: the parent removes it when nothing of this process can write there any more
            small = tempfile.mkdtemp(prefix="warm-", dir=Path(checkpoint).parent)
            ids = benchmark.build(classic, small, shape(WARM_KEYS, WARM_ROWS), WARM_INCREMENTS)
            _restore(benchmark, spark, small, shape(WARM_KEYS, WARM_ROWS), WARM_INCREMENTS + 1, ids, 3)
        result = _restore(benchmark, spark, checkpoint, whole, increments + 1, request["ids"], request["batches"])
        result["resident_bytes"] = session.resident(spark)
    spark.stop()
    return result


def _restore(
    benchmark: Any, spark: SparkSession, checkpoint: str, shape: Any, version: int, ids: str, batches: int
) -> dict[str, Any]:
    answer = benchmark.restore(spark._jsparkSession, checkpoint, shape, version, ids, batches)
    found: dict[str, Any] = json.loads(answer)
    return found


if __name__ == "__main__":
    print_result(run(json.loads(sys.argv[1])))
