"""One query with the changelog on or off, or on a built-in store, on files that are as slow as an object store."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks import session, slow_files
from benchmarks.aggregation_child import aggregate, options
from benchmarks.operator_queries import OPERATORS, Timeline
from benchmarks.rounds import print_result
from benchmarks.slow_files import Request, Trace
from benchmarks.stream import SOURCE, GatedQuery

NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


class SlowQuery:
    """A query whose checkpoint is on slow files, batch by batch."""

    def __init__(self, request: dict[str, Any]) -> None:
        folder = Path(request["folder"])
        traces = folder / "traces"
        traces.mkdir()
        self._spark = session.start(
            request["variant"],
            driver_memory=request["driver_memory"],
            extra_jars=[slow_files.jar()],
            master=request["master"],
            partitions=request["partitions"],
            conf={**slow_files.settings(traces, request["seed"]), **request["conf"], NO_DATA_BATCHES: "false"},
        )
        self._checkpoint = slow_files.url(folder / "checkpoint")
        self._trace = Trace(traces)
        self._done = 0
        self._query: GatedQuery | None = None

    def start(self, rows: DataFrame, mode: str) -> None:
        """Starts the query; its rows are dropped."""
        self._query = GatedQuery(
            self._spark, rows, mode=mode, checkpoint=self._checkpoint, timed=range(sys.maxsize - 1)
        )

    @property
    def spark(self) -> SparkSession:
        """Its session."""
        return self._spark

    def batches(self, count: int, scale: float = 0.0) -> tuple[list[dict[str, Any]], list[Request]]:
        """Spark's progress of the next batches, and the requests meanwhile; a PUT takes `scale` times that of S3."""
        assert self._query is not None
        slow_files.set_scale(session.jvm(self._spark), scale)
        self._trace.unread()
        self._query.process(self._done + count)
        slow_files.set_scale(session.jvm(self._spark), 0.0)
        progress = self._query.progress()
        found = [progress[batch] for batch in range(self._done, self._done + count)]
        self._done += count
        return found, self._trace.unread()

    def stop(self) -> None:
        """Ends the query and the session."""
        assert self._query is not None
        self._query.stop()
        self._spark.stop()


def durable_ms(progress: dict[str, Any]) -> float:
    """From the start of a batch's processing until Spark has committed it: then its state is durable.

    The tasks of all stores wait in `addBatch`; with durability level `executor` the commit entry waits, too.
    """
    took = progress["durationMs"]
    return float(took["addBatch"] + took["commitOffsets"])


def waits(request: dict[str, Any]) -> dict[str, Any]:
    """How long batches take on slow files, and then, in the same JVM, on files that take no time."""
    query = SlowQuery(request)
    source = query.spark.readStream.format(SOURCE).options(**options(request)).load()
    query.start(aggregate(source, request), "update")
    query.batches(request["preload"])
    query.batches(request["warmup"], request["scale"])
    slow, requests = query.batches(request["slow"], request["scale"])
    quick, _ = query.batches(request["quick"])
    states = [one["stateOperators"][0] for one in slow]
    result = {
        "slow_ms": [durable_ms(one) for one in slow],
        "quick_ms": [durable_ms(one) for one in quick],
        "puts": dict(slow_files.puts(requests)),
        "put_ms": [1000 * one.seconds for one in requests if one.operation == "PUT" and one.in_state],
        "updated_rows": sum(state["numRowsUpdated"] for state in states) / len(states),
        "commit_ms": [state["commitTimeMs"] for state in states],
    }
    query.stop()
    return result


def objects(request: dict[str, Any]) -> dict[str, Any]:
    """What a batch of a join writes."""
    timeline = Timeline(**request["timeline"])
    query = SlowQuery(request)
    operator = OPERATORS["join"]
    query.start(operator.query(timeline.source(query.spark), timeline), operator.mode)
    query.batches(timeline.preload)
    query.batches(timeline.warmup)
    puts, entries, updated = [], [], []
    for _ in timeline.timed_batches:
        (progress,), requests = query.batches(1)
        puts.append(dict(slow_files.puts(requests)))
        entries.append(sum(one.operation == "PUT" and not one.in_state for one in requests))
        updated.append(progress["stateOperators"][0]["numRowsUpdated"])
    result = {"puts": puts, "entries": entries, "updated_rows": updated}
    query.stop()
    return result


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print_result({"waits": waits, "objects": objects}[asked["action"]](asked))
