"""Writes tests/golden/spark-<minor>: the logs that Spark itself leaves in the checkpoints of small streaming queries.

Run with the Python of an environment that has the Spark minor in question, pandas, pyarrow and protobuf:

    python tests/unit/checkpoint/make_golden.py tests/golden

Only logs are kept, no state. The location of the checkpoint, which operator metadata v2 records, is replaced by
`file:/checkpoint`. The queries use Spark's built-in state store providers.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

STATE = "spark.sql.streaming.stateStore."
HDFS = {
    STATE + "providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    STATE + "checkpointFormatVersion": "1",
}
ROCKSDB = {
    STATE + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    STATE + "checkpointFormatVersion": "2",
}
BATCHES = 3
LOGS = ("metadata", "offsets/*", "commits/*", "state/*/_metadata/**/*", "state/*/*/*/_metadata/schema",
        "state/*/*/_metadata/schema", "state/*/_stateSchema/**/*")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One query: what it is called, how it is built from its source, and what is set for it."""

    name: str
    query: Callable[[DataFrame], DataFrame]
    conf: dict[str, str]
    mode: str = "append"
    source_name: str | None = None
    fails_at: int | None = None
    extra: dict[str, str] = field(default_factory=dict)
    since: str = "4.2"
    once: bool = False  # "available now" never ends where processing time alone makes batches


def windows(rows: DataFrame) -> DataFrame:
    keys = (F.window("at", "5 minutes"), "carrier")
    return rows.groupBy(*keys).agg(F.count("*").alias("flights"), F.max("delay").alias("worst"))


def aggregation(rows: DataFrame) -> DataFrame:
    return windows(rows.withWatermark("at", "10 minutes"))


def join(rows: DataFrame) -> DataFrame:
    left = rows.select("carrier", F.col("at").alias("left_at"), "delay").withWatermark("left_at", "10 minutes")
    right = rows.select(F.col("carrier").alias("other"), F.col("at").alias("right_at")).withWatermark(
        "right_at", "10 minutes"
    )
    on = F.expr("carrier = other AND right_at >= left_at AND right_at <= left_at + INTERVAL 5 MINUTES")
    return left.join(right, on, "leftOuter")


def session_window(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "10 minutes").groupBy(F.session_window("at", "5 minutes"), "carrier").count()


def drop_duplicates(rows: DataFrame) -> DataFrame:
    return (
        rows.withColumnRenamed("carrier", "größe ✈ 𝛿")
        .withWatermark("at", "10 minutes")
        .dropDuplicates(["größe ✈ 𝛿", "at"])
    )


def limit(rows: DataFrame) -> DataFrame:
    return rows.limit(5)


def two_operators(rows: DataFrame) -> DataFrame:
    return windows(rows.withWatermark("at", "10 minutes").dropDuplicates(["carrier", "at"]))


