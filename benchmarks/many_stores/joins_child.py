"""One session in which 64 tasks of a join with four stores each meet a storage that is far away or near, in turns."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import session
from benchmarks.many_stores.latency import ENGINE, MAINTENANCE, Distance
from benchmarks.operator_queries import OPERATORS, Timeline
from benchmarks.processes import ms_a_batch, processor_s
from benchmarks.rounds import print_result
from benchmarks.stream import GatedQuery
from benchmarks.variants import LAMINA
from lamina.settings import PREFIX

TIMES = {"add_batch_ms": "addBatch", "trigger_ms": "triggerExecution"}
SETTINGS = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # what is measured is the storage
    PREFIX + "storage.cache.maxBytes": "0",
    # a query that comes back finds no table
    PREFIX + "heap.handOverMs": "0",
}


class Join:
    """The query, which can be stopped and started again from its checkpoint."""

    def __init__(self, spark: SparkSession, timeline: Timeline, checkpoint: Path) -> None:
        self._spark = spark
        self._timeline = timeline
        self._checkpoint = checkpoint
        self.batches = 0
        self._query = self._started()

    def _started(self) -> GatedQuery:
        rows = OPERATORS["join"].query(self._timeline.source(self._spark), self._timeline)
        return GatedQuery(
            self._spark, rows, mode="append", checkpoint=self._checkpoint, timed=range(self._timeline.batches)
        )

    def process(self, count: int) -> list[dict[str, Any]]:
        """Runs so many batches; Spark's progress of each."""
        wanted = range(self.batches, self.batches + count)
        self.batches = wanted.stop
        self._query.process(wanted.stop)
        # a query that has just started may have looked for rows before they were offered, and count as done
        while wanted[-1] not in (progress := self._query.progress()):
            self._query.process(wanted.stop)
        return [progress[batch] for batch in wanted]

    def restart(self) -> None:
        """Stops the query, closes its stores, and starts it again."""
        self.stop()
        session.jvm(self._spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        self._query = self._started()

    def stop(self) -> None:
        self._query.stop()

    def processor_s(self) -> dict[str, float]:
        """Processor time of all processes since their start."""
        return processor_s(session.jvm_pid(self._spark))


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Builds the state, and then does what `action` says."""
    distance = Distance(request["distance"])
    # near batches must not do the merges that far ones have no time for; before a restart there is time for all
    distance.set(MAINTENANCE, 0 if request["action"] == "opens" else request["latency_s"])
    spark = session.start(
        LAMINA,
        driver_memory=request["driver_memory"],
        master=f"local[{request['cores']}]",
        partitions=request["partitions"],
        conf=SETTINGS,
    )
    batches, unmeasured = request.get("batches", 1), request.get("unmeasured", 0)
    measured = request["pairs"] * 2 * batches
    timed = request["warmup"] + unmeasured * batches + measured
    timeline = Timeline(request["rows"], request["seconds"], preload=1, warmup=0, timed=timed, quiet=0)
    join = Join(spark, timeline, Path(request["checkpoint"]))
    join.process(1)
    state = join.process(request["warmup"])[-1]["stateOperators"][0]
    for _ in range(unmeasured):
        join.restart()
        join.process(batches)
    before = join.processor_s()
    action = {"batches": one_batch, "opens": opens}[request["action"]]
    found: dict[str, dict[str, list[Any]]] = {"near": {}, "far": {}}
    for number in range(request["pairs"]):
        for place in ("near", "far") if number % 2 == 0 else ("far", "near"):
            distance.set(ENGINE, request["latency_s"] if place == "far" else 0)
            for part, value in action(join, distance, request).items():
                found[place].setdefault(part, []).append(value)
    after = join.processor_s()
    result = {
        **found,
        "processor_ms": ms_a_batch(before, after, measured),
        "stores": state["numStateStoreInstances"],
        "state_rows": state["numRowsTotal"],
        "state_bytes": state["memoryUsedBytes"],
        "changed_rows": state["numRowsUpdated"] + state["numRowsRemoved"],
    }
    join.stop()
    spark.stop()
    return result


def one_batch(join: Join, distance: Distance, _: dict[str, Any]) -> dict[str, Any]:
    """One batch of a query that runs."""
    distance.requests()
    (progress,) = join.process(1)
    return {**times([progress]), "requests": distance.requests()}


def opens(join: Join, distance: Distance, request: dict[str, Any]) -> dict[str, Any]:
    """The first batch after a restart, and what the batches after it take."""
    # batches without a pause write faster than eight workers merge, and a restart has none of them waiting
    time.sleep(request["pause_s"])
    join.restart()
    distance.requests()
    started = join.processor_s()
    (first,) = join.process(1)
    requests = distance.requests()
    opened = join.processor_s()
    rest = request["batches"] - 1
    later = times(join.process(rest))
    usual = ms_a_batch(opened, join.processor_s(), rest)
    custom = first["stateOperators"][0]["customMetrics"]
    return {
        **times([first]),
        "requests": requests,
        "load_ms": custom["laminaLoadMs"],
        "opening_processor_ms": {role: took - usual[role] for role, took in ms_a_batch(started, opened).items()},
        **{f"later_{name}": took for name, took in later.items()},
    }


def times(progress: list[dict[str, Any]]) -> dict[str, float]:
    """Both times of batches, their medians."""
    return {name: statistics.median(one["durationMs"][key] for one in progress) for name, key in TIMES.items()}


if __name__ == "__main__":
    print_result(run(json.loads(sys.argv[1])))
