"""Every stock operator gives on lamina, batch by batch and across a restart, what it gives on a built-in provider.

A restart restores all state from files: `run_from_files` drops what is in memory, and counts the loads.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyspark
import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.streams import HDFS, LAMINA, ROCKSDB, Query, Run, Streams, configured
from tests.spark.test_restarts import unload_all
from tests.spark.test_rows import NO_HAND_OVER

Frames = dict[str, DataFrame]


def rows(seed: int, minute: int, count: int = 60) -> list[dict[str, Any]]:
    """Events around a minute: few keys, some null, some late, some with letters that are not ASCII."""
    draw = random.Random(seed)
    keys = ["a", "b", "c", "ä", "日本", None, "", "longer than eight bytes"]
    return [
        {
            "t": f"2024-01-01T{(minute + late) // 60:02d}:{(minute + late) % 60:02d}:{draw.randrange(60):02d}Z",
            "k": draw.choice(keys),
            "v": draw.randrange(1000),
        }
        for late in (draw.choice([0, 0, 0, -2, -9, 1]) for _ in range(count))
    ]


def aggregation(frames: Frames) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("sum"), f.max("t").alias("last"))


def windows(frames: Frames) -> DataFrame:
    return (
        frames["s"]
        .withWatermark("t", "5 minutes")
        .groupBy(f.window("t", "4 minutes", "2 minutes"), "k")
        .agg(f.sum("v"))
    )


def distinct_aggregation(frames: Frames) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.approx_count_distinct("v"), f.collect_set(f.col("v") % 7))


def duplicates(frames: Frames) -> DataFrame:
    return frames["s"].dropDuplicates(["k", "v"])


def duplicates_with_watermark(frames: Frames) -> DataFrame:
    return frames["s"].withWatermark("t", "5 minutes").dropDuplicates(["t", "k"])


def duplicates_within_watermark(frames: Frames) -> DataFrame:
    return frames["s"].withWatermark("t", "5 minutes").dropDuplicatesWithinWatermark(["k", "v"])


def sessions(frames: Frames) -> DataFrame:
    return (
        frames["s"].withWatermark("t", "5 minutes").groupBy(f.session_window("t", "90 seconds"), "k").agg(f.count("*"))
    )


def limit(frames: Frames) -> DataFrame:
    return frames["s"].select("v").limit(100)


def chained(frames: Frames) -> DataFrame:
    first = (
        frames["s"].withWatermark("t", "5 minutes").groupBy(f.window("t", "1 minute"), "k").agg(f.sum("v").alias("v"))
    )
    return first.groupBy(f.window(f.window_time("window"), "4 minutes")).agg(f.sum("v"), f.count("*"))


def join_then_windows(frames: Frames) -> DataFrame:
    """A stream joined with itself, and windows over what the join gives."""
    events = frames["s"].withWatermark("t", "4 minutes")
    left = events.select(f.col("t").alias("lt"), f.col("k").alias("lk"), "v").where("v % 2 = 0")
    right = events.select(f.col("t").alias("rt"), f.col("k").alias("rk"), f.col("v").alias("w")).where("v % 2 = 1")
    near = f.expr("lk = rk and rt between lt - interval 2 minutes and lt + interval 2 minutes")
    return left.join(right, near, "left_outer").groupBy(f.window("lt", "4 minutes")).agg(f.count("*"), f.sum("w"))


def counting(key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        n, total = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-n], "total": [total]})
        return
    n, total = state.get if state.exists else (0, 0)
    for batch in batches:
        n += len(batch)
        total += int(batch["v"].sum())
    state.update((n, total))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 240_000)
    yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def pandas_state(frames: Frames) -> DataFrame:
    events = frames["s"].where("k is not null").withWatermark("t", "5 minutes")
    return events.groupBy("k").applyInPandasWithState(
        counting, "k string, n long, total long", "n long, total long", "update", GroupStateTimeout.EventTimeTimeout
    )


def summing(key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Gives a key's sum with each ten rows, and never forgets it."""
    n, total = state.get if state.exists else (0, 0)
    for batch in batches:
        n += len(batch)
        total += int(batch["v"].sum())
    state.update((n % 10, total))
    if n >= 10:
        yield pd.DataFrame({"k": [key[0]], "total": [total]})


