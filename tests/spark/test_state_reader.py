"""The state data source reads lamina's checkpoints, and reading changes nothing of them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from lamina.spark.jars import jar_path
from tests.spark.programs import run_program
from tests.spark.streams import A_FILE_EACH, BEHIND_BARRIER, HDFS, LAMINA, ROCKSDB, SETTLED, Query, Streams, configured
from tests.spark.test_backends import HEAP, TABLES
from tests.spark.test_changelog import commits
from tests.spark.test_transform_with_state import with_rows

FORMATS = pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
FOUR_STORES = {"spark.sql.streaming.join.stateFormatVersion": "2"}
STORES = [f"{side}-{store}" for side in ("left", "right") for store in ("keyToNumValues", "keyWithIndexToValue")]
KEEP_ALL = {"spark.sql.streaming.minBatchesToRetain": "10000"}


def rows(batch: int) -> list[dict[str, Any]]:
    return [
        {"t": f"2024-01-01T{batch // 60:02d}:{batch % 60:02d}:00Z", "k": f"key {n % 11}", "v": n}
        for n in range(batch * 10, batch * 10 + 15)
    ]


def totals(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def near(frames: dict[str, DataFrame]) -> DataFrame:
    left = frames["l"].withWatermark("t", "1 hour").select("k", f.col("t").alias("lt"), f.col("v").alias("lv"))
    right = frames["r"].withWatermark("t", "1 hour").select(f.col("k").alias("rk"), "t", "v")
    return left.join(right, f.expr("k = rk and t between lt and lt + interval 5 minutes"))


def near_by_window(frames: dict[str, DataFrame]) -> DataFrame:
    """A join and an aggregation whose states lose rows again, as the watermark passes them."""
    left = frames["l"].withWatermark("t", "1 minute").select("k", f.col("t").alias("lt"), f.col("v").alias("lv"))
    right = frames["r"].withWatermark("t", "1 minute").select(f.col("k").alias("rk"), "t", "v")
    joined = left.join(right, f.expr("k = rk and t between lt and lt + interval 1 minute"))
    return joined.groupBy(f.window("lt", "1 minute"), "k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def read(spark: SparkSession, path: Path, provider: str, version: int | None = None, **options: object) -> list[str]:
    """The rows that the state data source gives a session that has the query's settings, sorted."""
    settings = {
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": str(version or (1 if provider == HDFS else 2)),
    }
    with configured(spark, settings):
        return load(spark, path, **options)


def load(spark: SparkSession, path: Path, **options: object) -> list[str]:
    """The rows that the state data source gives, sorted."""
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


