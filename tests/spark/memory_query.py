"""Counts numbers, each up to one that is fed, under a cap for the memory of state: `python memory_query.py <JSON>`."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.programs import program_session


def counted(spark: SparkSession, argument: dict[str, Any]) -> dict[str, Any]:
    """For each batch how many keys the state has and what they sum up to, bytes of changes that were kept on the local
    disk, and why the query failed."""
    answers: dict[int, list[int]] = {}

    def collect(frame: DataFrame, batch: int) -> None:
        (row,) = frame.agg(f.count("*"), f.sum("n")).collect()
        answers[batch] = list(row)

    stream = spark.readStream.schema("upto long").option("maxFilesPerTrigger", 1).json(argument["input"])
    numbers = stream.select(f.explode(f.sequence(f.lit(1), "upto")).alias("k"))
    query = (
        numbers.groupBy("k")
        .agg(f.count("*").alias("n"))
        .writeStream.outputMode("complete")
        .foreachBatch(collect)
        .option("checkpointLocation", argument["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    failure = None
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        failure = str(error)
    stores = [store for progress in query.recentProgress for store in progress["stateOperators"]]
    spilled = sum(store["customMetrics"].get("laminaSpilledBytes", 0) for store in stores)
    return {"answers": answers, "failure": failure, "spilled": spilled}


def main(argument: dict[str, Any]) -> None:
    spark = program_session("local[2]", argument["jar"], argument["settings"])
    spark.sparkContext.setLogLevel("OFF")
    print(json.dumps(counted(spark, argument)))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