def pandas_state_in_append_mode(frames: Frames) -> DataFrame:
    keyed = frames["s"].where("k is not null").groupBy("k")
    return keyed.applyInPandasWithState(
        summing, "k string, total long", "n long, total long", "append", GroupStateTimeout.NoTimeout
    )


# Name, row of the README's table, query and output mode.
UNIQUE: list[tuple[str, str, Query, str]] = [
    ("aggregation, update", "aggregation", aggregation, "update"),
    ("aggregation, complete", "aggregation", aggregation, "complete"),
    ("windows, append", "windows", windows, "append"),
    ("windows, update", "windows", windows, "update"),
    ("windows, complete", "windows", windows, "complete"),
    ("distinct aggregation, complete", "aggregation", distinct_aggregation, "complete"),
    ("sessions, append", "session windows", sessions, "append"),
    ("sessions, complete", "session windows", sessions, "complete"),
    ("duplicates", "dropDuplicates", duplicates, "append"),
    ("duplicates with watermark", "dropDuplicates", duplicates_with_watermark, "append"),
    ("duplicates within watermark", "dropDuplicatesWithinWatermark", duplicates_within_watermark, "append"),
    ("limit", "limit", limit, "append"),
    ("chained windows", "chained operators", chained, "append"),
    ("join, then windows", "chained operators", join_then_windows, "append"),
    ("applyInPandasWithState, event time", "applyInPandasWithState", pandas_state, "update"),
    ("applyInPandasWithState, append", "applyInPandasWithState", pandas_state_in_append_mode, "append"),
]

# Of rows that are equal in the grouping key an operator keeps any: only these columns count.
SHOWN: dict[str, list[str]] = {
    "duplicates": ["k", "v"],
    "duplicates within watermark": ["k", "v"],
}


def comparable(name: str, query: Query) -> Query:
    columns = SHOWN.get(name)
    return query if columns is None else lambda frames: query(frames).select(*columns)


def covers(row: str) -> pytest.MarkDecorator:
    return pytest.mark.covers(row, "Python", "v1", "v2")


def stores(streams: Streams, checkpoint: str) -> list[int]:
    """For each operator of a query on lamina how many stores have files and are reported, in ascending order.

    Of the two stores that each side of a join has, Spark reports what the one with the rows did.
    """
    operators = (streams.checkpoint(name=checkpoint) / "state").glob("[0-9]*")
    found = [{file.parent for file in operator.rglob("*.lam")} for operator in operators]
    return sorted(sum(not store.name.endswith("-keyToNumValues") for store in each) for each in found)


def run_from_files(
    streams: Streams,
    query: Query,
    *,
    mode: str = "append",
    checkpoint: str = "checkpoint",
    format_version: int = 2,
    conf: dict[str, str] | None = None,
) -> Run:
    """Runs a query on lamina, and checks that its first batch loads every store that an earlier run left."""
    expected = stores(streams, checkpoint)
    unload_all(streams.spark)
    conf = {**NO_HAND_OVER, **(conf or {})}
    run = streams.run(query, LAMINA, mode=mode, checkpoint=checkpoint, format_version=format_version, conf=conf)
    assert run.metric("laminaHandOvers") == 0
    loads = [int(operator["customMetrics"]["laminaReloads"]) for operator in run.progress[0]["stateOperators"]]
    assert sorted(loads) == (expected or [0] * len(loads))
    return run


def assert_same(streams: Streams, query: Query, mode: str) -> Run:
    """Runs a query in both checkpoint formats and on the heap provider, and compares them batch by batch."""
    ours = run_from_files(streams, query, mode=mode)
    theirs = streams.run(query, HDFS, mode=mode)
    assert ours.batches == theirs.batches
    format_1 = run_from_files(streams, query, mode=mode, format_version=1, checkpoint="format-1")
    assert format_1.batches == theirs.batches
    return ours


@pytest.mark.parametrize(
    ("name", "query", "mode"),
    [pytest.param(name, query, mode, id=name, marks=covers(row)) for name, row, query, mode in UNIQUE],
)
def test_an_operator_gives_the_same_rows_in_each_batch_and_after_a_restart(
    streams: Streams, name: str, query: Query, mode: str
) -> None:
    query = comparable(name, query)
    for batch in range(3):
        streams.feed("s", rows(batch, 10 + 3 * batch))
    assert any(assert_same(streams, query, mode).batches.values())
    for batch in range(3, 6):
        streams.feed("s", rows(batch, 10 + 3 * batch))
    assert len(assert_same(streams, query, mode).batches) >= 3


