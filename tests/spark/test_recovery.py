"""Damaged files under a query: it restarts by another way to its state, or fails and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lamina.format import verify
from lamina.format.container import Footer
from lamina.format.manifest import INCREMENT, SNAPSHOT, CommitManifest
from lamina.testing.expect import fails_with
from tests.spark.streams import A_FILE_EACH, LAMINA, Streams
from tests.spark.test_restarts import Answers, rows, totals, unload_all

PREFIX = "spark.sql.streaming.stateStore.lamina."
CONF = {
    **A_FILE_EACH,
    PREFIX + "heap.handOverMs": "0",
    PREFIX + "compaction.mode": "full",
    PREFIX + "compaction.fullInterval": "3",
}


def partitions(streams: Streams) -> list[Path]:
    return [streams.checkpoint() / "state" / "0" / str(partition) for partition in range(2)]


def file_of(partition: Path, version: int) -> Path:
    (path,) = partition.glob(f"{version}_*.lam")
    return path


def manifest(path: Path) -> CommitManifest:
    found = verify(path.read_bytes(), str(path))
    assert isinstance(found, CommitManifest)
    return found


def damage_snapshot(partition: Path, version: int) -> None:
    path = file_of(partition, version)
    section = manifest(path).section(SNAPSHOT)
    assert section is not None
    flip(path, section.offset + section.length // 2)


def damage_manifest(path: Path) -> None:
    data = path.read_bytes()
    flip(path, Footer.parse(data, len(data), str(path)).manifest_offset)


def flip(path: Path, position: int) -> None:
    """Changes a byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
    with fails_with("file.damaged"):
        verify(data, str(path))


def write_eight_versions(streams: Streams, spark: SparkSession, answers: Answers) -> None:
    """The third and the sixth are snapshots; the newest stands on the latter. No table of them is kept."""
    for batch in range(8):
        streams.feed("s", rows(batch))
    streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=CONF)
    unload_all(spark)
    for partition in partitions(streams):
        needed = {(reference.kind, reference.end) for reference in manifest(file_of(partition, 8)).references}
        assert needed == {(SNAPSHOT, 6), (INCREMENT, 7), (INCREMENT, 8)}


def test_a_query_restarts_around_a_damaged_snapshot(streams: Streams, spark: SparkSession) -> None:
    answers = Answers()
    write_eight_versions(streams, spark, answers)
    for partition in partitions(streams):
        damage_snapshot(partition, 6)
    streams.feed("s", rows(8))
    streams.feed("s", rows(9))
    run = streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=CONF)
    assert sorted(answers.batches) == list(range(10))
    answers.check()
    assert run.metric("laminaReloads") == 2


def test_a_query_without_a_whole_way_to_its_state_names_the_file_and_what_to_do(
    streams: Streams, spark: SparkSession
) -> None:
    answers = Answers()
    write_eight_versions(streams, spark, answers)
    copies = {}
    for partition in partitions(streams):
        for version in (3, 6):
            copies[file_of(partition, version)] = file_of(partition, version).read_bytes()
            damage_snapshot(partition, version)
        # the increments below the older snapshot would be a way, too
        file_of(partition, 2).unlink()
    streams.feed("s", rows(8))
    with pytest.raises(StreamingQueryException) as failed:
        streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=CONF)
    assert_hopeless(str(failed.value), [file_of(partition, 6) for partition in partitions(streams)])
    assert sorted(answers.batches) == list(range(8))
    for path, data in copies.items():
        path.write_bytes(data)
    streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=CONF)
    assert sorted(answers.batches) == list(range(9))
    answers.check()


def assert_hopeless(message: str, damaged: list[Path]) -> None:
    """The message names one of these files as damaged, and says what helps."""
    assert "[file.damaged]" in message
    assert any(str(path) in message for path in damaged)
    assert "restart the query from an older batch" in message
    assert "lamina fsck" in message


def test_a_query_that_first_writes_names_a_damaged_manifest_and_what_to_do(
    streams: Streams, spark: SparkSession
) -> None:
    """De-duplication opens its store for writing at once: its next version stands on the damaged one's manifest."""

    def query(frames: dict[str, DataFrame]) -> DataFrame:
        return frames["s"].dropDuplicates(["k"])

    for batch in range(3):
        streams.feed("s", [{"t": "2024-01-01T00:00:00Z", "k": f"key {n}", "v": n} for n in range(20 * batch + 40)])
    before = streams.run(query, LAMINA, conf=CONF)
    assert [len(found) for found in before.batches.values()] == [40, 20, 20]
    unload_all(spark)
    copies = {path: path.read_bytes() for path in (file_of(partition, 3) for partition in partitions(streams))}
    for path in copies:
        damage_manifest(path)
    streams.feed("s", [{"t": "2024-01-01T00:00:00Z", "k": f"key {n}", "v": n} for n in range(90)])
    with pytest.raises(StreamingQueryException) as failed:
        streams.run(query, LAMINA, conf=CONF)
    assert_hopeless(str(failed.value), list(copies))
    for path, data in copies.items():
        path.write_bytes(data)
    after = streams.run(query, LAMINA, conf=CONF)
    assert [len(found) for found in after.batches.values()] == [10]
