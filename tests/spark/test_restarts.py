"""Restarts: what is loaded, what is handed over, what is skipped, and the loss of the engine."""

from __future__ import annotations

import itertools
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.streams import A_FILE_EACH, LAMINA, Run, Streams, wait_for


def rows(batch: int, keys: int = 40) -> list[dict[str, Any]]:
    return [{"t": "2024-01-01T00:00:00Z", "k": f"key {n % keys}", "v": n} for n in range(batch * 50, batch * 50 + 50)]


def totals(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def expected(batches: int) -> dict[str, tuple[int, int]]:
    result: dict[str, tuple[int, int]] = {}
    for batch in range(batches):
        for row in rows(batch):
            n, total = result.get(row["k"], (0, 0))
            result[row["k"]] = (n + 1, total + row["v"])
    return result


class Answers:
    """Collects the result of each batch."""

    def __init__(self) -> None:
        self.batches: dict[int, dict[str, tuple[int, int]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = {row.k: (row.n, row.total) for row in frame.collect()}

    def check(self) -> None:
        for batch, result in self.batches.items():
            assert result == expected(batch + 1), batch


def engine_pid(spark: SparkSession) -> int:
    """The engine's process: a child of the JVM that runs `lamina.engine` and has no engine above it."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    children = jvm.java.lang.ProcessHandle.current().children().iterator()
    while children.hasNext():
        child = children.next()
        with open(f"/proc/{child.pid()}/cmdline", "rb") as file:
            if b"lamina.engine" in file.read():
                return int(child.pid())
    raise AssertionError("no engine runs")


def test_a_restart_in_the_same_jvm_takes_the_table_over_and_loads_nothing(streams: Streams) -> None:
    answers = Answers()
    for restart in range(3):
        streams.feed("s", rows(restart))
        run = streams.run(totals, LAMINA, mode="complete", each_batch=answers)
        assert run.metric("laminaReloads") == 0
        assert run.metric("laminaHandOvers") == (2 if restart else 0)
    assert sorted(answers.batches) == [0, 1, 2]
    answers.check()


def test_a_restart_without_hand_over_loads_the_version(streams: Streams, spark: SparkSession) -> None:
    answers = Answers()
    conf = {"spark.sql.streaming.stateStore.lamina.heap.handOverMs": "0"}
    streams.feed("s", rows(0))
    streams.feed("s", rows(1))
    streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=conf)
    unload_all(spark)
    streams.feed("s", rows(2))
    run = streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=conf)
    assert run.metric("laminaHandOvers") == 0
    assert run.metric("laminaReloads") == 2
    assert sorted(answers.batches) == [0, 1, 2]
    answers.check()


def test_a_table_is_not_taken_over_where_its_versions_file_is_gone(streams: Streams, tmp_path: Path) -> None:
    """With one partition, so that the table that is refused is the only one."""
    answers = Answers()
    conf = {**A_FILE_EACH, "spark.sql.shuffle.partitions": "1"}
    for batch in range(3):
        streams.feed("s", rows(batch))
    streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=conf)
    (newest,) = (streams.checkpoint() / "state" / "0" / "0").glob("3_*.lam")
    aside = newest.rename(tmp_path / newest.name)
    streams.feed("s", rows(3))
    with pytest.raises(StreamingQueryException) as failed:
        streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=conf)
    assert "[file.missing]" in str(failed.value)
    assert str(newest) in str(failed.value)
    assert sorted(answers.batches) == [0, 1, 2]
    aside.rename(newest)
    run = streams.run(totals, LAMINA, mode="complete", each_batch=answers, conf=conf)
    assert sorted(answers.batches) == [0, 1, 2, 3]
    answers.check()
    # the table was dropped when its file was missed
    assert run.metric("laminaHandOvers") == 0
    assert run.metric("laminaReloads") == 1


def test_stores_that_are_unloaded_after_each_task_reload_nothing(streams: Streams) -> None:
    answers = Answers()
    for batch in range(6):
        streams.feed("s", rows(batch))
    run = streams.run(
        totals,
        LAMINA,
        mode="complete",
        each_batch=answers,
        conf={"spark.sql.streaming.stateStore.unloadOnCommit": "true"},
    )
    assert sorted(answers.batches) == list(range(6))
    answers.check()
    assert run.metric("laminaReloads") == 0
    assert run.metric("laminaHandOvers") >= 10


def test_a_batch_without_changes_writes_no_file(streams: Streams) -> None:
    """The rows of both batches are the same, so de-duplication has nothing to add in the second."""

    def query(frames: dict[str, DataFrame]) -> DataFrame:
        return frames["s"].dropDuplicates(["k"])

    for _ in range(4):
        streams.feed("s", rows(0))
    run = streams.run(query, LAMINA)
    assert len(run.batches) == 4
    assert [len(found) for found in run.batches.values()] == [40, 0, 0, 0]
    assert run.metric("laminaSkippedCommits") == 6
    files = list((streams.checkpoint() / "state" / "0").rglob("*.lam"))
    assert len(files) == 2, files
    streams.feed("s", rows(1))
    again = streams.run(query, LAMINA)
    assert [len(found) for found in again.batches.values()] == [0]


def test_a_file_that_is_lost_under_a_running_query_is_written_anew_with_the_next_change(
    streams: Streams, spark: SparkSession
) -> None:
    def query(frames: dict[str, DataFrame]) -> DataFrame:
        return frames["s"].dropDuplicates(["k"])

    stores = streams.checkpoint() / "state" / "0"
    found: dict[int, int] = {}

    def each_batch(frame: DataFrame, batch: int) -> None:
        found[batch] = frame.count()
        if batch == 1:
            for file in stores.rglob("*.lam"):
                file.unlink()

    others = [{**row, "k": f"other {row['k']}"} for row in rows(0)]
    for batch in (rows(0), rows(0), others, rows(0)):
        streams.feed("s", batch)
    conf = {**A_FILE_EACH, "spark.sql.streaming.stateStore.lamina.heap.handOverMs": "0"}
    run = streams.run(query, LAMINA, each_batch=each_batch, conf=conf)
    assert found == {0: 40, 1: 0, 2: 40, 3: 0}
    # of two stores: batches 1 and 3 have nothing to write, and batch 2 had no base
    assert run.metric("laminaSkippedCommits") == 4
    assert sorted(file.name.split("_")[0] for file in stores.rglob("*.lam")) == ["3", "3"]
    unload_all(spark)
    streams.feed("s", rows(1))
    again = streams.run(query, LAMINA, conf=conf)
    assert [len(batch) for batch in again.batches.values()] == [0]
    assert again.metric("laminaReloads") == 2


def test_a_query_tells_the_memory_of_its_state(streams: Streams) -> None:
    for batch in range(3):
        streams.feed("s", rows(batch))
    run = streams.run(totals, LAMINA, mode="update")
    assert len(run.progress) == 3
    for batch in run.progress:
        (operator,) = batch["stateOperators"]
        metrics = operator["customMetrics"]
        held = {part: metrics[f"lamina{part}Bytes"] for part in ("Page", "Index", "Undo", "Buffer")}
        # the undo log of the last commit is kept: it is the way back to the version before
        assert all(held.values()), held
        # an aggregation has no ordered index
        assert operator["memoryUsedBytes"] == held["Page"] + held["Index"] + held["Undo"]


def test_an_engine_killed_between_batches_is_started_again_and_nothing_is_reloaded(
    streams: Streams, spark: SparkSession
) -> None:
    answers = Answers()
    for batch in range(8):
        streams.feed("s", rows(batch))
    killed: list[int] = []

    def kill_between(frame: DataFrame, batch: int) -> None:
        if batch in (2, 5):
            killed.append(engine_pid(spark))
            os.kill(killed[-1], signal.SIGKILL)
        answers(frame, batch)

    run = streams.run(totals, LAMINA, mode="complete", each_batch=kill_between)
    assert sorted(answers.batches) == list(range(8))
    answers.check()
    assert len(set(killed)) == 2
    assert run.metric("laminaReloads") == 0


def test_an_engine_killed_within_a_batch_before_its_commit_costs_no_task(streams: Streams, spark: SparkSession) -> None:
    """With one partition, so that no other task loses its engine as well."""
    answers = Answers()
    for batch in range(5):
        streams.feed("s", rows(batch))
    deadly = {75, 175}  # in the batches 1 and 3
    pid_file = str(streams.path / "pid")

    def counted(key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        n, total = state.get if state.exists else (0, 0)
        for batch in batches:
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0 and deadly.intersection(batch["v"]):
                with open(pid_file) as file:
                    kill_and_wait(int(file.read()))
            n += len(batch)
            total += int(batch["v"].sum())
        state.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})

    def query(frames: dict[str, DataFrame]) -> DataFrame:
        columns = "n long, total long"
        return (
            frames["s"]
            .groupBy("k")
            .applyInPandasWithState(counted, f"k string, {columns}", columns, "update", GroupStateTimeout.NoTimeout)
        )

    engines: list[int] = []

    def note_engine(frame: DataFrame, batch: int) -> None:
        answers(frame, batch)
        engines.append(engine_pid(spark))
        Path(pid_file).write_text(str(engines[-1]))

    conf = {"spark.sql.shuffle.partitions": "1"}
    run = streams.run(query, LAMINA, mode="update", each_batch=note_engine, conf=conf)
    assert sorted(answers.batches) == list(range(5))
    answers.check()
    # the batches 1 and 3 ended with another engine than the one before them
    assert [later != earlier for earlier, later in itertools.pairwise(engines)] == [True, False, True, False]
    # the commit begins its attempt in the new engine
    assert not [reason for attempts in tasks_of(spark, run) for _, reason in attempts if reason]
    assert run.metric("laminaReloads") == 0


def kill_and_wait(pid: int) -> None:
    """Kills a process; returns when it has ended."""
    process = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([process], [], [])
    finally:
        os.close(process)


def tasks_of(spark: SparkSession, run: Run) -> list[list[tuple[int, str]]]:
    """For each task of a run its attempts, oldest first: number, and why it failed, empty where it did not."""
    jvm_context = spark.sparkContext._jsc.sc()
    # what the status store knows comes through this bus
    jvm_context.listenerBus().waitUntilEmpty()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(run.progress[0]["runId"]))]
    tasks: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for stage in sorted({stage for job in jobs if job is not None for stage in job.stageIds}):
        found = jvm_context.statusStore().taskList(stage, 0, 1000)
        for task in (found.apply(index) for index in range(found.size())):
            reason = task.errorMessage()
            attempt = task.attempt(), str(reason.get()) if reason.isDefined() else ""
            tasks.setdefault((stage, task.index()), []).append(attempt)
    return [sorted(attempts) for attempts in tasks.values()]


def running_tasks(spark: SparkSession) -> int:
    """Tasks that executors have not reported the end of, be they wanted or not."""
    counts = spark.sparkContext._jsc.sc().taskScheduler().runningTasksByExecutors().valuesIterator()
    total = 0
    while counts.hasNext():
        total += int(counts.next())
    return total


def unload_all(spark: SparkSession) -> None:
    """Closes all providers of the JVM, as Spark's maintenance does some time after a query has stopped.

    A task that still runs then may open a store, which starts the maintenance anew: Spark 4.3 waits five minutes for
    threads that nobody ends.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    wait_for(lambda: not running_tasks(spark))
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
