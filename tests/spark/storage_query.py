"""A query in a process of its own, with jars and Hadoop keys of its own: `python storage_query.py <JSON>`.

Prints one JSON object: the result of each batch, the checkpoint's files, and what the metrics say of local copies.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

LAMINA = "org.apache.spark.sql.lamina.LaminaStateStoreProvider"
PREFIX = "spark.sql.streaming.stateStore."


def session(conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        PREFIX + "providerClass": LAMINA,
        PREFIX + "checkpointFormatVersion": "2",
        PREFIX + "maintenanceInterval": "500ms",
        PREFIX + "lamina.heap.maxBytes": "256m",
        PREFIX + "lamina.engine.python": sys.executable,
        **conf,
    }
    spark: SparkSession = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(argument: dict[str, Any]) -> None:
    spark = session(argument["conf"])
    answers: dict[int, dict[str, list[int]]] = {}

    def collect(frame: DataFrame, batch: int) -> None:
        answers[batch] = {row.k: [row.n, row.total] for row in frame.collect()}

    stream = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(argument["input"])
    query = (
        stream.groupBy("k")
        .agg(f.count("*").alias("n"), f.sum("v").alias("total"))
        .writeStream.outputMode("complete")
        .foreachBatch(collect)
        .option("checkpointLocation", argument["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    root = jvm.org.apache.hadoop.fs.Path(argument["checkpoint"])
    files = root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def below(directory: Any) -> list[str]:
        listed = list(files.listStatus(directory))
        found = [status.getPath().getName() for status in listed if not status.isDirectory()]
        return found + [name for status in listed if status.isDirectory() for name in below(status.getPath())]

    deadline = time.monotonic() + 300
    while argument["await_segment"] and not any(name.endswith(".seg") for name in below(root)):
        if time.monotonic() > deadline:
            raise TimeoutError("the maintenance process wrote no segment")
        time.sleep(0.1)
    progress = query.lastProgress
    copied = 0 if progress is None else progress["stateOperators"][0]["customMetrics"]["laminaCopiedBytes"]
    print(json.dumps({"answers": answers, "files": sorted(below(root)), "copied": copied}))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
