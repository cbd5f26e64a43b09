"""Several attempts of one batch: `foreachBatch` with two actions, and two runs of one query at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.jvms import java_options
from tests.spark.streams import LAMINA, Streams
from tests.spark.test_storages import run as run_elsewhere

BATCHES = 50
FEW_BATCHES = 15

ELSEWHERE = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "1", **java_options()}


def rows(batch: int) -> list[dict[str, Any]]:
    return [{"t": "2024-01-01T00:00:00Z", "k": f"key {n % 37}", "v": n} for n in range(batch * 20, batch * 20 + 60)]


def totals(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def expected(batches: int) -> dict[str, tuple[int, int]]:
    """Count and sum per key after a number of batches."""
    result: dict[str, tuple[int, int]] = {}
    for batch in range(batches):
        for row in rows(batch):
            n, total = result.get(row["k"], (0, 0))
            result[row["k"]] = (n + 1, total + row["v"])
    return result


@pytest.mark.parametrize(
    ("level", "version", "batches"), [("task", 2, BATCHES), ("store", 2, BATCHES), ("task", 1, FEW_BATCHES)]
)
def test_two_actions_per_batch_give_right_answers_and_reload_nothing(
    streams: Streams, level: str, version: int, batches: int
) -> None:
    for batch in range(batches):
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
        format_version=version,
        conf={"spark.sql.streaming.stateStore.lamina.durability.level": level},
    )
    assert sorted(seen) == list(range(batches))
    for batch, (count, result) in seen.items():
        assert result == expected(batch + 1), batch
        assert count == len(result)
    assert run.metric("laminaReloads") == 0
    # the second action undid the first one's commit
    assert run.metric("laminaStepBacks") >= batches
    # with format v2 the next batch stands on the first one's attempt, with v1 on the second one's, as the table does
    met_again = run.metric("laminaRelabels") + run.metric("laminaCatchUps")
    assert met_again >= batches if version == 2 else met_again == 0


def noisy(key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Counts, and adds noise: after the shuffle, so that each action draws anew."""
    n, total, before = state.get if state.exists else (0, 0, 0)
    for batch in batches:
        n += len(batch)
        total += int(batch["v"].sum())
    noise = int.from_bytes(os.urandom(4), "big")
    state.update((n, total, noise))
    yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total], "before": [before], "noise": [noise]})


@pytest.mark.parametrize(("version", "batches"), [(2, BATCHES), (1, FEW_BATCHES)])
def test_two_actions_that_differ_continue_from_the_attempt_that_counts(
    streams: Streams, version: int, batches: int
) -> None:
    """With format v2 the one that Spark recorded, the first; with v1 the one that replaced it."""
    for batch in range(batches):
        streams.feed("s", rows(batch)[:15])
    counts: dict[str, tuple[int, int]] = {}
    counting: dict[str, int] = {}

    def query(frames: dict[str, DataFrame]) -> DataFrame:
        return (
            frames["s"]
            .groupBy("k")
            .applyInPandasWithState(
                noisy,
                "k string, n long, total long, before long, noise long",
                "n long, total long, noise long",
                "update",
                GroupStateTimeout.NoTimeout,
            )
        )

    differing = 0

    def two_actions(frame: DataFrame, batch: int) -> None:
        nonlocal differing
        for row in rows(batch)[:15]:
            n, total = counts.get(row["k"], (0, 0))
            counts[row["k"]] = n + 1, total + row["v"]
        first, second = ({row.k: row for row in frame.collect()} for _ in range(2))
        assert first.keys() == second.keys() == {row["k"] for row in rows(batch)[:15]}
        for key, row in [*first.items(), *second.items()]:
            assert (row.n, row.total) == counts[key]
            # both actions of this batch stand on the same attempts
            assert row.before == counting.get(key, 0)
        differing += {key: row.noise for key, row in first.items()} != {key: row.noise for key, row in second.items()}
        counting.update({key: row.noise for key, row in (first if version == 2 else second).items()})

    run = streams.run(query, LAMINA, mode="update", each_batch=two_actions, format_version=version)
    assert differing == batches
    assert len(run.progress) == batches
    assert run.metric("laminaReloads") == 0
    assert run.metric("laminaRelabels") == 0
    caught_up = run.metric("laminaCatchUps")
    assert caught_up >= batches - 1 if version == 2 else caught_up == 0


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


def test_a_run_is_refused_that_goes_on_after_a_newer_one_began(streams: Streams) -> None:
    """Format v1, where only run and task say which of two attempts counts. The newer run is another driver's, since
    Spark stops the older one of the same driver."""
    streams.feed("s", rows(0))
    streams.feed("s", rows(1))
    answers: dict[int, dict[str, tuple[int, int]]] = {}
    newer: dict[str, dict[str, list[int]]] = {}
    published: set[Path] = set()
    state = streams.checkpoint() / "state"

    def collect(frame: DataFrame, batch: int) -> None:
        if batch == 1:
            streams.feed("s", rows(2))
            newer.update(run_elsewhere(streams.path / "in" / "s", str(streams.checkpoint()), [], ELSEWHERE)["answers"])
            published.update(state.rglob("*.lam"))
        answers[batch] = {row.k: (row.n, row.total) for row in frame.collect()}

    with pytest.raises(StreamingQueryException) as failed:
        streams.run(totals, LAMINA, mode="complete", format_version=1, each_batch=collect)
    assert "[state.superseded]" in str(failed.value)
    assert answers == {0: expected(1)}
    assert newer == {str(batch): {k: list(row) for k, row in expected(batch + 1).items()} for batch in (1, 2)}
    assert len(published) == 6
    assert set(state.rglob("*.lam")) == published

    streams.feed("s", rows(3))
    streams.run(totals, LAMINA, mode="complete", format_version=1, each_batch=collect)
    assert answers == {0: expected(1), 3: expected(4)}
