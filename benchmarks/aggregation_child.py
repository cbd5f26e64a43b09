"""One run of the aggregation query with one state store: count, max and sum per key into a sink that drops the rows."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks import session
from benchmarks.rounds import print_result
from benchmarks.stream import KEY_PAD, SOURCE, GatedQuery


def aggregate(rows: DataFrame) -> DataFrame:
    """The query: 40-byte keys, 32-byte values."""
    keyed = rows.select(sql.lpad(sql.col("k").cast("string"), len(KEY_PAD), KEY_PAD).alias("key"), "v")
    return keyed.groupBy("key").agg(sql.count("*").alias("n"), sql.max("v").alias("top"), sql.sum("v").alias("total"))


def options(request: dict[str, Any]) -> dict[str, str]:
    """The source's options; `steady` of the source covers warm-up and timed batches."""
    return {
        "keys": str(request["keys"]),
        "rows": str(request["rows"]),
        "preload": str(request["preload"]),
        "steady": str(request["warmup"] + request["timed"]),
        "closing": str(request["closing"]),
    }


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Preload, warm up, time, digest."""
    spark = session.start(request["variant"], driver_memory=request["driver_memory"])
    checkpoint = Path(request["checkpoint"])
    first = request["preload"] + request["warmup"]
    last = first + request["timed"]
    query = GatedQuery(
        spark,
        aggregate(spark.readStream.format(SOURCE).options(**options(request)).load()),
        mode="update",
        checkpoint=checkpoint,
        timed=range(first, last),
    )
    query.process(request["preload"])
    query.process(first)
    gc, written = session.gc_millis(spark), session.directory_bytes(checkpoint / "state")
    query.process(last)
    gc, after = session.gc_millis(spark) - gc, session.directory_bytes(checkpoint / "state")
    resident = session.resident(spark)
    progress = query.progress()
    timed = [progress[batch] for batch in range(first, last)]
    operator = timed[-1]["stateOperators"][0]
    query.process(last + 1)
    result = {
        "digest": query.digest(),
        "add_batch_ms": [p["durationMs"]["addBatch"] for p in timed],
        "trigger_ms": [p["durationMs"]["triggerExecution"] for p in timed],
        "commit_ms": statistics.median(p["stateOperators"][0]["commitTimeMs"] for p in timed) / session.PARTITIONS,
        "preload_ms": sum(progress[batch]["durationMs"]["addBatch"] for batch in range(request["preload"])),
        "updated_rows": statistics.mean(p["stateOperators"][0]["numRowsUpdated"] for p in timed),
        "state_rows": operator["numRowsTotal"],
        "gc_ms_a_batch": gc / len(timed),
        "bytes_a_batch": (after["commits"] - written["commits"]) / len(timed),
        "segment_bytes_a_batch": (after["segments"] - written["segments"]) / len(timed),
        "resident_bytes": resident,
        "last_metrics": operator.get("customMetrics", {}),
    }
    if request.get("heap"):
        result["heap_bytes"] = session.heap_after_collection(spark)
    query.stop()
    spark.stop()
    return result


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Read the state back from the durable files of a finished run, and compute it anew from the source as a batch."""
    spark: SparkSession = session.start(request["variant"], driver_memory=request["driver_memory"])
    state = spark.read.format("statestore").load(request["checkpoint"])
    restored = state.select("key.*", "value.*")
    source = spark.read.format(SOURCE).options(**options(request)).load()
    expected = aggregate(source)

    def digest(rows: DataFrame) -> str:
        hashed = rows.toDF("key", "n", "top", "total").select(sql.xxhash64("key", "n", "top", "total").alias("h"))
        count, xor = hashed.agg(sql.count("*"), sql.bit_xor("h")).collect()[0]
        return f"{count}:{xor & (2**64 - 1):x}"

    result = {"restored": digest(restored), "expected": digest(expected)}
    spark.stop()
    return result


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print_result(verify(asked) if asked["action"] == "verify" else run(asked))
