"""The stateful operators of `benchmarks.operators`, each over the same stream of events.

A batch of the stream is one second of event time. Half of its events are new; each of the others names the key and the
time of a position up to `late` seconds back, which may have been named before or not. What an operator keeps leaves its
state after about `seconds`, so that as many rows leave with each batch as come: about 20 batches of rows stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks import session
from benchmarks.stream import KEY_PAD, SOURCE
from benchmarks.variants import HDFS, LAMINA, ROCKSDB

BASE_MS = 1_700_000_000_000
JUMP_S = 5  # what the drain at the end evicts at once


@dataclass(frozen=True)
class Timeline:
    """Which batches there are: preload, warm-up, timed, quiet (event time stands still), a jump, the drain."""

    rows: int
    seconds: int
    preload: int
    warmup: int
    timed: int
    quiet: int

    @property
    def keys(self) -> int:
        """Rows of the preload."""
        return (self.seconds + 1) * self.rows

    @property
    def timed_batches(self) -> range:
        first = self.preload + self.warmup
        return range(first, first + self.timed)

    @property
    def quiet_batches(self) -> range:
        return range(self.timed_batches.stop, self.timed_batches.stop + self.quiet)

    @property
    def batches(self) -> int:
        return self.quiet_batches.stop + 2

    def source(self, spark: SparkSession) -> DataFrame:
        """Columns k (the position), v."""
        options = {
            "order": "sequence",
            "keys": str(self.keys),
            "rows": str(self.rows),
            "preload": str(self.preload),
            "steady": str(self.batches - 1 - self.preload),
            "closing": str(self.rows),
        }
        return spark.readStream.format(SOURCE).options(**options).load()

    def ms(self, position: str) -> str:
        """SQL for the event time of a position, in milliseconds."""
        stands = self.keys + (self.warmup + self.timed) * self.rows
        jumps = stands + self.quiet * self.rows
        still = stands * 1000 // self.rows
        return (
            f"(CASE WHEN {position} < {stands} THEN {BASE_MS} + {position} * 1000 div {self.rows} "
            f"WHEN {position} < {jumps} THEN {BASE_MS + still} ELSE {BASE_MS + still + JUMP_S * 1000} END)"
        )


def key(position: str) -> str:
    """SQL for a key of 40 bytes."""
    return f"lpad(CAST({position} AS STRING), {len(KEY_PAD)}, '{KEY_PAD}')"


def earlier(timeline: Timeline, late: int, share: str) -> str:
    """SQL for an earlier position where `share` holds, which is part of the condition, else for the position itself."""
    back = f"(1 + pmod(xxhash64(k, 2), {late * timeline.rows}))"
    return f"CASE WHEN {share} AND k >= {back} THEN k - {back} ELSE k END"


def events(source: DataFrame, timeline: Timeline, late: int, jitter: int = 0) -> DataFrame:
    """Columns key, t, ms, v; the time is a function of the key, plus up to `jitter` milliseconds."""
    positions = source.selectExpr("k", "v", earlier(timeline, late, "pmod(xxhash64(k, 1), 2) = 0") + " AS p")
    ms = timeline.ms("p") + (f" + pmod(xxhash64(k, 3), {jitter})" if jitter else "")
    timed = positions.selectExpr(f"{key('p')} AS key", f"{ms} AS ms", "v")
    return timed.select("key", sql.timestamp_millis("ms").alias("t"), "ms", "v")


def sides(source: DataFrame, timeline: Timeline, late: int) -> tuple[DataFrame, DataFrame]:
    """Two streams made of the same positions: each has a left row, and a right one with the key of an earlier left row.

    All columns are new ones, so that Spark sees one source and reads the same batch for both sides.
    """
    now = f"timestamp_millis({timeline.ms('k')})"
    left = source.selectExpr(f"{key('k')} AS lk", f"{now} AS lt", "v + 1 AS lv")
    right = source.selectExpr(f"{key(earlier(timeline, late, 'true'))} AS rk", f"{now} AS rt", "v + 2 AS rv")
    return left, right


def windows(source: DataFrame, timeline: Timeline) -> DataFrame:
    rows = events(source, timeline, late=12).withWatermark("t", "29 seconds")
    grouped = rows.groupBy(sql.window("t", "1 second"), "key")
    return grouped.agg(sql.count("*").alias("n"), sql.max("v").alias("top"), sql.sum("v").alias("total"))


def sessions(source: DataFrame, timeline: Timeline) -> DataFrame:
    rows = events(source, timeline, late=12, jitter=500).withWatermark("t", "27 seconds")
    grouped = rows.groupBy(sql.session_window("t", "2 seconds"), "key")
    return grouped.agg(sql.count("*").alias("n"), sql.sum("v").alias("total"))


def duplicates(source: DataFrame, timeline: Timeline) -> DataFrame:
    # of two equal rows any may be kept, so only what they have in common can be compared
    rows = events(source, timeline, late=12).withWatermark("t", "29 seconds")
    return rows.dropDuplicates(["t", "key"]).select("t", "key")


def duplicates_within_watermark(source: DataFrame, timeline: Timeline) -> DataFrame:
    rows = events(source, timeline, late=12).withWatermark("t", "15 seconds")
    return rows.dropDuplicatesWithinWatermark(["key"]).select("t", "key")


def join(kind: str) -> Callable[[DataFrame, Timeline], DataFrame]:
    def joined(source: DataFrame, timeline: Timeline) -> DataFrame:
        left, right = sides(source, timeline, late=6)
        condition = "lk = rk AND rt BETWEEN lt - INTERVAL 8 SECONDS AND lt + INTERVAL 8 SECONDS"
        left, right = left.withWatermark("lt", "12 seconds"), right.withWatermark("rt", "12 seconds")
        return left.join(right, sql.expr(condition), kind)

    return joined


def typed(name: str, late: int, watermark: str, lifetime_ms: int) -> Callable[[DataFrame, Timeline], DataFrame]:
    """An operator with a function of the user's, which is in Scala."""

    def rows_of(source: DataFrame, timeline: Timeline) -> DataFrame:
        rows: Any = events(source, timeline, late=late, jitter=500).withWatermark("t", watermark)
        spark: Any = source.sparkSession
        operators = spark.sparkContext._jvm.lamina.benchmarks.operators.Typed
        return DataFrame(getattr(operators, name)(rows._jdf, lifetime_ms), spark)

    return rows_of


