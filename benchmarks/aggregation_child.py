"""One run of the aggregation query with one state store, count, max and sum per key into a sink that drops the rows; or
of the same rows without a state."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks import session
from benchmarks.processes import processor_s
from benchmarks.rounds import print_result
from benchmarks.stream import KEY_PAD, SOURCE, GatedQuery
from benchmarks.variants import STATELESS


def keyed(rows: DataFrame) -> DataFrame:
    """Rows with keys of 40 bytes."""
    return rows.select(sql.lpad(sql.col("k").cast("string"), len(KEY_PAD), KEY_PAD).alias("key"), "v")


def aggregate(rows: DataFrame) -> DataFrame:
    """The query: 40-byte keys, 32-byte values."""
    grouped = keyed(rows).groupBy("key")
    return grouped.agg(sql.count("*").alias("n"), sql.max("v").alias("top"), sql.sum("v").alias("total"))


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
    partitions = request.get("partitions", session.PARTITIONS)
    spark = session.start(request["variant"], driver_memory=request["driver_memory"], partitions=partitions)
    jvm = session.jvm_pid(spark)
    checkpoint = Path(request["checkpoint"])
    first = request["preload"] + request["warmup"]
    last = first + request["timed"]
    source = spark.readStream.format(SOURCE).options(**options(request)).load()
    stateless = request["variant"] == STATELESS
    query = GatedQuery(
        spark,
        keyed(source).repartition(partitions, "key") if stateless else aggregate(source),
        mode="append" if stateless else "update",
        checkpoint=checkpoint,
        timed=range(first, last),
    )
    query.process(request["preload"])
    query.process(first)
    gc, written = session.gc_millis(spark), session.directory_bytes(checkpoint / "state")
    used = [processor_s(jvm), processor_s(jvm, kernel=True)]
    query.process(last)
    used += [processor_s(jvm), processor_s(jvm, kernel=True)]
    gc, after = session.gc_millis(spark) - gc, session.directory_bytes(checkpoint / "state")
    resident = session.resident(spark)
    progress = query.progress()
    timed = [progress[batch] for batch in range(first, last)]
    query.process(last + 1)
    result: dict[str, Any] = {
        "digest": query.digest(),
        "add_batch_ms": [p["durationMs"]["addBatch"] for p in timed],
        "trigger_ms": [p["durationMs"]["triggerExecution"] for p in timed],
        "processor_ms": {role: (used[2][role] - used[0][role]) * 1000 / len(timed) for role in used[0]},
        "kernel_ms": {role: (used[3][role] - used[1][role]) * 1000 / len(timed) for role in used[0]},
        "preload_ms": sum(progress[batch]["durationMs"]["addBatch"] for batch in range(request["preload"])),
        "gc_ms_a_batch": gc / len(timed),
        "bytes_a_batch": (after["commits"] - written["commits"]) / len(timed),
        "segment_bytes_a_batch": (after["segments"] - written["segments"]) / len(timed),
        "resident_bytes": resident,
    }
    if not stateless:
        states = [p["stateOperators"][0] for p in timed]
        result |= {
            "commit_ms": statistics.median(state["commitTimeMs"] for state in states) / partitions,
            "updated_rows": statistics.mean(state["numRowsUpdated"] for state in states),
            "state_rows": states[-1]["numRowsTotal"],
            "last_metrics": states[-1].get("customMetrics", {}),
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
