"""A fresh session whose first query has a typo in a setting of the whole JVM: prints how each attempt to run ends."""

from __future__ import annotations

import json
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import lamina
from tests.spark.streams import configured

KEY = "spark.sql.streaming.stateStore.lamina.heap.maxBytes"


def run(spark: SparkSession, checkpoint: str, settings: dict[str, str]) -> str:
    """ "ok", or the message with which the query fails."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = frame.groupBy("value").count().writeStream.format("noop").outputMode("update")
    try:
        with configured(spark, settings):
            query.option("checkpointLocation", checkpoint).trigger(once=True).start().awaitTermination()
        return "ok"
    except StreamingQueryException as error:
        return str(error)


def main(directory: str) -> None:
    """Runs the query with each of the settings in turn."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = lamina.configure(builder.config("spark.ui.enabled", "false")).getOrCreate()
    tries = [{KEY[:-1]: "1g"}, {KEY: "512k"}, {}, {KEY: "1g"}, {}]
    print(json.dumps([run(spark, f"{directory}/checkpoint", settings) for settings in tries]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
