"""The query that the kill campaign kills: `python -m tests.kill.query <request>`, ends with its standard input."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from lamina.settings import PREFIX
from lamina.spark import configure
from tests.kill.points import BETWEEN
from tests.kill.records import DELAY_S, WINDOW_S

PARTITIONS = 3


def session(request: dict[str, Any]) -> SparkSession:
    """A small cluster of processes on this machine; lost executors are replaced for ever."""
    builder = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName("lamina-kill")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.task.maxFailures", "100")
        .config("spark.stage.maxConsecutiveAttempts", "100")
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.locality.wait", "100ms")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        # with more keys lists would be collected by sorting, which does not keep their order
        .config("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", "100000")
        .config("spark.sql.streaming.minBatchesToRetain", request["min_batches"])
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "2s")
        .config("spark.sql.warehouse.dir", f"{request['root']}/warehouse")
        # one file of plain lines for each driver, which the campaign reads in the end
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", f"file:{request['root']}/events")
        .config("spark.eventLog.rolling.enabled", "false")
        .config("spark.eventLog.compress", "false")
        .config(map=request["conf"])
    )
    backend = request["conf"].get(PREFIX + "backend", "heap")
    return configure(builder, backend=backend, retention_min_age_ms=request["min_age_ms"]).getOrCreate()


def query(rows: DataFrame, padding: int) -> DataFrame:
    """Per key and window, which records came, in their order, each with a tag of its own.

    In the state each record has so many bytes more.
    """
    tag = sql.expr("reflect('java.lang.System', 'nanoTime')")
    return (
        rows.withColumn("item", sql.concat_ws(":", "s", tag, sql.lit("." * padding)))
        .withWatermark("t", f"{DELAY_S} seconds")
        .groupBy(sql.window("t", f"{WINDOW_S} seconds").alias("w"), "k")
        .agg(sql.collect_list("item").alias("items"))
        .withColumn("items", sql.transform("items", lambda item: sql.substring_index(item, ":", 2)))
        .select(sql.col("w.start").cast("long").alias("start"), "k", "items")
    )


class Sink:
    """Writes what a batch put out and how many files were read by then into a file; a repeated batch replaces it."""

    def __init__(self, spark: SparkSession, checkpoint: str, folder: Path, orders: Path, jvm: int) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._folder = folder
        self._orders = orders
        self._jvm = jvm

    def __call__(self, rows: DataFrame, batch: int) -> None:
        found = [[row.start, row.k, list(row["items"])] for row in rows.collect()]
        temporary = self._folder / f".{batch}"
        temporary.write_text(json.dumps({"read": self._read_by(batch), "rows": found}))
        temporary.rename(self._folder / f"{batch}.json")
        # all stores of the batch are committed, and Spark has not written `commits/<batch>` yet
        self._reach()

    def _read_by(self, batch: int) -> int:
        """How many files the query has read with this batch, as its log of offsets says."""
        jvm, context = self._spark.sparkContext._jvm, self._spark.sparkContext._jsc
        assert jvm is not None and context is not None
        path = jvm.org.apache.hadoop.fs.Path(f"{self._checkpoint}/offsets/{batch}")
        with contextlib.closing(path.getFileSystem(context.hadoopConfiguration()).open(path)) as log:
            text = jvm.org.apache.commons.io.IOUtils.toString(log, "UTF-8")
        # an entry of the source's own log is a file, of which the first has the number 0
        return int(json.loads(text.splitlines()[-1])["logOffset"]) + 1

    def _reach(self) -> None:
        current = self._orders / "current.json"
        try:
            order = json.loads(current.read_text())
            process = self._jvm if order["victim"] == "driver" else order["process"]
            # whoever is gone meanwhile is not killed, and not counted
            if order["point"] != BETWEEN or process is None or not Path(f"/proc/{process}").exists():
                return
            current.rename(self._orders / f"taken-{order['id']}.json")
        except (FileNotFoundError, ValueError):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def main(request: dict[str, Any]) -> int:
    """Runs until standard input ends; 3 where the query failed."""
    root = Path(request["root"])
    spark = session(request)
    assert spark.sparkContext._jvm is not None
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    source = spark.readStream.schema("k string, s long, t timestamp").option("maxFilesPerTrigger", 1)
    running = (
        query(source.json(str(root / "in")), request["padding"])
        .writeStream.outputMode("update")
        .foreachBatch(Sink(spark, request["checkpoint"], root / "out", root / "orders", jvm))
        .option("checkpointLocation", request["checkpoint"])
        .start()
    )
    print(json.dumps({"driver": jvm}), flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), running.stop()), daemon=True).start()
    try:
        running.awaitTermination()
    except Exception as error:
        print(json.dumps({"failed": str(error)}), flush=True)
        spark.stop()
        return 3
    spark.stop()
    return 0


if __name__ == "__main__":
    code = main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    # a thread waits for the end of standard input
    os._exit(code)
