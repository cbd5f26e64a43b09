"""Spark goes on from logs that `CheckpointLogWriter` wrote in place of its own, and its readers read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lamina.checkpoint import CheckpointLogs, CheckpointLogWriter, CommitEntry, commit_bytes
from lamina.storage import Storage
from tests.spark.streams import LAMINA, ROCKSDB, SETTLED, Query, Streams
from tests.spark.test_operators import aggregation, rows
from tests.spark.test_state_reader import read
from tests.spark.test_transform_with_state import with_rows
from tests.unit.checkpoint.test_written_logs import rewrite

SPARKS = ("metadata", "offsets/*", "commits/*", "state/*/_metadata/**/*", "state/**/_metadata/schema",
          "state/*/_stateSchema/**/*")  # fmt: skip
STATE = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true", **SETTLED}


def logs(checkpoint: Path) -> dict[str, bytes]:
    """All of Spark's logs."""
    return {
        str(path.relative_to(checkpoint)): path.read_bytes()
        for pattern in SPARKS
        for path in checkpoint.glob(pattern)
        if path.is_file() and not path.name.startswith(".")
    }


def copy_with_written_logs(checkpoint: Path, copy: Path) -> None:
    """Copies a checkpoint; the copy has logs that were read from the original and written anew."""
    shutil.copytree(checkpoint, copy)
    for path in logs(copy):
        (copy / path).unlink()
    assert logs(copy) == {}
    rewrite(CheckpointLogs(Storage(str(checkpoint))), CheckpointLogWriter(Storage(str(copy)), f"file:{copy}"))
    moved = {
        path: data.replace(str(checkpoint).encode(), str(copy).encode()) for path, data in logs(checkpoint).items()
    }
    assert logs(copy) == moved


def metadata(spark: SparkSession, checkpoint: Path) -> list[str]:
    frame = spark.read.format("state-metadata").load(str(checkpoint))
    return sorted(str(row) for row in frame.collect())


@pytest.mark.parametrize("provider", [LAMINA, ROCKSDB], ids=["lamina", "RocksDB"])
@pytest.mark.parametrize(
    ("query", "variable"),
    [pytest.param(aggregation, {}, id="aggregation"), pytest.param(with_rows, {"stateVarName": "totals"}, id="tws")],
)
def test_a_query_goes_on_from_written_logs_as_from_its_own(
    streams: Streams, query: Query, variable: dict[str, str], provider: str
) -> None:
    for batch in range(3):
        streams.feed("s", rows(batch, 10 + 3 * batch, 30))
    streams.run(query, provider, mode="update", conf=STATE)
    own, written = streams.checkpoint(provider), streams.checkpoint(provider, "written")
    copy_with_written_logs(own, written)

    assert metadata(streams.spark, written) == metadata(streams.spark, own) != []
    state = read(streams.spark, own, provider, **variable)
    assert len(state) > 3
    for batch in range(3, 6):
        streams.feed("s", rows(batch, 10 + 3 * batch, 30))
    expected = streams.run(query, provider, mode="update", conf=STATE)
    assert len(expected.batches) >= 3
    # whatever the copy still asked the original for would be missed
    shutil.rmtree(own)

    assert read(streams.spark, written, provider, **variable) == state
    went_on = streams.run(query, provider, mode="update", checkpoint="written", conf=STATE)
    assert went_on.batches == expected.batches
    assert metadata(streams.spark, written)[0].startswith("Row(operatorId=0")


def test_hadoop_reads_a_log_where_another_one_had_a_checksum(spark: SparkSession, tmp_path: Path) -> None:
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.LocalFileSystem()
    files.initialize(spark._jvm.java.net.URI("file:///"), spark._jsc.hadoopConfiguration())
    path = hadoop.Path(f"file:{tmp_path}/commits/3")
    stream = files.create(path, True)
    stream.write(bytearray(b'v1\n{"nextBatchWatermarkMs":1}'))
    stream.close()
    assert (tmp_path / "commits/.3.crc").exists()
    (tmp_path / "commits/3").unlink()

    entry = CommitEntry(1, 3, 2, None, {})
    CheckpointLogWriter(Storage(str(tmp_path)), f"file:{tmp_path}").commit(entry)
    stream = files.open(path)
    assert stream.readAllBytes() == commit_bytes("commits/3", entry)
    stream.close()
