"""One run of an aggregation with one state store into a sink that drops the rows, or of the same rows without a state.

What a request leaves out is as `python -m benchmarks.aggregation` has it: count, max and sum per key, even keys, in
`local[2]`, with the checkpoint in local files.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks import session
from benchmarks.processes import ms_a_batch, processor_s
from benchmarks.rounds import print_result
from benchmarks.stream import KEY_PAD, SOURCE, GatedQuery
from benchmarks.upload_parts import part_bytes
from benchmarks.variants import STATELESS

ENDLESS = 10_000_000
"""Batches of a stream that time ends."""


def keyed(rows: DataFrame, request: dict[str, Any]) -> DataFrame:
    """Rows with keys of 40 bytes, and with `value_bytes` a text of so many characters, which compress to half.

    With `skew` the keys gather at the low ones: of all rows (1 / keys) ** (1 / skew) have the first one.
    """
    key = sql.col("k")
    if skew := request.get("skew"):
        key = sql.floor(sql.pow(key / request["keys"], sql.lit(skew)) * request["keys"])
    columns = [sql.lpad(key.cast("string"), len(KEY_PAD), KEY_PAD).alias("key"), sql.col("v")]
    if characters := request.get("value_bytes"):
        words = [sql.lpad(sql.hex(sql.xxhash64("v", sql.lit(n))), 16, "0") for n in range(-(-characters // 16))]
        columns.append(sql.substring(sql.concat(*words), 1, characters).alias("text"))
    return rows.select(*columns)


def aggregate(rows: DataFrame, request: dict[str, Any]) -> DataFrame:
    """The query, whose values have 32 bytes; or the greatest text of each key; or twelve aggregates of each key.

    All of them are the same in whatever order rows come.
    """
    v = sql.col("v")
    grouped = keyed(rows, request).groupBy("key")
    if request.get("value_bytes"):
        return grouped.agg(sql.count("*").alias("n"), sql.max("text").alias("top"))
    found = [sql.count("*").alias("n"), sql.max(v).alias("top"), sql.sum(v).alias("total")]
    if request.get("dozen"):
        found += [sql.min(v).alias("low"), sql.sum(v * v).alias("squares"), sql.count_if(v % 2 == 0).alias("even")]
        found += [sql.bit_and(v).alias("all"), sql.bit_or(v).alias("any"), sql.bit_xor(v).alias("parity")]
        rest = v % 1000
        found += [sql.min(rest).alias("rest_low"), sql.max(rest).alias("rest_top"), sql.sum(rest).alias("rests")]
    return grouped.agg(*found)


def options(request: dict[str, Any]) -> dict[str, str]:
    """The source's options; `steady` of the source covers warm-up and timed batches."""
    timed = ENDLESS if request.get("minutes") else request["timed"]
    return {
        "keys": str(request["keys"]),
        "rows": str(request["rows"]),
        "preload": str(request["preload"]),
        "steady": str(request["warmup"] + timed),
        "closing": str(request["closing"]),
    }


def start(request: dict[str, Any]) -> SparkSession:
    """The session that a request asks for."""
    return session.start(
        request["variant"],
        driver_memory=request["driver_memory"],
        extra_jars=[Path(jar) for jar in request.get("jars", ())],
        master=request.get("master", "local[2]"),
        partitions=request.get("partitions", session.PARTITIONS),
        conf=request.get("conf"),
    )


