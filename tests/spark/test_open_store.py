"""`lamina.open_store` beside queries: it shows what Spark has committed, stops no query and takes no state away."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import DataFrame

import lamina
from lamina.testing.expect import fails_with
from tests.spark.streams import LAMINA, Streams
from tests.spark.test_restarts import expected, rows, totals

FORMATS = pytest.mark.parametrize("version", [1, 2])


def keys(streams: Streams, **settings: object) -> int:
    """How many keys both partitions have."""
    stores = [lamina.open_store(str(streams.checkpoint()), 0, partition, **settings) for partition in range(2)]
    return sum(1 for store in stores for _ in store.scan())


@FORMATS
def test_a_look_at_the_state_of_a_running_query_changes_nothing_and_the_query_goes_on(
    streams: Streams, version: int
) -> None:
    answers: dict[int, dict[str, tuple[int, int]]] = {}

    def look(frame: DataFrame, batch: int) -> None:
        answers[batch] = {row.k: (row.n, row.total) for row in frame.collect()}
        # its tasks have committed this batch's state; Spark has not, so what counts is that of the batch before
        assert keys(streams) == len(expected(batch))

    for batch in range(4):
        streams.feed("s", rows(batch))
    streams.run(totals, LAMINA, mode="update", format_version=version, each_batch=look)
    assert answers == {batch: expected(batch + 1) for batch in range(4)}
    assert keys(streams) == len(expected(4))


@FORMATS
def test_the_version_that_counts_is_the_one_in_sparks_log(streams: Streams, version: int) -> None:
    """Two actions on a batch write two attempts of each version; only the log tells which one Spark goes on with."""

    def twice(frame: DataFrame, batch: int) -> None:
        frame.count()
        frame.collect()

    for batch in range(3):
        streams.feed("s", rows(batch))
        streams.run(totals, LAMINA, mode="update", format_version=version, each_batch=twice)
        for partition in range(2):
            store = lamina.open_store(str(streams.checkpoint()), 0, partition)
            assert store.version.version == batch + 1
            assert all(verdict.action != "delete" for verdict in store.collect(dry_run=True).verdicts)
    assert keys(streams) == len(expected(3))
    # a version that Spark has not committed does not count, although its files are there
    for name in ("2", ".2.crc"):
        (streams.checkpoint() / "commits" / name).unlink(missing_ok=True)
    assert lamina.open_store(str(streams.checkpoint()), 0, 0).version.version == 2


def test_the_state_of_a_query_is_not_opened_for_writing(streams: Streams) -> None:
    streams.feed("s", rows(0))
    streams.run(totals, LAMINA, mode="update")
    before = sorted(path.name for path in streams.checkpoint().rglob("*"))
    with fails_with("store.unsupported") as caught:
        lamina.open_store(str(streams.checkpoint()), writable=True)
    assert str(streams.checkpoint()) in caught.error.message
    with fails_with("state.not-retained") as caught:
        lamina.open_store(str(streams.checkpoint()), 0, 7)
    assert "lamina inspect" in caught.error.message
    assert sorted(path.name for path in streams.checkpoint().rglob("*")) == before
    # a query that comes to a directory after it was opened for writing is noticed too
    empty = streams.path / "own"
    store = lamina.open_store(str(empty), writable=True)
    store.put(b"k", b"v")
    shutil.copytree(streams.checkpoint(), empty, dirs_exist_ok=True)
    with fails_with("store.unsupported"):
        store.commit()
