"""The Spark driver of the demo: runs the main job's queries and reports what happens. A process of its own, since its
JVM is going to be killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from lamina.demo import job as main_job
from lamina.demo.orders import TASKS_RUNNING, Events, Orders, Point
from lamina.demo.places import Places
from lamina.settings import PREFIX


class ProgressReports(StreamingQueryListener):  # type: ignore[misc]
    """Passes each batch's progress on, and knows when the last one has been passed on."""

    def __init__(self, events: Events, queries: int) -> None:
        self._events = events
        self._left = threading.Semaphore(0)
        self._queries = queries

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._events.send("progress", progress=json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        if event.exception is not None:  # said at once: the other queries may run for minutes, or be killed first
            self._events.send("failed", message=event.exception)
        self._left.release()

    def wait(self) -> None:
        for _ in range(self._queries):
            self._left.acquire(timeout=10)


class ReportedSink:
    """A query's sink that says when a batch starts, and when the point of the next kill is reached."""

    def __init__(
        self,
        spark: SparkSession,
        events: Events,
        query: str,
        point: Point | None,
        write: Callable[[DataFrame, int], None],
    ) -> None:
        self._spark = spark
        self._events = events
        self._query = query
        self._point = point if point is not None and point.query == query else None
        self._write = write

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self._events.send("batch", query=self._query, batch=batch)
        if self._point is None or batch < self._point.batch:
            self._write(rows, batch)
            return
        if self._point.at == TASKS_RUNNING:
            done = threading.Event()
            run = rows.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id")
            watch = threading.Thread(target=self._watch, args=(run, batch, done), daemon=True)
            watch.start()
            self._write(rows, batch)
            done.set()
            watch.join()
        else:
            # A task ends after its stores have committed, and writing returns when all tasks have ended.
            self._write(rows, batch)
            self._events.send("reached", query=self._query, batch=batch)
            threading.Event().wait()

    def _watch(self, run: str, batch: int, done: threading.Event) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        earlier = set(tracker.getJobIdsForGroup(run))
        while not done.wait(0.002):
            for job_id in set(tracker.getJobIdsForGroup(run)) - earlier:
                job = tracker.getJobInfo(job_id)
                stage = tracker.getStageInfo(max(job.stageIds)) if job is not None and len(job.stageIds) else None
                if stage is not None and stage.numActiveTasks > 0:
                    self._events.send("reached", query=self._query, batch=batch)
                    return


def run(orders: Orders, events: Events) -> None:
    """Carries `orders` out."""
    places = Places(Path(orders.root))
    job = main_job.load()
    spark = job.session(orders.provider, _conf(places), orders.mode)
    reports = ProgressReports(events, len(job.QUERIES))
    spark.streams.addListener(reports)
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    events.send("started", jvm=jvm, spark=spark.version)
    read = job.stream(spark, places.feed)
    running = []
    for query in job.QUERIES:
        sink = ReportedSink(spark, events, query.name, orders.point, job.write_batch(places.results(query.name)))
        running.append(job.start(query, query.plan(read), places.checkpoint(query.name), sink))
    for streaming in running:
        streaming.awaitTermination()
    reports.wait()
    if orders.expected:
        _run_as_batch(job, spark, places, events)
    events.send("done")
    spark.stop()


def _run_as_batch(job: ModuleType, spark: SparkSession, places: Places, events: Events) -> None:
    read = job.batch(spark, places.feed)
    for query in job.QUERIES:
        events.send("expected", query=query.name)
        query.plan(read).write.parquet(str(places.expected(query.name)))


def _conf(places: Places) -> dict[str, str]:
    return {
        "spark.local.dir": str(places.temporary),
        "spark.sql.warehouse.dir": str(places.temporary / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.liveUpdate.period": "0",  # the status tracker shall know of a task when it starts
        PREFIX + "rocksdb.materializeEvery": "2",  # of so few batches by default none would be put into tables
    }


def _end_with_the_demo() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock a thread must not hold when the interpreter ends
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Runs with its orders as the only argument."""
    orders = Orders.from_json(sys.argv[1])
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    events = Events(orders.events)
    try:
        run(orders, events)
    except Exception as error:
        events.send("failed", message=str(error).strip() or repr(error))
        raise


if __name__ == "__main__":
    main()
