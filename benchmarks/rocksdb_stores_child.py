"""Several joins at once in one session, with many stores each: what its processes hold after each round."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import session
from benchmarks.operator_queries import OPERATORS, Timeline
from benchmarks.processes import held
from benchmarks.rounds import print_result
from lamina.store.tables.local_disk import used_bytes


def run(request: dict[str, Any]) -> dict[str, Any]:
    """All rounds, in each of which every query does one batch."""
    folder, rounds = Path(request["folder"]), request["rounds"]
    local = folder / "local"
    local.mkdir()
    conf = {
        **request["conf"],
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={local}",
        "spark.local.dir": str(local),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    spark = session.start(
        request["variant"], driver_memory=request["driver_memory"], partitions=request["partitions"], conf=conf
    )
    pid, gate = session.jvm_pid(spark), session.jvm(spark).lamina.benchmarks.workload.KeyGate
    operator, rows = OPERATORS["join"], request["rows_a_partition"] * request["partitions"]
    timeline = Timeline(rows // operator.sides, seconds=1, preload=1, warmup=0, timed=rounds, quiet=0)
    running: list[StreamingQuery] = [
        operator.query(timeline.source(spark), timeline)
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
        .start()
        for number in range(request["queries"])
    ]
    samples, disk = [], []
    for number in range(rounds):
        gate.release(number + 1)
        for query in running:
            query.processAllAvailable()
        samples.append({role: asdict(one) for role, one in held(pid).items()})
        disk.append(used_bytes(str(local)))
    last = [query.lastProgress for query in running]
    states = [one["stateOperators"][0] for one in last if one is not None]
    for query in running:
        query.stop()
    spark.stop()
    return {
        "samples": samples,
        "disk": disk,
        "stores": sum(state["numStateStoreInstances"] for state in states),
        "state_rows": sum(state["numRowsTotal"] for state in states),
    }


if __name__ == "__main__":
    print_result(run(json.loads(sys.argv[1])))
