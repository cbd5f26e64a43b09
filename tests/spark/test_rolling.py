"""A query in compaction mode rolling: what the shim rewrites, what falls off, restarts from the rest."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.golden import decoder
from tests.spark.streams import A_FILE_EACH, LAMINA, SCHEMA, Streams
from tests.spark.test_restarts import unload_all

BATCHES = 3
MINUTES = 30
"""Between two batches: a window of an hour gets rows from two, then its rows are removed from the state."""


def rows(batch: int) -> list[dict[str, Any]]:
    minutes = batch * MINUTES
    at = f"2024-01-{1 + minutes // 1440:02d}T{minutes // 60 % 24:02d}:{minutes % 60:02d}:00Z"
    return [{"t": at, "k": f"key {n * 7 % 300}", "v": n} for n in range(batch * 50, batch * 50 + 200)]


def by_hour(rows: DataFrame) -> DataFrame:
    return rows.groupBy(f.window("t", "1 hour"), "k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def test_a_query_that_is_restarted_gives_what_the_same_query_gives_as_a_batch(
    streams: Streams, spark: SparkSession
) -> None:
    prefix = "spark.sql.streaming.stateStore.lamina."
    found: list[str] = []
    for restart, parts in enumerate((2, 3)):
        cycle = {prefix + "compaction.mode": "rolling", prefix + "compaction.rollingParts": str(parts)}
        conf = {**A_FILE_EACH, **cycle}
        found += run_batches(streams, spark, range(restart * BATCHES, (restart + 1) * BATCHES), conf)
        for partition in (0, 1):
            check_newest_version(streams, partition, parts)
    check_rows(found, streams, spark, 2 * BATCHES)


def run_batches(streams: Streams, spark: SparkSession, batches: range, conf: dict[str, str]) -> list[str]:
    """The rows that the query gives for more batches, with its state restored from files where it ran before."""
    for batch in batches:
        streams.feed("s", rows(batch))
    conf = {**conf, "spark.sql.streaming.stateStore.lamina.heap.handOverMs": "0"}
    run = streams.run(lambda frames: by_hour(frames["s"].withWatermark("t", "0 seconds")), LAMINA, conf=conf)
    assert run.metric("laminaReloads") == (2 if batches.start else 0)
    unload_all(spark)
    return run.all_rows


def check_rows(found: list[str], streams: Streams, spark: SparkSession, batches: int) -> None:
    """What the query gave is what it gives as a batch, of the windows that so many batches close."""
    closed = f.col("window.end") <= f.to_timestamp(f.lit(rows(batches - 1)[0]["t"]))
    whole = by_hour(spark.read.schema(SCHEMA).json(str(streams.path / "in" / "s"))).where(closed)
    assert sorted(found) == sorted(str(row.asDict(recursive=True)) for row in whole.collect())
    assert len(found) > 400


def check_newest_version(streams: Streams, partition: int, parts: int) -> None:
    """The newest version restores from a cycle of rewrites, by a decoder that checks their keys' parts as well."""
    directory = streams.checkpoint() / "state" / "0" / str(partition)
    name = max((path.name for path in directory.glob("*.lam")), key=lambda name: int(name.split("_")[0]))
    manifest = decoder.File(directory / name).manifest
    rewritten = [reference["rewrite"] for reference in manifest["references"] if reference["kind"] == "rewrite"]
    assert {(one["part"], one["parts"], one["hash"]) for one in rewritten} == {
        (part, parts, "fold-1") for part in range(parts)
    }
    assert len({reference["path"] for reference in manifest["references"]}) == parts
    assert len(decoder.state(directory, name)) == manifest["counts"]["0"]["rows"] > 20
