"""A query in compaction mode full: which versions are snapshots, and restarts from them and from what follows them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.golden import decoder
from tests.spark.streams import A_FILE_EACH, Streams
from tests.spark.test_rolling import check_rows, run_batches

RUNS = ((0, 3), (3, 5))
"""The batches of each run. The last one closes a window, so that a batch without data follows, in which rows go."""

VERSIONS = 7


@pytest.mark.parametrize("interval", [1, 3])
def test_a_query_that_is_restarted_gives_what_the_same_query_gives_as_a_batch(
    streams: Streams, spark: SparkSession, interval: int
) -> None:
    prefix = "spark.sql.streaming.stateStore.lamina."
    conf = {**A_FILE_EACH, prefix + "compaction.mode": "full", prefix + "compaction.fullInterval": str(interval)}
    found: list[str] = []
    for first, end in RUNS:
        found += run_batches(streams, spark, range(first, end), conf)
    for partition in (0, 1):
        check_versions(streams, partition, interval)
    check_rows(found, streams, spark, RUNS[-1][1])


def check_versions(streams: Streams, partition: int, interval: int) -> None:
    """Each version whose number the interval divides is one snapshot; those between are increments on top of it."""
    directory = streams.checkpoint() / "state" / "0" / str(partition)
    names = {int(path.name.split("_")[0]): path.name for path in directory.glob("*.lam")}
    assert sorted(names) == list(range(1, VERSIONS + 1))
    for version, name in names.items():
        manifest = decoder.File(directory / name).manifest
        since = version % interval
        snapshot = [("snapshot", 0, version - since)] if version > since else []
        increments = [("increment", number - 1, number) for number in range(version, version - since, -1)]
        assert [(one["kind"], one["from"], one["to"]) for one in manifest["references"]] == increments + snapshot
        assert manifest["references"][0]["path"] is None
        assert len(decoder.state(directory, name)) == manifest["counts"]["0"]["rows"] > 20
