"""Several attempts of one batch: `foreachBatch` with two actions opens and commits each version twice."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.spark.streams import LAMINA, Run, Streams

BATCHES = 50


def rows(batch: int) -> list[dict[str, Any]]:
    return [{"t": "2024-01-01T00:00:00Z", "k": f"key {n % 37}", "v": n} for n in range(batch * 20, batch * 20 + 60)]


def totals(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def expected(batches: int) -> dict[str, tuple[int, int]]:
    """Count and sum per key after a number of batches."""
    result: dict[str, tuple[int, int]] = {}
    for batch in range(batches):
        for row in rows(batch):
            n, total = result.get(row["k"], (0, 0))
            result[row["k"]] = (n + 1, total + row["v"])
    return result


@pytest.mark.parametrize("level", ["task", "store"])
def test_two_actions_per_batch_give_right_answers_and_reload_nothing(streams: Streams, level: str) -> None:
    for batch in range(BATCHES):
        streams.feed("s", rows(batch))
    seen: dict[int, tuple[int, dict[str, tuple[int, int]]]] = {}

    def two_actions(frame: DataFrame, batch: int) -> None:
        count = frame.count()
        seen[batch] = count, {row.k: (row.n, row.total) for row in frame.collect()}

    run = streams.run(
        totals,
        LAMINA,
        mode="complete",
        each_batch=two_actions,
        conf={"spark.sql.streaming.stateStore.lamina.durability.level": level},
    )
    assert sorted(seen) == list(range(BATCHES))
    for batch, (count, result) in seen.items():
        assert result == expected(batch + 1), batch
        assert count == len(result)
    assert run.metric("laminaReloads") == 0
    assert_attempts_met(run)


def assert_attempts_met(run: Run) -> None:
    """The second action undid the first one's commit, and the next batch found the first one's attempt."""
    assert run.metric("laminaStepBacks") >= BATCHES
    assert run.metric("laminaRelabels") + run.metric("laminaCatchUps") >= BATCHES


def test_two_actions_that_differ_continue_from_the_attempt_that_spark_recorded(streams: Streams) -> None:
    """The sum is deterministic, `first` is not: what counts is that no row is lost or counted twice."""
    for batch in range(BATCHES):
        streams.feed("s", rows(batch))
    seen: dict[int, dict[str, int]] = {}

    @F.udf("long")
    def unpredictable(_: int) -> int:
        import os

        return int.from_bytes(os.urandom(4), "big")

    def query(frames: dict[str, DataFrame]) -> DataFrame:
        events = frames["s"].withColumn("noise", unpredictable.asNondeterministic()("v"))
        return events.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.sum("noise").alias("noise"))

    def two_actions(frame: DataFrame, batch: int) -> None:
        first = {row.k: row for row in frame.collect()}
        second = {row.k: row for row in frame.collect()}
        want = expected(batch + 1)
        assert {key: (row.n, row.total) for key, row in first.items()} == want
        assert {key: (row.n, row.total) for key, row in second.items()} == want
        # Both build on what the first action of the batch before had.
        before = seen.get(batch - 1, {})
        touched = {row["k"] for row in rows(batch)}
        for key, noise in before.items():
            if key not in touched:
                assert first[key].noise == noise
                assert second[key].noise == noise
        seen[batch] = {key: row.noise for key, row in first.items()}

    run = streams.run(query, LAMINA, mode="complete", each_batch=two_actions)
    assert sorted(seen) == list(range(BATCHES))
    assert run.metric("laminaReloads") == 0
    assert run.metric("laminaRelabels") == 0
    assert run.metric("laminaCatchUps") >= BATCHES


def test_persisting_a_batch_makes_one_attempt(streams: Streams) -> None:
    for batch in range(5):
        streams.feed("s", rows(batch))

    def two_actions(frame: DataFrame, batch: int) -> None:
        frame.persist()
        assert frame.count() == len(expected(batch + 1))
        assert {row.k: (row.n, row.total) for row in frame.collect()} == expected(batch + 1)
        frame.unpersist()

    run = streams.run(totals, LAMINA, mode="complete", each_batch=two_actions)
    assert run.metric("laminaStepBacks") == 0
    assert run.metric("laminaReloads") == 0