def committed(path: Path) -> dict[str, str]:
    """A digest of what a running query has written so far; hidden files are those that it is writing."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if not any(part.startswith(".") for part in file.relative_to(path).parts) and file.is_file()
    }


class Running:
    """A query on lamina in the background: each of its batches feeds its sources for the next one, until `finish`."""

    def __init__(self, streams: Streams, query: Query, mode: str, version: int, sources: dict[str, int]) -> None:
        self.streams = Streams(streams.spark, streams.path / f"running-v{version}")
        self.sources = sources  # name, and how many batches it is ahead
        self.checkpoint = self.streams.checkpoint()
        self.batches: dict[int, list[str]] = {}
        self.feeding = True
        self.rest = 0.0  # seconds in each batch
        settings = {
            "spark.sql.streaming.stateStore.providerClass": LAMINA,
            "spark.sql.streaming.stateStore.checkpointFormatVersion": str(version),
            "spark.sql.streaming.stateStore.lamina.compaction.maxChain": "4",
            **FOUR_STORES,
            **KEEP_ALL,
        }
        self.feed(0)
        with configured(streams.spark, settings):
            writer = query(self.streams.sources()).writeStream.outputMode(mode).foreachBatch(self.collect)
            self.query: StreamingQuery = writer.option("checkpointLocation", str(self.checkpoint)).start()

    def feed(self, batch: int) -> None:
        for source, ahead in self.sources.items():
            self.streams.feed(source, rows(batch + ahead))

    def collect(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = sorted(str(row.asDict(recursive=True)) for row in frame.collect())
        if self.feeding:
            self.feed(batch + 1)
            time.sleep(self.rest)

    @property
    def newest(self) -> int:
        """The newest batch that is known to be committed."""
        progress = self.query.lastProgress
        return int(progress["batchId"]) if progress else -1

    def wait_for(self, batch: int) -> None:
        deadline = time.monotonic() + 240
        while self.newest < batch:
            assert self.query.isActive, self.query.exception()
            assert time.monotonic() < deadline, f"batch {self.newest} is the newest"
            time.sleep(0.05)

    def finish(self) -> None:
        """Stops the query after what it was fed; it must not have failed."""
        self.feeding = False
        self.query.processAllAvailable()
        assert self.query.isActive
        self.query.stop()


@contextmanager
def running(streams: Streams, query: Query, mode: str, version: int, **sources: int) -> Iterator[Running]:
    started = Running(streams, query, mode, version, sources)
    try:
        yield started
    finally:
        started.query.stop()


def test_every_retained_batch_reads_like_one_of_a_built_in_provider(streams: Streams, spark: SparkSession) -> None:
    for batch in range(5):
        streams.feed("s", rows(batch))
    for provider in (LAMINA, HDFS):
        streams.run(totals, provider, mode="update", conf=SETTLED)
    before = digest(streams.checkpoint())
    for batch in range(5):
        ours = read(spark, streams.checkpoint(), LAMINA, batchId=batch)
        assert ours == read(spark, streams.checkpoint(HDFS), HDFS, batchId=batch)
        assert ours
    assert digest(streams.checkpoint()) == before


def test_a_session_that_has_only_the_jar_and_the_path_reads_both_formats(streams: Streams, spark: SparkSession) -> None:
    """Of queries that have stopped, and of queries that run."""
    for batch in range(3):
        streams.feed("s", rows(batch))
    stopped = []
    for version in (1, 2):
        streams.run(totals, LAMINA, mode="update", format_version=version, checkpoint=f"format-{version}", conf=SETTLED)
        stopped.append(streams.checkpoint(name=f"format-{version}"))
    before = [digest(path) for path in stopped]
    with ExitStack() as stack:
        queries = [stack.enter_context(running(streams, totals, "update", version, s=0)) for version in (1, 2)]
        for query in queries:
            query.wait_for(1)
            query.rest = 2.0  # leaves the program the machine
        paths = [*stopped, *(query.checkpoint for query in queries)]
        given = {"jar": jar_path(), "checkpoints": [str(path) for path in paths]}
        begun = [(query.newest, committed(query.checkpoint)) for query in queries]
        found = json.loads(run_program("reader_query.py", json.dumps(given)).splitlines()[-1])
        ended = [(query.newest, committed(query.checkpoint)) for query in queries]
        for query in queries:
            query.finish()
    settled = read(spark, stopped[1], LAMINA)
    assert len(settled) == 11
    assert found[:2] == [{"state": settled, "changes": 33, "operators": ["stateStoreSave"]}] * 2
    assert [digest(path) for path in stopped] == before
    for query, (first, files), (last, files_then), of_query in zip(queries, begun, ended, found[2:], strict=True):
        assert last > first
        assert files.items() <= files_then.items()
        # The batch that was the newest when the program looked; each changes all keys.
        batch = of_query["changes"] // 11 - 1
        assert first <= batch <= last + 1
        assert of_query["operators"] == ["stateStoreSave"]
        looked = range(batch, first - 1, -1)
        assert any(of_query["state"] == load(spark, query.checkpoint, batchId=n) for n in looked)


# Name, and the options that read it as of a batch.
READS: dict[str, dict[str, object]] = {
    "windows": {"operatorId": 0},
    "left": {"operatorId": 1, "joinSide": "left"},
    "right": {"operatorId": 1, "joinSide": "right"},
    "store": {"operatorId": 1, "storeName": "left-keyToNumValues"},
}
CHANGES = {"operatorId": 0, "readChangeFeed": "true", "changeStartBatchId": 0}


def load_all(spark: SparkSession, path: Path, batch: int) -> dict[str, list[str]]:
    found = {name: load(spark, path, batchId=batch, **options) for name, options in READS.items()}
    return {**found, "changes": load(spark, path, changeEndBatchId=batch, **CHANGES)}


@FORMATS
def test_a_batch_reads_while_the_query_runs_as_it_does_later(
    streams: Streams, spark: SparkSession, version: int
) -> None:
    """And as on a built-in provider, by a session without settings; and the query's answers are none the worse."""
    found = []
    with running(streams, near_by_window, "append", version, l=0, r=1) as query:
        query.wait_for(3)
        first = query.newest
        for batch in (2, first):
            begun, before = query.newest, committed(query.checkpoint)
            for _ in range(5):
                found.append((batch, load_all(spark, query.checkpoint, batch)))
                if query.newest > begun:
                    break
            assert query.newest > begun, "the query did not go on"
            assert before.items() <= committed(query.checkpoint).items()
        operators = spark.read.format("state-metadata").load(str(query.checkpoint)).collect()
        begun = query.newest
        newest = load(spark, query.checkpoint, operatorId=0)
        ended = query.newest
        found.append((2, load_all(spark, query.checkpoint, 2)))
        query.finish()
    names = {(row.operatorId, row.operatorName) for row in operators}
    assert names == {(0, "stateStoreSave"), (1, "symmetricHashJoin")}

    before = committed(query.checkpoint)
    for batch, then in found:
        assert all(then.values())
        assert then == load_all(spark, query.checkpoint, batch)
    later = [load(spark, query.checkpoint, operatorId=0, batchId=batch) for batch in range(begun, ended + 2)]
    assert newest in later
    after = committed(query.checkpoint)
    assert before.items() <= after.items()
    # Maintenance may still merge what the query has left.
    assert {Path(name).suffix for name in after.keys() - before.keys()} <= {".seg"}

    built_in = query.streams.run(near_by_window, HDFS, conf={**FOUR_STORES, **KEEP_ALL})
    assert query.batches == built_in.batches
    assert any(query.batches.values())
    for batch, then in dict(found).items():
        assert then == load_all(spark, query.streams.checkpoint(HDFS), batch)


