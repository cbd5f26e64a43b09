"""One run of one stateful operator with one state store: preload, warm-up, timed batches, quiet ones, a drain."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import session
from benchmarks.operator_queries import OPERATORS, STATELESS, Timeline
from benchmarks.rounds import print_result
from benchmarks.scala import benchmark_jar
from benchmarks.stream import GatedQuery
from benchmarks.variants import HDFS, LAMINA, ROCKSDB

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
TIMED_HDFS = "org.apache.spark.sql.lamina.benchmarks.TimedHdfsProvider"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


def state_times(operator: Any, variant: str, opened_ms: float) -> dict[str, float]:
    """What a batch spent on state, in milliseconds, summed over the tasks.

    Args:
        operator: Spark's progress of the operator.
        variant: the state store.
        opened_ms: what the clock around the opens of Spark's heap store counted.
    """
    custom = operator["customMetrics"]
    times = {
        "updates": operator["allUpdatesTimeMs"],
        "removals": operator["allRemovalsTimeMs"] + custom.get("timerProcessingTimeMs", 0),
        "commit": operator["commitTimeMs"],
    }
    if variant == HDFS:
        times["opening"] = opened_ms
    elif variant == ROCKSDB:
        times["opening"] = custom["rocksdbLoadLatencyMs"]
    elif variant == LAMINA:
        times["opening"] = custom["laminaLoadMs"]
        # Its commit sends, and the end of the task waits for all stores at once: one wait for each task.
        times["durable"] = custom["laminaDurableMs"] * session.PARTITIONS / operator["numStateStoreInstances"]
    return times


def run(request: dict[str, Any]) -> dict[str, Any]:
    """The figures of each timed batch, the removals of the quiet ones, and the digest."""
    timeline = Timeline(**request["timeline"])
    operator = OPERATORS.get(request["operator"]) or STATELESS[int(request["operator"])]
    variant = request["variant"]
    jar = benchmark_jar("operators")
    spark = session.start(variant, driver_memory=request["driver_memory"], extra_jars=[jar])
    for key, value in {NO_DATA_BATCHES: "false", **operator.settings}.items():
        spark.conf.set(key, value)
    if variant == HDFS:
        spark.conf.set(PROVIDER, TIMED_HDFS)
    clock = session.jvm(spark).org.apache.spark.sql.lamina.benchmarks.OpenClock
    query = GatedQuery(
        spark,
        operator.query(timeline.source(spark), timeline),
        mode=operator.mode,
        checkpoint=Path(request["checkpoint"]),
        timed=timeline.timed_batches,
    )
    query.process(timeline.preload)
    query.process(timeline.timed_batches.start)
    gc = session.gc_millis(spark)
    opened = {timeline.timed_batches.start - 1: clock.millis()}
    for batch in timeline.timed_batches:
        query.process(batch + 1)
        opened[batch] = clock.millis()
    gc = session.gc_millis(spark) - gc
    query.process(timeline.batches)
    progress = query.progress()
    timed = [progress[batch] for batch in timeline.timed_batches]
    result: dict[str, Any] = {
        "digest": query.digest(),
        "add_batch_ms": [p["durationMs"]["addBatch"] for p in timed],
        "gc_ms_a_batch": gc / len(timed),
    }
    if timed[0]["stateOperators"]:
        states = {batch: progress[batch]["stateOperators"][0] for batch in progress}
        last = states[timeline.timed_batches[-1]]
        result |= {
            "state_ms": [
                state_times(states[batch], variant, opened[batch] - opened[batch - 1])
                for batch in timeline.timed_batches
            ],
            # of the quiet batches the first ones may still evict
            "idle_removal_ms": [
                states[batch]["allRemovalsTimeMs"] / states[batch]["numStateStoreInstances"]
                for batch in timeline.quiet_batches
                if states[batch]["numRowsRemoved"] == 0
            ],
            "stores": last["numStateStoreInstances"],
            "state_rows": last["numRowsTotal"],
            "updated_rows": last["numRowsUpdated"],
            "removed_rows": last["numRowsRemoved"],
            "last_metrics": dict(last["customMetrics"]),
        }
    query.stop()
    spark.stop()
    return result


if __name__ == "__main__":
    print_result(run(json.loads(sys.argv[1])))
