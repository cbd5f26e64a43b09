"""A query stopped at fifty random points, its engine killed now and then, gives what a plain batch query gives."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from lamina.settings import PREFIX
from tests.spark.streams import BACKEND, LAMINA, OF_MODE, SCHEMA, Streams, configured
from tests.spark.test_restarts import engine_pid, unload_all

pytestmark = pytest.mark.long

RESTARTS = 50
SEED = 20240101
# Files beyond those that a run is waited for: what was stopped between Spark's two logs becomes one batch of two files.
SPARE = 8

Answer = list[str]


def rows(draw: random.Random) -> list[dict[str, Any]]:
    return [
        {"t": "2024-01-01T00:00:00Z", "k": f"key {draw.randrange(60)}", "v": draw.randrange(1_000_000)}
        for _ in range(draw.randrange(1, 60))
    ]


def totals(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"), f.max("v").alias("largest"))


def expected(files: list[list[dict[str, Any]]]) -> Answer:
    values: dict[str, list[int]] = {}
    for row in (row for file in files for row in file):
        values.setdefault(row["k"], []).append(row["v"])
    return sorted(str(Row(k=k, n=len(v), total=sum(v), largest=max(v))) for k, v in values.items())


class Answers:
    """How often each batch was begun, the answers to it, and a signal when a run has begun a number of them."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()
        self.batches: dict[int, list[tuple[int, Answer]]] = {}
        self.reached = threading.Event()
        self._awaited = 0

    def wait_for(self, batches: int) -> None:
        self.reached.clear()
        self._awaited = batches

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.begun[batch] += 1
        self._awaited -= 1
        if self._awaited == 0:
            self.reached.set()
        found = frame.collect()
        answer = sum(row.n for row in found), sorted(map(str, found))
        self.batches.setdefault(batch, []).append(answer)


def kill_engine(spark: SparkSession) -> None:
    try:
        os.kill(engine_pid(spark), signal.SIGKILL)
    except (AssertionError, OSError):
        pass  # killed before, and not needed since


def test_fifty_restarts_at_random_points_give_the_answer_of_a_batch_query(
    streams: Streams, spark: SparkSession
) -> None:
    draw = random.Random(SEED)
    answers = Answers()
    fed: list[list[dict[str, Any]]] = []

    def feed(count: int) -> None:
        for _ in range(count):
            fed.append(rows(draw))
            streams.feed("s", fed[-1])

    settings = {
        "spark.sql.streaming.stateStore.providerClass": LAMINA,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        PREFIX + "backend": BACKEND,
        PREFIX + "rocksdb.materializeEvery": "2",
        **OF_MODE,
    }
    with configured(spark, settings):
        feed(SPARE)
        for _ in range(RESTARTS):
            batches = draw.choice([1, 1, 1, 2])
            feed(batches)
            answers.wait_for(batches)
            query = (
                totals(streams.sources()["s"])
                .writeStream.outputMode("complete")
                .foreachBatch(answers)
                .option("checkpointLocation", str(streams.checkpoint()))
                .start()
            )
            try:
                assert answers.reached.wait(600), query.exception()
                # From the planning of a batch, through its tasks and its commit, into the next one.
                query.awaitTermination(draw.uniform(0.0, 0.2))
                event = draw.choice(["stop", "stop", "unload", "kill the engine"])
                if event == "kill the engine":
                    kill_engine(spark)
            finally:
                query.stop()
            if event == "unload":
                unload_all(spark)
    streams.run(lambda frames: totals(frames["s"]), LAMINA, mode="complete", each_batch=answers)

    # Which files a batch takes is Spark's choice, but it takes them in their order, so the number of rows tells.
    after = {sum(map(len, fed[:files])): expected(fed[:files]) for files in range(1, len(fed) + 1)}
    counts = []
    for batch, found in sorted(answers.batches.items()):
        assert all(answer == found[0] for answer in found), batch
        counts.append(found[0][0])
        assert found[0][1] == after[counts[-1]], batch
    assert counts == sorted(set(counts))
    everything = spark.read.schema(SCHEMA).json(str(streams.path / "in" / "s"))
    assert answers.batches[max(answers.batches)][-1][1] == sorted(map(str, totals(everything).collect()))
    assert sum(times - 1 for times in answers.begun.values()) >= RESTARTS // 5, "hardly a stop was within a batch"
