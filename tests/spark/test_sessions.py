"""One session, several providers and settings: what users mix, and what Spark checks or rewrites around a store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from lamina.cli.main import run
from lamina.format import Compression, ContainerWriter, verify
from lamina.format.container import COMMIT
from lamina.format.entries import SCHEMA, decode, messages
from lamina.format.manifest import CommitManifest
from tests.spark.streams import HDFS, LAMINA, ROCKSDB, Streams
from tests.spark.test_restarts import Answers, rows, totals, unload_all
from tests.spark.test_state_reader import digest, read

PREFIX = "spark.sql.streaming.stateStore."
VERSIONS = {HDFS: 1, ROCKSDB: 2, LAMINA: 2}
FILES = {HDFS: "*.delta", ROCKSDB: "*.zip", LAMINA: "*.lam"}


# ---- several providers


def start(streams: Streams, provider: str, checkpoint: Path, version: int, answers: Answers) -> StreamingQuery:
    """A query that goes on until it is stopped."""
    conf = streams.spark.conf
    conf.set(PREFIX + "providerClass", provider)
    conf.set(PREFIX + "checkpointFormatVersion", str(version))
    try:
        writer = totals(streams.sources()).writeStream.outputMode("complete").foreachBatch(answers)
        return writer.option("checkpointLocation", str(checkpoint)).start()
    finally:
        conf.unset(PREFIX + "providerClass")
        conf.unset(PREFIX + "checkpointFormatVersion")


def test_lamina_serves_a_new_query_beside_running_ones_on_both_built_in_providers(streams: Streams) -> None:
    """Each query keeps the store that it was begun with, also where it is restarted in a session set to lamina."""
    batches = 0
    for again in (False, True):
        running: list[tuple[StreamingQuery, Answers]] = []
        streams.feed("s", rows(batches))
        batches += 1
        try:
            for provider, version in VERSIONS.items():
                answers = Answers()
                session = LAMINA if again else provider
                running.append((start(streams, session, streams.checkpoint(provider), version, answers), answers))
            for query, _ in running:
                query.processAllAvailable()
            streams.feed("s", rows(batches))
            batches += 1
            for query, _ in running:
                query.processAllAvailable()
        finally:
            for query, _ in running:
                query.stop()
        for _, answers in running:
            assert sorted(answers.batches) == [batches - 2, batches - 1]
            answers.check()
    for provider in VERSIONS:
        state = streams.checkpoint(provider) / "state"
        kinds = {kind for kind, pattern in FILES.items() if any(state.rglob(pattern))}
        assert kinds == {provider}


def test_format_v2_is_refused_by_the_heap_provider_and_not_by_lamina_in_one_session(streams: Streams) -> None:
    """What the guide says: the format is read when a query starts, so each query gets its own."""
    streams.feed("s", rows(0))
    with pytest.raises(StreamingQueryException, match="checkpointFormatVersion"):
        streams.run(totals, HDFS, mode="complete", format_version=2, checkpoint="refused")
    for provider, version in VERSIONS.items():
        answers = Answers()
        streams.run(totals, provider, mode="complete", format_version=version, each_batch=answers)
        assert sorted(answers.batches) == [0]
        answers.check()


# ---- offline repartition


def repartition(spark: SparkSession, checkpoint: Path, partitions: int, version: int) -> None:
    """Spark's own, which PySpark has no call for."""
    spark.conf.set(PREFIX + "checkpointFormatVersion", str(version))
    try:
        spark._jsparkSession.streamingCheckpointManager().repartition(str(checkpoint), partitions, True)
    finally:
        spark.conf.unset(PREFIX + "checkpointFormatVersion")