ON_TABLES, IN_LOG_OBJECTS = TABLES | A_FILE_EACH, HEAP | BEHIND_BARRIER


@pytest.mark.parametrize("conf", [ON_TABLES, IN_LOG_OBJECTS], ids=["tables", "log objects"])
def test_state_on_tables_and_in_log_objects_reads_like_that_of_a_built_in_provider(
    streams: Streams, spark: SparkSession, conf: dict[str, str]
) -> None:
    for batch in range(5):
        streams.feed("l", rows(batch))
        streams.feed("r", rows(batch + 1))
    run = streams.run(near_by_window, LAMINA, conf=FOUR_STORES | KEEP_ALL | conf)
    built_in = streams.run(near_by_window, HDFS, conf=FOUR_STORES | KEEP_ALL)
    assert run.batches == built_in.batches
    checkpoint = streams.checkpoint()
    if conf is ON_TABLES:
        stores = [path for part in ("0", "1") for path in (Path("0", part), *(Path("1", part, one) for one in STORES))]
        assert all(list((checkpoint / "state" / store).glob("*.sst")) for store in stores)
    else:
        assert commits(checkpoint)["parts"] > 0
        assert commits(checkpoint)["files"] == 0
    before = committed(checkpoint)
    for batch in (1, max(run.batches)):
        found = load_all(spark, checkpoint, batch)
        assert found == load_all(spark, streams.checkpoint(HDFS), batch)
        assert all(found.values())
    # maintenance may still write
    assert before.items() <= committed(checkpoint).items()


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
        streams.run(totals, provider, mode="update", conf=SETTLED)
    before = digest(streams.checkpoint())
    options = {"readChangeFeed": "true", "changeStartBatchId": 1, "changeEndBatchId": 3}
    ours = read(spark, streams.checkpoint(), LAMINA, **options)
    assert ours == read(spark, streams.checkpoint(HDFS), HDFS, **options)
    assert ours
    assert digest(streams.checkpoint()) == before


@FORMATS
def test_each_store_of_a_join_reads_like_one_of_a_built_in_provider(
    streams: Streams, spark: SparkSession, version: int
) -> None:
    for batch in range(3):
        streams.feed("l", rows(batch))
        streams.feed("r", rows(batch + 1))
    streams.run(near, LAMINA, format_version=version, conf=FOUR_STORES | SETTLED)
    streams.run(near, HDFS, conf=FOUR_STORES)
    before = digest(streams.checkpoint())
    for options in ({"joinSide": "left"}, {"joinSide": "right"}, *({"storeName": name} for name in STORES)):
        ours = read(spark, streams.checkpoint(), LAMINA, version, **options)
        assert ours == read(spark, streams.checkpoint(HDFS), HDFS, **options)
        assert ours
    assert digest(streams.checkpoint()) == before


@FORMATS
def test_a_version_is_rebuilt_from_the_snapshot_of_an_older_one(
    streams: Streams, spark: SparkSession, version: int
) -> None:
    """The state of batch 4 from batch 1's: the same rows as those of a plain read."""
    for batch in range(5):
        streams.feed("s", rows(batch))
    streams.run(totals, LAMINA, mode="update", format_version=version, conf=SETTLED)
    before = digest(streams.checkpoint())
    whole: list[str] = []
    for partition in range(2):
        whole += read(
            spark,
            streams.checkpoint(),
            LAMINA,
            version,
            snapshotStartBatchId=1,
            snapshotPartitionId=partition,
            batchId=4,
        )
    assert sorted(whole) == read(spark, streams.checkpoint(), LAMINA, version, batchId=4)
    assert len(whole) == 11
    assert digest(streams.checkpoint()) == before


@FORMATS
def test_variables_and_timers_of_transform_with_state_read_like_those_of_a_built_in_provider(
    streams: Streams, spark: SparkSession, version: int
) -> None:
    for batch in range(2):
        streams.feed("s", rows(batch))
    conf = SETTLED | {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
    for provider in (LAMINA, ROCKSDB):
        streams.run(with_rows, provider, mode="update", format_version=version, conf=conf)
    before = digest(streams.checkpoint())
    variables: list[dict[str, object]] = [{"stateVarName": name} for name in ("totals", "recent", "seen", "kept")]
    older: dict[str, object] = {"stateVarName": "totals", "batchId": 0}
    changes: dict[str, object] = {"stateVarName": "totals", "readChangeFeed": "true", "changeStartBatchId": 0}
    for options in (*variables, older, changes, {"readRegisteredTimers": "true"}):
        ours = read(spark, streams.checkpoint(), LAMINA, version, **options)
        assert ours == read(spark, streams.checkpoint(ROCKSDB), ROCKSDB, version, **options)
        assert ours
    assert digest(streams.checkpoint()) == before
