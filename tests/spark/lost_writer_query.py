"""A query on a local cluster that loses processes whose commits were accepted, and not written: `python
lost_writer_query.py <JSON>`.

Prints the error of the query as JSON, if it fails, and the batches that Spark's log has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.kill import processes
from tests.spark.programs import program_session
from tests.spark.streams import BEHIND_BARRIER, Streams
from tests.spark.test_backends import PREFIX, totals
from tests.spark.test_restarts import rows

NEVER_MS = str(20 * 60_000)
"""Within a test."""


def settings() -> dict[str, str]:
    """Log objects wait long for further commits, and batches for log objects."""
    return {
        **BEHIND_BARRIER,
        PREFIX + "retention.minAgeMs": str(24 * 3600_000),
        PREFIX + "changelog.batchDelayMs": NEVER_MS,
        PREFIX + "changelog.barrierTimeoutMs": str(10 * 3600_000),
    }


def wait_until_tasks_ended(spark: SparkSession, checkpoint: Path, batch: int, has_begun: Callable[[], bool]) -> None:
    """Waits until all that is left of a batch is its entry in Spark's commit log; `has_begun`: one of its jobs."""
    tracker, quiet_since, deadline = spark.sparkContext.statusTracker(), 0.0, time.monotonic() + 180
    while time.monotonic() < deadline:
        now = time.monotonic()
        quiet = has_begun() and not tracker.getActiveStageIds()
        quiet_since = (quiet_since or now) if quiet else 0.0
        if quiet and now - quiet_since > 5:
            assert not (checkpoint / "commits" / str(batch)).exists(), "nothing was waited for"
            return
        time.sleep(0.1)
    raise TimeoutError(f"batch {batch} does not end")


def lose(campaign: str, what: str) -> list[int]:
    """Kills an engine, an executor with its engine, or all executors; gives the engines that are to be killed later."""
    executors, engines = (processes.with_role(campaign, role) for role in (processes.EXECUTOR, processes.ENGINE))
    assert len(executors) >= 2 and len(engines) >= 2, processes.of(campaign)
    if what == "engine":
        processes.kill(engines[-1])
    elif what == "both":
        # or an engine would write what it has before it can be killed
        for engine in engines:
            os.kill(engine, signal.SIGSTOP)
        processes.kill(executors[-1])
        return engines
    else:
        for executor in executors:
            processes.kill(executor)
    return []


def main(argument: dict[str, Any]) -> None:
    spark = program_session("local-cluster[2,1,1024]", argument["jar"], settings())
    spark.sparkContext.setLogLevel("FATAL")
    path = Path(argument["path"])
    streams = Streams(spark, path)
    checkpoint = streams.checkpoint()
    streams.feed("s", rows(0))
    query = (
        totals(streams.sources())
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    error, left = "", list[int]()
    try:
        query.processAllAvailable()
        tracker, run = spark.sparkContext.statusTracker(), str(query.runId)
        before = set(tracker.getJobIdsForGroup(run))
        streams.feed("s", rows(1))
        # Spark has no stage either while it plans the batch
        wait_until_tasks_ended(spark, checkpoint, 1, lambda: bool(set(tracker.getJobIdsForGroup(run)) - before))
        left = lose(os.environ[processes.MARK], argument["lost"])
        while not (checkpoint / "commits" / "1").exists() and not query.awaitTermination(1):
            pass
    except StreamingQueryException as found:
        error = str(found)
    finally:
        for engine in left:
            processes.kill(engine)
        query.stop()
    batches = sorted(entry.name for entry in (checkpoint / "commits").glob("[0-9]*"))
    print(json.dumps({"error": error, "batches": batches}))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
