"""A query whose first attempt of one task commits its state and then stalls, on a cluster that speculates.

`python speculation_query.py <JSON>`. Each answer carries noise that its attempt drew, and the noise that it found in
the state, so that the answers show which attempt's state the next batch built on. Prints one JSON object: the rows of
each batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from lamina.spark.configure import CHECKPOINT_FORMAT_KEY
from tests.spark.programs import program_session

OUTPUT = "k string, n long, total long, before long, noise long, attempt int"


def noisy(key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    n, total, before = state.get if state.exists else (0, 0, 0)
    for batch in batches:
        n += len(batch)
        total += int(batch["v"].sum())
    noise = int.from_bytes(os.urandom(4), "big")
    state.update((n, total, noise))
    context = TaskContext.get()
    assert context is not None
    row = {"k": key[0], "n": n, "total": total, "before": before, "noise": noise, "attempt": context.attemptNumber()}
    yield pd.DataFrame([row])


def session(argument: dict[str, Any]) -> SparkSession:
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.5",
        # of the task that stalls, and of no other that is slow
        "spark.speculation.minTaskRuntime": "15s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": argument["events"],
        CHECKPOINT_FORMAT_KEY: str(argument["format_version"]),
        **argument["durability"],
    }
    spark = program_session(argument["master"], argument["jar"], settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(spark: SparkSession, argument: dict[str, Any], stalling: int) -> dict[int, list[dict[str, Any]]]:
    """Processes the files that are there; in the batch of the `stalling`-th file, if any, a task stalls."""
    answered = Path(argument["answered"])
    answers: dict[int, list[dict[str, Any]]] = {}

    def stall(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        # What comes here has left the stateful operator; when nothing more comes, its commit is done.
        largest = 0
        for batch in batches:
            largest = max(largest, int(batch["n"].max()))
            yield batch
        context = TaskContext.get()
        assert context is not None
        if largest == stalling and context.partitionId() == 0 and context.attemptNumber() == 0:
            while not answered.exists():
                time.sleep(0.1)

    def collect(frame: DataFrame, batch: int) -> None:
        answers[batch] = [row.asDict() for row in frame.collect()]
        if batch == stalling - 1:
            answered.touch()

    stream = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(argument["input"])
    query = (
        stream.groupBy("k")
        .applyInPandasWithState(
            noisy,
            OUTPUT,
            "n long, total long, noise long",
            "update",
            GroupStateTimeout.NoTimeout,
        )
        .mapInPandas(stall, OUTPUT)
        .writeStream.outputMode("update")
        .foreachBatch(collect)
        .option("checkpointLocation", argument["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return answers


def main(argument: dict[str, Any]) -> None:
    spark = session(argument)
    print(json.dumps(run(spark, argument, argument["stalling"])))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