@pytest.mark.parametrize("version", [1, 2])
def test_an_offline_repartition_keeps_the_state_and_the_query_goes_on(
    streams: Streams, spark: SparkSession, version: int
) -> None:
    """Three keys in 5 partitions leave some empty; then one partition takes all, and gives back what it has."""
    batches = 0
    states: dict[int, list[str]] = {}
    for partitions in (2, 5, 1, 5):
        if batches:
            repartition(spark, streams.checkpoint(), partitions, version)
            states[batches] = state(spark, streams.checkpoint(), batches)
            assert states[batches] == states[batches - 1]
            assert len(states[batches]) == 3
            batches += 1
        streams.feed("s", rows(batches, keys=3))
        seen: dict[str, tuple[int, int]] = {}

        def keep(frame: DataFrame, batch: int, seen: dict[str, tuple[int, int]] = seen) -> None:
            seen.update({row.k: (row.n, row.total) for row in frame.collect()})

        ran = streams.run(totals, LAMINA, mode="complete", format_version=version, each_batch=keep)
        batches += 1
        (progress,) = (batch for batch in ran.progress if batch["numInputRows"])
        assert progress["stateOperators"][0]["numShufflePartitions"] == partitions
        assert seen == batch_answer(streams)
        states[batches - 1] = state(spark, streams.checkpoint(), batches - 1)
    # the tasks of a repartition are one run of the query
    assert len([*(streams.checkpoint() / "state/_lamina/runs").iterdir()]) == 4 + 3
    for path in (streams.checkpoint() / "state").rglob("*"):
        os.utime(path, (0, path.stat().st_mtime - 86_400))
    for command in ("fsck", "gc", "fsck"):
        assert run([command, str(streams.checkpoint())]) == 0
    assert {batch: state(spark, streams.checkpoint(), batch) for batch in states} == states


def state(spark: SparkSession, checkpoint: Path, batch: int) -> list[str]:
    """The rows of the state, whatever partition they are in."""
    return sorted(row.split(", partition_id")[0] for row in read(spark, checkpoint, LAMINA, batchId=batch))


def batch_answer(streams: Streams) -> dict[str, tuple[int, int]]:
    frame = streams.spark.read.schema("t timestamp, k string, v long").json(str(streams.path / "in" / "s"))
    return {row.k: (row.n, row.total) for row in totals({"s": frame}).collect()}


def test_an_offline_repartition_keeps_each_store_of_a_join(streams: Streams, spark: SparkSession) -> None:
    def join(frames: dict[str, DataFrame]) -> DataFrame:
        left = frames["l"].withWatermark("t", "1 hour").select("k", f.col("t").alias("lt"), f.col("v").alias("lv"))
        right = frames["r"].withWatermark("t", "1 hour").select(f.col("k").alias("rk"), "t", "v")
        return left.join(right, f.expr("k = rk and t between lt and lt + interval 5 minutes and lv = v"))

    for batch in range(2):
        streams.feed("l", rows(batch))
        streams.feed("r", rows(batch + 2))
    assert streams.run(join, LAMINA).all_rows == []
    repartition(spark, streams.checkpoint(), 5, 2)
    for batch in range(2):
        streams.feed("l", rows(batch + 2))
        streams.feed("r", rows(batch))
    joined = streams.run(join, LAMINA).all_rows
    assert len(joined) == len(set(joined)) == 200


# ---- checksums and schemas


CHECKED = {PREFIX + "rowChecksum.enabled": "true", PREFIX + "rowChecksum.readVerificationRatio": "1"}


@pytest.mark.parametrize("file_checksum", ["true", "false"])
def test_row_and_file_checksums_change_no_answer(streams: Streams, spark: SparkSession, file_checksum: str) -> None:
    conf = {
        **CHECKED,
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": file_checksum,
        PREFIX + "lamina.heap.handOverMs": "0",
    }
    answers = Answers()
    for batch in range(3):
        streams.feed("s", rows(batch))
        streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=conf)
        unload_all(spark)
    assert sorted(answers.batches) == [0, 1, 2]
    answers.check()
    for path in (streams.checkpoint() / "state" / "0").rglob("*.lam"):
        assert all(family.description["row_checksum"] for family in manifest(path).column_families)


def manifest(path: Path) -> CommitManifest:
    found = verify(path.read_bytes(), str(path))
    assert isinstance(found, CommitManifest)
    return found