def pass_through(source: DataFrame, timeline: Timeline) -> DataFrame:
    return events(source, timeline, late=12).repartition(session.PARTITIONS, "key")


def pass_through_sides(source: DataFrame, timeline: Timeline) -> DataFrame:
    left, right = sides(source, timeline, late=6)
    return left.union(right).repartition(session.PARTITIONS, "lk")


@dataclass(frozen=True)
class Operator:
    """A query, and the stores that it is compared on.

    Args:
        title: the name in the tables.
        seconds: how long a row stays in the state, in seconds of event time.
        sides: streams that are read; each gets its share of the rows of a batch.
        note: what a reader of its figures must know.
        settings: Spark settings of the query.
        sparks: minor versions of Spark that it runs on; empty stands for all.
    """

    title: str
    query: Callable[[DataFrame, Timeline], DataFrame]
    seconds: int
    mode: str = "append"
    sides: int = 1
    stores: tuple[str, ...] = (HDFS, ROCKSDB, LAMINA)
    note: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    sparks: tuple[str, ...] = ()


TWICE = "Spark counts the time to find expired rows in both the updates and the removals."

OPERATORS = {
    "windows": Operator("event-time windows", windows, 30),
    "sessions": Operator("session windows", sessions, 30),
    "duplicates": Operator("drop duplicates", duplicates, 30),
    "within": Operator("drop duplicates within watermark", duplicates_within_watermark, 30),
    "join": Operator("inner join", join("inner"), 20, sides=2),
    "join4": Operator(
        "inner join, state format 4",
        join("inner"),
        20,
        sides=2,
        stores=(ROCKSDB, LAMINA),
        settings={
            "spark.sql.streaming.join.stateFormatV4.enabled": "true",
            "spark.sql.streaming.join.stateFormatVersion": "4",
        },
        sparks=("4.2",),
        note="The built-in HDFS store has no column families, which this format needs.",
    ),
    "outer": Operator("left outer join", join("left_outer"), 20, sides=2, note=TWICE),
    "groups": Operator(
        "flatMapGroupsWithState", typed("mapGroups", 12, "15 seconds", 14_000), 30, mode="update", note=TWICE
    ),
    "transform": Operator(
        "transformWithState",
        typed("transform", 3, "4 seconds", 4_000),
        9,
        stores=(ROCKSDB, LAMINA),
        note="A value, a list, a map and a timer for each key. The built-in HDFS store is refused by Spark.",
    ),
}

# The same rows without any state; the store that the session is set to is not used.
STATELESS = {
    1: Operator("no state", pass_through, 1, stores=(HDFS,)),
    2: Operator("no state, two sides", pass_through_sides, 1, sides=2, stores=(HDFS,)),
}
