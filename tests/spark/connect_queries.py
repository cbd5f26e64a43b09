"""Stateful queries on lamina through Spark Connect, in a process of their own: `python connect_queries.py <folder>`.

Runs each of them over two batches, and again over two more. Their rows come in files below `<folder>/<query>/rows`:
`foreachBatch` would need one more Python process for each run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import lamina
from tests.spark import test_operators as operators
from tests.spark import test_transform_with_state as transforms
from tests.spark.jvms import ONE_COMPILER
from tests.spark.streams import BACKEND, HDFS, OF_MODE, ROCKSDB, Query, Streams


def with_rows(frames: operators.Frames) -> DataFrame:
    keyed = transforms.events(frames)
    return keyed.transformWithState(transforms.WithRows(), transforms.OUTPUT, "Append", "EventTime")


def with_pandas(frames: operators.Frames) -> DataFrame:
    keyed = transforms.events(frames)
    return keyed.transformWithStateInPandas(transforms.WithPandas(), transforms.OUTPUT, "Append", "EventTime")


# Name, which is the row of the README's table, query in append mode, and the built-in provider to compare with.
QUERIES: list[tuple[str, Query, str]] = [
    ("windows", operators.windows, HDFS),
    ("session windows", operators.sessions, HDFS),
    ("dropDuplicates", operators.comparable("duplicates", operators.duplicates), HDFS),
    ("outer join", operators.join("left_outer"), HDFS),
    ("applyInPandasWithState", operators.pandas_state_in_append_mode, HDFS),
    ("transformWithState", with_rows, ROCKSDB),
    ("transformWithStateInPandas", with_pandas, ROCKSDB),
]
RUNS = 2


def feed(streams: Streams, name: str, run: int) -> None:
    """The two batches that a run of a query reads."""
    for batch in (2 * run, 2 * run + 1):
        for source in ("l", "r") if "join" in name else ("s",):
            streams.feed(source, operators.rows(batch + 100 * (source == "r"), 10 + 4 * batch, 30))


def main(root: Path) -> None:
    settings = {
        **ONE_COMPILER,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "FATAL",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.remote("local[2]").config(map=settings)
    spark = lamina.configure(builder, BACKEND, changelog=bool(OF_MODE), rocksdb_materialize_every=1).getOrCreate()
    for name, query, _ in QUERIES:
        streams = Streams(spark, root / name)
        for run in range(RUNS):
            feed(streams, name, run)
            writer = query(streams.sources()).writeStream.format("json").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(streams.checkpoint()))
            running = writer.start(str(streams.path / "rows" / str(run)))
            if not running.awaitTermination(240):
                raise TimeoutError(f"{name} did not end")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
