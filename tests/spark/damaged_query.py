"""A query with `foreachBatch` that restarts on damaged files and is stopped while its batch fails.

Writes all that a terminal shows to its standard output, and as the last line what `query.exception()` says.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.conftest import shim_jar
from tests.spark.programs import program_session
from tests.spark.streams import wait_for
from tests.spark.test_restarts import unload_all


def started(spark: SparkSession, directory: Path, write: object) -> StreamingQuery:
    """Adds a batch of input, and starts the query on it."""
    source = directory / "in"
    source.mkdir(exist_ok=True)
    (source / f"{len(list(source.iterdir()))}.json").write_text('{"k": "a"}\n{"k": "b"}\n', encoding="utf-8")
    counts = spark.readStream.schema("k string").json(str(source)).groupBy("k").count()
    writer = counts.writeStream.outputMode("complete").foreachBatch(write)  # type: ignore[arg-type]
    return writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()


def stopped_while_it_fails(spark: SparkSession, directory: Path) -> StreamingQuery:
    """A query whose batch fails, with the error of an action, after it was told to stop."""
    failing, known = threading.Event(), threading.Event()
    queries: list[StreamingQuery] = []

    def write(frame: DataFrame, _: int) -> None:
        try:
            frame.collect()
        finally:
            failing.set()
            known.wait()
            wait_for(lambda: not queries[0].isActive)

    queries.append(started(spark, directory, write))
    known.set()
    failing.wait()
    queries[0].stop()
    return queries[0]


def main(directory: Path) -> None:
    """Commits a batch, damages its files, and runs the next one."""
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    # with the stores unloaded, the restarted query reads its files
    spark = program_session("local[2]", shim_jar(), {"spark.sql.streaming.stateStore.lamina.heap.handOverMs": "0"})
    started(spark, directory, lambda frame, _: frame.collect()).awaitTermination()
    unload_all(spark)
    for path in (directory / "checkpoint" / "state").rglob("*.lam"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    error = stopped_while_it_fails(spark, directory).exception()
    spark.stop()
    print(json.dumps(None if error is None else str(error)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