def join(kind: str) -> Query:
    def joined(frames: Frames) -> DataFrame:
        left = frames["l"].withWatermark("t", "4 minutes").select(f.col("t").alias("lt"), f.col("k").alias("lk"), "v")
        right = (
            frames["r"]
            .withWatermark("t", "4 minutes")
            .select(f.col("t").alias("rt"), f.col("k").alias("rk"), f.col("v").alias("w"))
        )
        condition = f.expr("lk = rk and rt between lt - interval 2 minutes and lt + interval 2 minutes")
        return left.join(right, condition, kind)

    return joined


KINDS = {
    "inner": "inner join",
    "left_outer": "outer join",
    "right_outer": "outer join",
    "full_outer": "outer join",
    "left_semi": "left semi join",
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=covers(row)) for kind, row in KINDS.items()])
def test_a_stream_stream_join_gives_the_same_rows_in_each_batch_and_after_a_restart(
    streams: Streams, kind: str
) -> None:
    for batch in range(3):
        streams.feed("l", rows(batch, 10 + 3 * batch, 30))
        streams.feed("r", rows(100 + batch, 10 + 3 * batch, 30))
    assert any(assert_same(streams, join(kind), "append").batches.values())
    for batch in range(3, 6):
        streams.feed("l", rows(batch, 10 + 3 * batch, 30))
        streams.feed("r", rows(100 + batch, 10 + 3 * batch, 30))
    assert_same(streams, join(kind), "append")


@pytest.mark.parametrize("kind", ["inner", "left_outer"])
@pytest.mark.parametrize("version", ["3", "4"])
def test_state_formats_3_and_4_of_joins_give_the_same_rows_and_become_2_on_spark_4_3(
    streams: Streams, kind: str, version: str
) -> None:
    conf = {
        "spark.sql.streaming.join.stateFormatVersion": version,
        "spark.sql.streaming.join.stateFormatV4.enabled": "true",
    }
    for batches in (range(3), range(3, 5)):
        for batch in batches:
            streams.feed("l", rows(batch, 10 + 3 * batch, 30))
            streams.feed("r", rows(100 + batch, 10 + 3 * batch, 30))
        ours = run_from_files(streams, join(kind), conf=conf)
        theirs = streams.run(join(kind), ROCKSDB, conf=conf)
        assert ours.batches == theirs.batches
    # formats 1 and 2 keep four named stores, later ones a single store
    directories = [path.name for path in (streams.checkpoint() / "state" / "0" / "0").iterdir() if path.is_dir()]
    named = [name for name in directories if name != "_metadata"]
    assert len(named) == (0 if pyspark.__version__.startswith("4.2.") else 4), named


def test_row_checksums_are_written_and_verified(streams: Streams) -> None:
    conf = {"spark.sql.streaming.stateStore.rowChecksum.enabled": "true"}
    for batch in range(3):
        streams.feed("s", rows(batch, 10 + 3 * batch))
    for _ in range(2):
        ours = run_from_files(streams, aggregation, mode="update", conf=conf)
        theirs = streams.run(aggregation, HDFS, mode="update")
        assert ours.batches == theirs.batches
        for batch in range(3, 6):
            streams.feed("s", rows(batch, 10 + 3 * batch))


@pytest.mark.skipif(pyspark.__version__.startswith("4.2."), reason="Spark 4.2 words its refusal differently")
@pytest.mark.covers("real-time mode", "Python", "refused by Spark")
def test_real_time_mode_is_refused_by_spark_itself(streams: Streams, spark: SparkSession) -> None:
    """Spark wants RocksDB's class by name before it plans anything."""
    key = "spark.sql.streaming.stateStore.providerClass"
    with configured(spark, {key: LAMINA}):
        counts = spark.readStream.format("rate").load().groupBy("value").count()
        writer = counts.writeStream.format("console").outputMode("update").trigger(realTime="5 seconds")
        with pytest.raises(IllegalArgumentException, match=f"REAL_TIME_MODE.*{key} must be {ROCKSDB}"):
            writer.option("checkpointLocation", str(streams.checkpoint())).start()