def test_a_row_that_changed_behind_the_files_checksums_is_found_by_its_own(
    streams: Streams, spark: SparkSession
) -> None:
    conf = {**CHECKED, PREFIX + "lamina.heap.handOverMs": "0"}
    streams.feed("s", rows(0))
    streams.run(totals, LAMINA, mode="complete", conf=conf)
    unload_all(spark)
    for path in (streams.checkpoint() / "state" / "0").rglob("*.lam"):
        change_a_row(path)
    streams.feed("s", rows(1))
    with pytest.raises(StreamingQueryException, match="STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"):
        streams.run(totals, LAMINA, mode="complete", conf=conf)


def change_a_row(path: Path) -> None:
    """Flips a bit of each value, with the checksums of the file made right."""
    data, was = path.read_bytes(), manifest(path)
    section, reference = was.sections[0], was.references[0]
    schema, stored = messages(
        pa.BufferReader(data[section.offset : section.offset + section.length]), section.length, str(path)
    )
    columns = {name: [] for name in SCHEMA.names}
    for message in stored:
        for name, values in decode(message, schema, str(path)).to_pydict().items():
            columns[name] += values
    columns["value"] = [value[:8] + bytes([value[8] ^ 1]) + value[9:] for value in columns["value"]]
    changed = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)

    def manifest_of(sections: Any, crc: int) -> bytes:
        now = replace(reference, offset=sections[0].offset, length=sections[0].length, sha256=sections[0].sha256)
        return replace(was, sections=sections, header_crc=crc, references=(now,)).to_bytes()

    writer = ContainerWriter(COMMIT, Compression())
    path.write_bytes(b"".join(bytes(chunk) for chunk in writer.chunks([(section.name, [changed])], manifest_of)))
    manifest(path)


def other_value(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.max("k").alias("total"))


def other_key(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy(f.col("v").alias("k")).agg(f.count("*").alias("n"), f.sum("v").alias("total"))


@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        (other_value, "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"),
        (other_key, "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"),
    ],
    ids=["value", "key"],
)
def test_an_incompatible_state_schema_is_refused_as_on_the_built_in_provider(
    streams: Streams, changed: Any, condition: str
) -> None:
    streams.feed("s", rows(0))
    for provider in (LAMINA, HDFS):
        streams.run(totals, provider, mode="complete")
    streams.feed("s", rows(1))
    for provider in (LAMINA, HDFS):
        before = digest(streams.checkpoint(provider) / "state")
        with pytest.raises(StreamingQueryException, match=condition):
            streams.run(changed, provider, mode="complete")
        assert digest(streams.checkpoint(provider) / "state") == before
        answers = Answers()
        streams.run(totals, provider, mode="complete", each_batch=answers)
        assert sorted(answers.batches) == [1]
        answers.check()


# ---- batches that do not commit every partition


@pytest.mark.parametrize(
    ("provider", "version", "validated"),
    [(LAMINA, 1, "true"), (LAMINA, 1, "false"), (LAMINA, 2, "true"), (HDFS, 1, "true"), (ROCKSDB, 2, "true")],
)
def test_a_batch_that_leaves_partitions_uncommitted_fails_and_nothing_is_built_on_it(
    streams: Streams, provider: str, version: int, validated: str
) -> None:
    """With format v1 the batch is in Spark's log, so whoever opens its state must miss it, not take it for empty."""
    for batch in range(3):
        streams.feed("s", rows(batch))
    answers = Answers()

    def look_once(frame: DataFrame, batch: int) -> None:
        if batch == 1:
            assert len(frame.limit(1).collect()) == 1
        else:
            answers(frame, batch)

    conf = {PREFIX + "commitValidation.enabled": validated}
    with pytest.raises(StreamingQueryException):
        streams.run(totals, provider, mode="complete", format_version=version, each_batch=look_once, conf=conf)
    assert sorted(answers.batches) == [0]
    logged = (streams.checkpoint(provider) / "commits" / "1").exists()
    assert logged == (version == 1)
    if logged:
        missing = "file.missing" if provider == LAMINA else None
        with pytest.raises(StreamingQueryException, match=missing):
            streams.run(totals, provider, mode="complete", format_version=version, each_batch=answers)
        assert sorted(answers.batches) == [0]
    else:
        streams.run(totals, provider, mode="complete", format_version=version, each_batch=answers)
        assert sorted(answers.batches) == [0, 1, 2]
    answers.check()
