"""One query that runs on for a while, with a look at its state directory each second."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from benchmarks import session
from benchmarks.aggregation_child import aggregate
from benchmarks.changelog_space import SLIDING
from benchmarks.operator_queries import Timeline, events
from benchmarks.rounds import print_result
from benchmarks.stream import SOURCE, GatedQuery


def sliding(rows: DataFrame) -> DataFrame:
    """Each row is in ten windows, and each window leaves the state some seconds after its end."""
    late = rows.withWatermark("t", "2 seconds")
    return late.groupBy(sql.window("t", "10 seconds", "1 second"), "key").agg(sql.count("*").alias("n"))


def directory(path: Path) -> tuple[int, int, int]:
    """Bytes of all files below a directory, bytes of log objects, and how many of these there are."""
    total, log, objects = 0, 0, 0
    for file in path.rglob("*"):
        try:
            size = file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
        total += size
        if file.suffix == ".log":
            log, objects = log + size, objects + 1
    return total, log, objects


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Bytes over time."""
    spark = session.start(
        request["variant"],
        driver_memory=request["driver_memory"],
        partitions=request["partitions"],
        conf=request["conf"],
    )
    count = 1 + request["seconds"] * 1000 // request["every_ms"]
    if request["workload"] == SLIDING:
        timeline = Timeline(request["rows"], 30, preload=1, warmup=count, timed=1, quiet=1)
        rows, mode = sliding(events(timeline.source(spark), timeline, late=2)), "append"
    else:
        given = {"keys": request["keys"], "rows": request["rows"], "preload": 1, "steady": count, "closing": 1}
        source = spark.readStream.format(SOURCE).options(**{name: str(value) for name, value in given.items()}).load()
        rows, mode = aggregate(source, request), "update"
    checkpoint = Path(request["checkpoint"])
    query = GatedQuery(spark, rows, mode=mode, checkpoint=checkpoint, timed=range(sys.maxsize - 1))
    query.process(1)
    started, looked, batches = time.monotonic(), 0.0, 1
    samples: list[tuple[int, int, int]] = []
    while (now := time.monotonic() - started) < request["seconds"]:
        if now - looked >= 1:
            samples.append(directory(checkpoint / "state"))
            looked = now
        due = request["every_ms"] / 1000 * batches
        if now >= due:
            batches += 1
            query.process(batches)
        else:
            time.sleep(min(due - now, 0.1))
    samples.append(directory(checkpoint / "state"))
    progress = query.progress()
    state = progress[max(progress)]["stateOperators"][0]
    query.stop()
    spark.stop()
    total, log, objects = zip(*samples, strict=True)
    return {
        "bytes": total, "log_bytes": log, "objects": objects, "batches": batches,
        "state_rows": state["numRowsTotal"],
    }  # fmt: skip


if __name__ == "__main__":
    print_result(run(json.loads(sys.argv[1])))
