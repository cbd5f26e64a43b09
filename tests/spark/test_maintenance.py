"""What the maintenance process does beside a query, as the query's progress tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.streams import A_FILE_EACH, BACKEND, LAMINA, Streams, wait_for
from tests.spark.test_restarts import Answers, rows, totals, unload_all

BATCHES, COMPACTED, COLLECTED = 16, 5, 10
"""Batches, and those that wait: for a segment of all versions before, or a list of tables, which the commit after it
refers to; and until those versions are gone, when two such commits are retained and the next one has begun."""

BASES = "*.rdb" if BACKEND == "rocksdb" else "*.seg"


@pytest.fixture
def own_interval(spark: SparkSession) -> Iterator[None]:
    """Spark reads the interval of maintenance when the first store is opened, for all that follow."""
    unload_all(spark)
    yield
    unload_all(spark)


@pytest.mark.usefixtures("own_interval")
def test_a_querys_progress_counts_segments_and_the_files_that_were_deleted(streams: Streams) -> None:
    for batch in range(BATCHES):
        streams.feed("s", rows(batch))
    answers = Answers()

    def each_batch(frame: DataFrame, batch: int) -> None:
        answers(frame, batch)
        store = streams.checkpoint() / "state" / "0"
        if batch == COMPACTED:
            # the stores stay open between two batches, and so does the maintenance of them
            wait_for(lambda: all(list((store / part).glob(BASES)) for part in ("0", "1")))
        if batch == COLLECTED:
            wait_for(lambda: all(not files_of(store / part, 1) for part in ("0", "1")))

    prefix = "spark.sql.streaming."
    conf = {
        **A_FILE_EACH,
        prefix + "minBatchesToRetain": "1",
        prefix + "stateStore.maintenanceInterval": "300ms",
        prefix + "stateStore.lamina.retention.minAgeMs": "1",
        prefix + "stateStore.lamina.rocksdb.materializeEvery": "4",
    }
    run = streams.run(totals, LAMINA, mode="complete", conf=conf, each_batch=each_batch)
    answers.check()
    assert len(run.progress) == BATCHES
    assert run.metric("laminaSegments") >= 2
    assert run.metric("laminaMergeMs") > 0
    # of each store the file of version 1 at least
    assert run.metric("laminaCollectedFiles") >= 2
    assert run.metric("laminaCollectedBytes") > run.metric("laminaCollectedFiles") * 100
    last = run.progress[-1]["stateOperators"][0]["customMetrics"]
    stored, newest = last["laminaStoredBytes"], last["laminaNewestBytes"]
    # what was deleted is not there, and each of the two stores has a file of more than a hundred bytes
    written = run.metric("laminaWrittenBytes")
    assert 200 < newest <= stored <= 2 * written


def files_of(store: Path, version: int) -> list[Path]:
    """The commits of a version that are there."""
    return list(store.glob(f"{version}_*.lam"))