def rates(timed: list[dict[str, Any]], rows: int) -> dict[str, float]:
    """Rows a second over all batches, and over those that ended in the first and in the last third of the time.

    Args:
        timed: Spark's progress of each batch.
        rows: of a batch.
    """
    began = datetime.fromisoformat(timed[0]["timestamp"].replace("Z", "+00:00"))
    ends = []
    for one in timed:
        started = datetime.fromisoformat(one["timestamp"].replace("Z", "+00:00"))
        ends.append((started - began).total_seconds() + one["durationMs"]["triggerExecution"] / 1000)
    third = ends[-1] / 3
    return {
        "all": len(ends) * rows / ends[-1],
        "first third": sum(end <= third for end in ends) * rows / third,
        "last third": sum(end > 2 * third for end in ends) * rows / third,
    }


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Preload, warm up, time, digest."""
    spark = start(request)
    jvm = session.jvm_pid(spark)
    checkpoint, minutes = request["checkpoint"], request.get("minutes")
    first = request["preload"] + request["warmup"]
    last = first + (ENDLESS if minutes else request["timed"])
    query = started(request, spark, timed=range(first, last))
    query.process(request["preload"])
    query.process(first)
    state = Path(checkpoint, "state")
    gc, written = session.gc_millis(spark), session.directory_bytes(state)
    parts = part_bytes(state) if request.get("parts") else {}
    used, sizes = [processor_s(jvm), processor_s(jvm, kernel=True)], []
    if minutes:
        query.process_for(minutes * 60)
    elif every_s := request.get("every_s"):
        for batch in range(first, last):
            due = time.monotonic() + every_s
            query.process(batch + 1)
            time.sleep(max(0.0, due - time.monotonic()))
    elif request.get("each"):
        total = sum(written.values())
        for batch in range(first, last):
            query.process(batch + 1)
            grown = sum(session.directory_bytes(state).values())
            sizes.append(grown - total)
            total = grown
    else:
        query.process(last)
    used += [processor_s(jvm), processor_s(jvm, kernel=True)]
    gc, after = session.gc_millis(spark) - gc, session.directory_bytes(state)
    grown_parts = part_bytes(state) if parts else {}
    resident = session.resident(spark)
    progress = query.progress()
    timed = [progress[batch] for batch in range(first, min(last, max(progress) + 1))]
    if not minutes:
        query.process(last + 1)
    result: dict[str, Any] = {
        "digest": query.digest(),
        "add_batch_ms": [p["durationMs"]["addBatch"] for p in timed],
        "trigger_ms": [p["durationMs"]["triggerExecution"] for p in timed],
        "processor_ms": ms_a_batch(used[0], used[2], len(timed)),
        "kernel_ms": ms_a_batch(used[1], used[3], len(timed)),
        "gc_ms_a_batch": gc / len(timed),
        "bytes_a_batch": (after["commits"] - written["commits"]) / len(timed),
        "segment_bytes_a_batch": (after["segments"] - written["segments"]) / len(timed),
        "resident_bytes": resident,
        "sizes": sizes,
        "part_bytes": {part: (size - parts[part]) / len(timed) for part, size in grown_parts.items()},
    }
    if minutes:
        result["rows_per_s"] = rates(timed, request["rows"])
    if request["variant"] != STATELESS:
        states = [p["stateOperators"][0] for p in timed]
        result |= {
            "updated_rows": statistics.mean(state["numRowsUpdated"] for state in states),
            "state_rows": states[-1]["numRowsTotal"],
            "last_metrics": states[-1].get("customMetrics", {}),
            "checkpoints": [
                {
                    "commit_ms": state["commitTimeMs"],
                    "durable_ms": state.get("customMetrics", {}).get("laminaDurableMs", 0),
                    "waited_ms": state.get("customMetrics", {}).get("laminaMemoryWaitMs", 0),
                }
                for state in states
            ],
        }
    if request.get("heap"):
        result["heap_bytes"] = session.heap_after_collection(spark)
    query.stop()
    spark.stop()
    return result


def started(request: dict[str, Any], spark: SparkSession, timed: range = range(0)) -> GatedQuery:
    """The query of a request, whose batches are all digested but for the `timed` ones."""
    source = spark.readStream.format(SOURCE).options(**options(request)).load()
    if request["variant"] == STATELESS:
        partitions = request.get("partitions", session.PARTITIONS)
        rows, mode = keyed(source, request).repartition(partitions, "key"), "append"
    else:
        rows, mode = aggregate(source, request), "update"
    return GatedQuery(spark, rows, mode=mode, checkpoint=request["checkpoint"], timed=timed)


def build(request: dict[str, Any]) -> dict[str, Any]:
    """The state alone.

    With `rest_s`, maintenance has so many seconds after the preload, and again in the middle of the warm-up.
    """
    spark = start(request)
    query = started(request, spark)
    for batches in (0, request["warmup"] // 2):
        query.process(request["preload"] + batches)
        time.sleep(request.get("rest_s", 0))
    query.process(request["preload"] + request["warmup"])
    query.stop()
    spark.stop()
    return {}


def restart(request: dict[str, Any]) -> dict[str, Any]:
    """The query goes on: how much longer its first batch takes, from the query's start, than those after it."""
    spark = start(request)
    times = [time.perf_counter()]
    query = started(request, spark)
    done = request["preload"] + request["warmup"]
    for batch in range(request["timed"]):
        query.process(done + batch + 1)
        times.append(time.perf_counter())
    first, *later = (end - begin for begin, end in pairwise(times))
    progress = query.progress()
    # a query without a state has none
    states = progress[min(progress)]["stateOperators"]
    names = ("laminaFetchedBytes", "laminaReusedBytes", "laminaLoadMs")
    query.stop()
    spark.stop()
    return {
        "restart_s": first - statistics.median(later),
        "batch_s": statistics.median(later),
        "metrics": {name: state["customMetrics"].get(name, 0) for state in states for name in names},
        "state_rows": sum(state["numRowsTotal"] for state in states),
    }


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Read the state back from the durable files of a finished run, and compute it anew from the source as a batch."""
    spark = start(request)
    state = spark.read.format("statestore").load(request["checkpoint"])
    restored = state.select("key.*", "value.*")
    source = spark.read.format(SOURCE).options(**options(request)).load()
    expected = aggregate(source, request)

    def digest(rows: DataFrame) -> str:
        hashed = rows.toDF("key", "n", "top", "total").select(sql.xxhash64("key", "n", "top", "total").alias("h"))
        count, xor = hashed.agg(sql.count("*"), sql.bit_xor("h")).collect()[0]
        return f"{count}:{xor & (2**64 - 1):x}"

    result = {"restored": digest(restored), "expected": digest(expected)}
    spark.stop()
    return result


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print_result({"run": run, "verify": verify, "build": build, "restart": restart}[asked["action"]](asked))