def apply_in_pandas_with_state(rows: DataFrame) -> DataFrame:
    def count(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((seen,))
        yield pd.DataFrame({"carrier": [key[0]], "seen": [seen]})

    return rows.groupBy("carrier").applyInPandasWithState(
        count, "carrier string, seen long", "seen long", "append", GroupStateTimeout.NoTimeout
    )


class Counts(StatefulProcessor):
    """A value, a list and a map, each with time to live or without, and a timer: every kind of column family."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long")
        self.delays = handle.getListState("delays", "delay int", 3_600_000)
        self.by_minute = handle.getMapState("byMinute", "minute long", "n long", 3_600_000)

    def handleInputRows(  # noqa: N802
        self, key: Any, rows: Iterator[Row], timer_values: Any
    ) -> Iterator[Row]:
        count = self.seen.get()[0] if self.seen.exists() else 0
        for row in rows:
            count += 1
            self.delays.appendValue((row.delay,))
            self.by_minute.updateValue((row.at.minute,), (count,))
        self.seen.update((count,))
        yield Row(carrier=key[0], seen=count)

    def close(self) -> None:
        pass


def transform_with_state(rows: DataFrame) -> DataFrame:
    return rows.groupBy("carrier").transformWithState(Counts(), "carrier string, seen long", "append", "processingTime")


CASES = (
    Case("aggregation-hdfs-v1", aggregation, HDFS, "update"),
    Case("aggregation-rocksdb-v2", aggregation, ROCKSDB, "update"),
    Case("aggregation-failed-batch", aggregation, ROCKSDB, "update", fails_at=2),
    Case("aggregation-logs-2-3", aggregation, ROCKSDB, "update", source_name="flights", extra={
        "spark.sql.streaming.offsetLog.formatVersion": "2",
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        "spark.sql.streaming.queryEvolution.enableSinkEvolution": "true",
    }),
    Case("join-2-hdfs-v1", join, HDFS),
    Case("join-2-rocksdb-v2", join, ROCKSDB),
    Case("join-3-rocksdb-v2", join, ROCKSDB, extra={"spark.sql.streaming.join.stateFormatVersion": "3"}),
    Case("join-4-rocksdb-v2", join, ROCKSDB, extra={"spark.sql.streaming.join.stateFormatVersion": "4"}, since="4.3"),
    Case("session-window-rocksdb-v2", session_window, ROCKSDB),
    Case("drop-duplicates-hdfs-v1", drop_duplicates, HDFS),
    Case("limit-rocksdb-v2", limit, ROCKSDB),
    Case("two-operators-rocksdb-v2", two_operators, ROCKSDB),
    Case("apply-in-pandas-rocksdb-v2", apply_in_pandas_with_state, ROCKSDB),
    Case("transform-with-state-rocksdb-v2", transform_with_state, ROCKSDB, once=True),
)  # fmt: skip


def write_source(directory: Path) -> None:
    directory.mkdir(parents=True)
    for batch in range(BATCHES):
        lines = [
            f'{{"carrier": "{carrier}", "at": "2013-01-01T{10 + batch}:0{minute}:00Z", "delay": {minute + batch}}}'
            for carrier in ("AA", "B6", "UA")
            for minute in range(4)
        ]
        path = directory / f"{batch}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_000_000_000 + batch, 1_000_000_000 + batch))


def run(spark: SparkSession, case: Case, source: Path, checkpoint: Path) -> None:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC", **case.conf, **case.extra}
    for key, value in conf.items():
        spark.conf.set(key, value)
    reader = spark.readStream.schema("carrier string, at timestamp, delay int").option("maxFilesPerTrigger", 1)
    if case.source_name is not None:
        reader = reader.name(case.source_name)

    def sink(frame: DataFrame, batch: int) -> None:
        frame.collect()
        if batch == case.fails_at:
            raise RuntimeError("the batch that is meant to fail")

    writer = case.query(reader.json(str(source))).writeStream
    writer = writer.format("noop") if case.fails_at is None else writer.foreachBatch(sink)
    if case.source_name is not None:
        writer._jwrite.name("out")  # the name of the sink; Python has no method for it
    writer = writer.trigger(once=True) if case.once else writer.trigger(availableNow=True)
    query = writer.outputMode(case.mode).option("checkpointLocation", str(checkpoint)).start()
    try:
        query.awaitTermination()
    except Exception:
        if case.fails_at is None:
            raise
    finally:
        for key in case.extra:
            spark.conf.unset(key)


def keep_logs(checkpoint: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    location = str(checkpoint).encode()
    for pattern in LOGS:
        for path in checkpoint.glob(pattern):
            if path.is_file() and not path.name.startswith("."):
                kept = target / path.relative_to(checkpoint)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(path.read_bytes().replace(location, b"/checkpoint"))


def main() -> None:
    golden = Path(sys.argv[1])
    wanted = set(sys.argv[2:])
    work = Path(tempfile.mkdtemp())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "1h")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    minor = ".".join(spark.version.split(".")[:2])
    try:
        write_source(work / "source")
        for case in CASES:
            if minor < case.since or (wanted and case.name not in wanted):
                continue
            run(spark, case, work / "source", work / case.name)
            keep_logs(work / case.name, golden / f"spark-{minor}" / case.name)
            print(case.name, flush=True)
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
