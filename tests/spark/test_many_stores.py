"""What many stores in one session take does not grow with the batches, and ends with the queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.processes import held
from tests.spark.streams import LAMINA, Streams, configured
from tests.spark.test_restarts import rows, totals, unload_all

pytestmark = pytest.mark.long

QUERIES, PARTITIONS, STORES_OF_A_JOIN = 2, 8, 4
# Pools of Spark's and of the engine's make some threads and connections when they are first needed. Something that each
# batch kept, or each store, would be 64 or more.
SLACK = 24
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": LAMINA,
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # a table does not wait for the next run of its query
    "spark.sql.streaming.stateStore.lamina.heap.handOverMs": "0",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
}


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[None]:
    with configured(spark, SETTINGS):
        yield


def join(frames: dict[str, DataFrame]) -> DataFrame:
    """One source on both sides, as new columns: a file is a batch."""
    left = frames["s"].selectExpr("k AS lk", "v AS lv")
    right = frames["s"].selectExpr("k AS rk", "v AS rv")
    return left.join(right, (left.lk == right.rk) & (left.lv == right.rv))


def jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def threads(spark: SparkSession) -> list[str]:
    """Names of the JVM's threads, without the pools of 100 that Spark's block manager fills."""
    names = [thread.getName() for thread in jvm(spark).java.lang.Thread.getAllStackTraces().keySet()]
    return [name for name in names if not name.startswith("block-manager-")]


def counts(spark: SparkSession) -> dict[str, int]:
    found: dict[str, int] = {}
    for role, one in held(int(jvm(spark).java.lang.ProcessHandle.current().pid())).items():
        found |= {f"{role}: sockets": one.sockets, f"{role}: files": one.files, f"{role}: threads": one.threads}
    return {**found, "jvm: threads": len(threads(spark))}


def tables(spark: SparkSession) -> int:
    return int(jvm(spark).org.apache.spark.sql.lamina.StatePool.tables())


def more(now: dict[str, int], before: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What has grown."""
    return {what: (before[what], count) for what, count in now.items() if count > before[what] + SLACK}


@pytest.mark.usefixtures("settings")
def test_threads_sockets_and_files_stay_the_same_with_each_batch_and_end_with_the_queries(
    streams: Streams, spark: SparkSession
) -> None:
    streams.feed("s", rows(0))
    # the engine runs from here on
    streams.run(totals, LAMINA, mode="update", checkpoint="first", conf={"spark.sql.shuffle.partitions": "2"})
    unload_all(spark)
    before, tables_before = counts(spark), tables(spark)
    queries: list[StreamingQuery] = [
        join(streams.sources())
        .writeStream.format("noop")
        .option("checkpointLocation", str(streams.path / f"join-{number}"))
        .start()
        for number in range(QUERIES)
    ]

    def process(batches: range) -> dict[str, int]:
        for batch in batches:
            streams.feed("s", rows(batch))
        for query in queries:
            query.processAllAvailable()
            assert query.lastProgress is not None
            assert query.lastProgress["batchId"] >= batches[-1]
        return counts(spark)

    try:
        tenth = process(range(1, 10))
        twentieth = process(range(10, 20))
        assert tables(spark) - tables_before == QUERIES * PARTITIONS * STORES_OF_A_JOIN
        assert more(twentieth, tenth) == {}
    finally:
        for query in queries:
            query.stop()
    unload_all(spark)
    assert tables(spark) == tables_before
    assert more(counts(spark), before) == {}
    assert not any(name.startswith("stream execution thread") for name in threads(spark))
