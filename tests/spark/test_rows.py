"""Keys and values of every shape and size: the same results as on a built-in provider, also from files."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.streams import HDFS, LAMINA, Query, Streams
from tests.spark.test_restarts import unload_all

NO_HAND_OVER = {"spark.sql.streaming.stateStore.lamina.heap.handOverMs": "0"}
LARGE = 64 << 20


def rows(batch: int) -> list[dict[str, Any]]:
    words = ["", "Grüße", "日本語", "🜁", None, "plain"]
    return [
        {"t": "2024-01-01T00:00:00Z", "k": words[n % 6], "v": None if n % 5 == 0 else n * (-1) ** n}
        for n in range(batch * 30, batch * 30 + 30)
    ]


def strange(frames: dict[str, DataFrame]) -> DataFrame:
    """Keys and values with nulls, decimals of both sizes, nested and empty columns."""
    v = f.col("v")
    keys: list[Column] = [
        f.col("k"),
        (v / 7).cast("decimal(38,12)").alias("wide"),
        (v % 3).cast("decimal(9,2)").alias("narrow"),
        f.struct(
            f.col("k"), f.array(v, f.lit(None).cast("long")).alias("a"), f.struct(v.cast("timestamp")).alias("s")
        ).alias("n"),
        f.lit(None).cast("string").alias("void"),
    ]
    values = [
        f.count("*").alias("rows"),
        f.max(f.struct(f.array(f.col("k")), v.cast("decimal(30,3)"))).alias("nested"),
        f.first(f.lit(None).cast("binary")).alias("nothing"),
        f.max(f.encode("k", "UTF-16")).alias("bytes"),
        f.sum((v / 3).cast("decimal(20,6)")).alias("decimals"),
    ]
    return frames["s"].groupBy(*keys).agg(*values)


def without_key(frames: dict[str, DataFrame]) -> DataFrame:
    """A key of no column is one of 0 bytes."""
    return frames["s"].agg(f.count("*").alias("rows"), f.sum("v").alias("v"))


@pytest.mark.parametrize(
    ("query", "mode"),
    [(strange, "update"), (without_key, "complete")],
    ids=["strange", "no key"],
)
def test_rows_of_every_shape_come_back_from_the_table_and_from_files(
    streams: Streams, spark: SparkSession, query: Query, mode: str
) -> None:
    for batch in range(3):
        streams.feed("s", rows(batch))
        if batch == 0:
            continue  # two batches in one run, one in the next
        ours = streams.run(query, LAMINA, mode=mode, conf=NO_HAND_OVER)
        theirs = streams.run(query, HDFS, mode=mode)
        assert ours.batches == theirs.batches
        assert ours.batches
        unload_all(spark)
    assert ours.metric("laminaReloads") > 0


def test_state_of_1000_columns(streams: Streams, spark: SparkSession) -> None:
    def query(frames: dict[str, DataFrame]) -> DataFrame:
        return frames["s"].groupBy("k").agg(*(f.max(f.col("v") + n).alias(f"c{n}") for n in range(1000)))

    most = 0
    for batch in range(2):
        fed = [{"t": "2024-01-01T00:00:00Z", "k": "k", "v": v} for v in range(batch * 7, batch * 5 + 9)]
        most = max(most, *(row["v"] for row in fed))
        streams.feed("s", fed)
        run = streams.run(query, LAMINA, mode="update", conf=NO_HAND_OVER)
        assert run.all_rows == [str({"k": "k", **{f"c{n}": most + n for n in range(1000)}})]
        unload_all(spark)


def test_a_key_of_64_mib(streams: Streams, spark: SparkSession) -> None:
    def query(frames: dict[str, DataFrame]) -> DataFrame:
        key = f.concat(f.repeat(f.lit("x"), LARGE), f.col("k")).alias("key")
        return frames["s"].groupBy(key).count().select(f.length("key").alias("length"), f.md5("key"), "count")

    expected = hashlib.md5(b"x" * LARGE + b"k").hexdigest()
    for n in (1, 2):
        streams.feed("s", [{"t": "2024-01-01T00:00:00Z", "k": "k", "v": 7}])
        run = streams.run(query, LAMINA, mode="update", conf=NO_HAND_OVER)
        assert run.all_rows == [f"{{'length': {LARGE + 1}, 'md5(key)': '{expected}', 'count': {n}}}"]
        assert run.metric("laminaReloads") == 2 * (n - 1)  # of both partitions
        unload_all(spark)


def test_a_value_of_64_mib(streams: Streams, spark: SparkSession) -> None:
    def query(frames: dict[str, DataFrame]) -> DataFrame:
        value = f.concat(f.repeat(f.lit("x"), LARGE), f.col("k")).alias("value")
        joined = frames["left"].select("v", value).join(frames["right"].select("v"), "v")
        return joined.select("v", f.length("value").alias("length"), f.md5("value"))

    expected = hashlib.md5(b"x" * LARGE + b"k").hexdigest()
    (streams.path / "in" / "right").mkdir(parents=True)
    streams.feed("left", [{"t": "2024-01-01T00:00:00Z", "k": "k", "v": 7}])
    assert streams.run(query, LAMINA, conf=NO_HAND_OVER).all_rows == []
    unload_all(spark)
    streams.feed("right", [{"t": "2024-01-01T00:00:00Z", "k": "other", "v": 7}])
    run = streams.run(query, LAMINA, conf=NO_HAND_OVER)
    assert run.all_rows == [f"{{'v': 7, 'length': {LARGE + 1}, 'md5(value)': '{expected}'}}"]
    assert run.metric("laminaReloads") > 0
