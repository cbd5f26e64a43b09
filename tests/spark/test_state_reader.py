"""The state data source reads lamina's checkpoints, and reading changes nothing of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lamina.spark.jars import jar_path
from tests.spark.programs import run_program
from tests.spark.streams import HDFS, LAMINA, Streams, configured


def rows(batch: int) -> list[dict[str, Any]]:
    return [
        {"t": f"2024-01-01T00:{batch:02d}:00Z", "k": f"key {n % 11}", "v": n}
        for n in range(batch * 10, batch * 10 + 15)
    ]


def totals(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def read(spark: SparkSession, path: Path, provider: str, **options: object) -> list[str]:
    """The rows that the state data source gives, sorted."""
    settings = {
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "1" if provider == HDFS else "2",
    }
    with configured(spark, settings):
        reader = spark.read.format("statestore")
        for name, option in options.items():
            reader = reader.option(name, str(option))
        return sorted(str(row) for row in reader.load(str(path)).collect())


def digest(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def test_every_retained_batch_reads_like_one_of_a_built_in_provider(streams: Streams, spark: SparkSession) -> None:
    for batch in range(5):
        streams.feed("s", rows(batch))
    for provider in (LAMINA, HDFS):
        streams.run(totals, provider, mode="update")
    before = digest(streams.checkpoint())
    for batch in range(5):
        ours = read(spark, streams.checkpoint(), LAMINA, batchId=batch)
        assert ours == read(spark, streams.checkpoint(HDFS), HDFS, batchId=batch)
        assert ours
    assert digest(streams.checkpoint()) == before


def test_a_session_that_has_only_the_jar_and_the_path_reads_both_formats(streams: Streams, spark: SparkSession) -> None:
    for batch in range(3):
        streams.feed("s", rows(batch))
    paths = []
    for version in (1, 2):
        streams.run(totals, LAMINA, mode="update", format_version=version, checkpoint=f"format-{version}")
        paths.append(streams.checkpoint(name=f"format-{version}"))
    before = [digest(path) for path in paths]
    given = {"jar": jar_path(), "checkpoints": [str(path) for path in paths]}
    found = json.loads(run_program("reader_query.py", json.dumps(given)).splitlines()[-1])
    settled = read(spark, paths[1], LAMINA)
    assert len(settled) == 11
    assert found == [{"state": settled, "changes": 33, "operators": ["stateStoreSave"]}] * 2
    assert [digest(path) for path in paths] == before


def test_a_reader_of_the_state_leaves_the_table_of_a_stopped_query_to_its_restart(
    streams: Streams, spark: SparkSession
) -> None:
    """The reader wants the version before the newest: the table that it had taken would be stepped back."""
    for batch in range(2):
        streams.feed("s", rows(batch))
    streams.run(totals, LAMINA, mode="update")
    assert len(read(spark, streams.checkpoint(), LAMINA, batchId=0)) == 11
    streams.feed("s", rows(2))
    run = streams.run(totals, LAMINA, mode="update")
    assert run.metric("laminaHandOvers") == 2
    assert [run.metric(name) for name in ("laminaReloads", "laminaCatchUps")] == [0, 0]


def test_the_change_feed_says_what_each_batch_changed(streams: Streams, spark: SparkSession) -> None:
    for batch in range(5):
        streams.feed("s", rows(batch))
    for provider in (LAMINA, HDFS):
        streams.run(totals, provider, mode="update")
    before = digest(streams.checkpoint())
    options = {"readChangeFeed": "true", "changeStartBatchId": 1, "changeEndBatchId": 3}
    ours = read(spark, streams.checkpoint(), LAMINA, **options)
    assert ours == read(spark, streams.checkpoint(HDFS), HDFS, **options)
    assert ours
    assert digest(streams.checkpoint()) == before


def test_each_store_of_a_join_reads_like_one_of_a_built_in_provider(streams: Streams, spark: SparkSession) -> None:
    def join(frames: dict[str, DataFrame]) -> DataFrame:
        left = frames["l"].withWatermark("t", "1 hour").select("k", f.col("t").alias("lt"), f.col("v").alias("lv"))
        right = frames["r"].withWatermark("t", "1 hour").select(f.col("k").alias("rk"), "t", "v")
        return left.join(right, f.expr("k = rk and t between lt and lt + interval 5 minutes"))

    for batch in range(3):
        streams.feed("l", rows(batch))
        streams.feed("r", rows(batch + 1))
    for provider in (LAMINA, HDFS):
        streams.run(join, provider)
    before = digest(streams.checkpoint())
    for options in ({"joinSide": "left"}, {"joinSide": "right"}, {"storeName": "right-keyToNumValues"}):
        ours = read(spark, streams.checkpoint(), LAMINA, **options)
        assert ours == read(spark, streams.checkpoint(HDFS), HDFS, **options)
        assert ours
    assert digest(streams.checkpoint()) == before


def test_a_version_is_rebuilt_from_the_snapshot_of_an_older_one(streams: Streams, spark: SparkSession) -> None:
    """The state of batch 4 from batch 1's: the same rows as those of a plain read."""
    for batch in range(5):
        streams.feed("s", rows(batch))
    streams.run(totals, LAMINA, mode="update")
    whole: list[str] = []
    for partition in range(2):
        whole += read(
            spark,
            streams.checkpoint(),
            LAMINA,
            snapshotStartBatchId=1,
            snapshotPartitionId=partition,
            batchId=4,
        )
    assert sorted(whole) == read(spark, streams.checkpoint(), LAMINA, batchId=4)
