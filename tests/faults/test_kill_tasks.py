"""The kill campaign judges the error of every attempt of a task, also where Spark tried it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kill.processes import DRIVER, ENGINE, EXECUTOR, MAINTENANCE
from tests.kill.tasks import EXECUTOR_LOST, NEAR_S, OF_A_KILL, SPILLED, Kill, TaskEnd, judged, read

BEGAN, ENDED = 1_700_000_000.0, 1_700_000_002.0
LAMINA = "org.apache.spark.sql.lamina"
TRACE = f"\tat {LAMINA}.StoreOpener.opened(StoreOpener.scala:180)\n\tat java.base/java.lang.Thread.run(Thread.java:840)"


def lamina_error(kind: str) -> str:
    """The trace of an error of lamina as Spark reports it, in its own wrapping."""
    return (
        "org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading "
        f"state.\n{TRACE}\nCaused by: {LAMINA}.errors.LaminaError: [{kind}] as it was told\n{TRACE}"
    )


AT_THE_END = (
    "org.apache.spark.util.TaskCompletionListenerException: [{kind}] as it was told\n"
    "\tat org.apache.spark.TaskContextImpl.invokeListeners(TaskContextImpl.scala:432)"
)
"""As Spark reports an error of what it waits for at the end of a task, like a commit that did not become durable."""


def failed(text: str, reason: str = "ExceptionFailure") -> TaskEnd:
    return TaskEnd(BEGAN, ENDED, reason, text)


def unexplained(end: TaskEnd, *kills: Kill) -> list[str]:
    found: list[str] = judged([end], kills)["unexplained_task_errors"]
    return found


@pytest.mark.parametrize("kind", sorted(OF_A_KILL))
def test_a_kill_of_its_engine_explains_that_a_task_lost_it(kind: str) -> None:
    kill = Kill(BEGAN + 1, ENGINE)
    assert judged([failed(lamina_error(kind)), failed(AT_THE_END.format(kind=kind))], [kill]) == {
        "tasks": 2,
        "spilled_bytes": 0,
        "task_errors": {f"{kind}, engine killed": 2},
        "unexplained_task_errors": [],
    }


@pytest.mark.parametrize("victim", [MAINTENANCE, EXECUTOR, DRIVER])
def test_a_kill_of_another_process_does_not_explain_that_a_task_lost_its_engine(victim: str) -> None:
    assert "[engine.lost] as it was told" in unexplained(failed(lamina_error("engine.lost")), Kill(BEGAN, victim))[0]


@pytest.mark.parametrize("at", [BEGAN - NEAR_S - 1, ENDED + 5])
def test_a_kill_long_before_a_task_or_after_it_explains_nothing(at: float) -> None:
    assert unexplained(failed(lamina_error("engine.lost")), Kill(at, ENGINE)) != []
    assert unexplained(failed("", EXECUTOR_LOST), Kill(at, EXECUTOR)) != []


@pytest.mark.parametrize("kind", ["file.missing", "state.base", "store.stamp", "engine.deadline", "internal"])
def test_no_kill_explains_an_error_of_another_kind(kind: str) -> None:
    kills = [Kill(BEGAN + 1, victim) for victim in (ENGINE, MAINTENANCE, EXECUTOR, DRIVER)]
    for text in (lamina_error(kind), AT_THE_END.format(kind=kind)):
        assert f"[{kind}] as it was told" in unexplained(failed(text), *kills)[0]
    # neither does it where the same attempt lost its engine, too
    both = f"{lamina_error('engine.lost')}\nSuppressed: {lamina_error(kind)}"
    assert unexplained(failed(both), *kills) != []


def test_what_an_engine_logged_before_it_was_killed_is_no_error_of_the_task() -> None:
    quoted = "; its last words:\nWARNING __main__: the maintenance of a store failed: [storage.failed] no file\nmore\n"
    lost, kill = lamina_error("engine.lost"), Kill(BEGAN + 1, ENGINE)
    first, _, trace = lost.partition("\n")
    assert unexplained(failed(f"{first}{quoted}{trace}"), kill) == []
    # what comes behind it is
    assert unexplained(failed(f"{first}{quoted}{trace}\nSuppressed: {lamina_error('storage.failed')}"), kill) != []


def test_what_is_told_of_an_error_are_its_causes_and_the_places_in_laminas_code() -> None:
    frames = "\n".join(f"\tat org.apache.spark.rdd.RDD.iterator(RDD.scala:{line})" for line in range(500))
    (told,) = unexplained(failed(f"SparkException: it failed\n{frames}\n{lamina_error('file.missing')}"))
    assert told.splitlines()[0] == "ExceptionFailure: SparkException: it failed"
    assert f"Caused by: {LAMINA}.errors.LaminaError: [file.missing] as it was told" in told.splitlines()
    assert "StoreOpener.scala:180" in told and "RDD.scala" not in told


def test_what_is_told_of_an_error_is_its_message_whole() -> None:
    text = f'PythonException: Traceback (most recent call last):\n  File "query.py", line 3\nValueError: odd\n{TRACE}'
    (told,) = unexplained(failed(text))
    assert 'File "query.py", line 3' in told and "ValueError: odd" in told.splitlines()


def test_no_kill_explains_an_error_out_of_laminas_code_that_is_none_of_its_own() -> None:
    assert unexplained(failed(f"java.lang.NullPointerException\n{TRACE}"), Kill(BEGAN, ENGINE)) != []


def test_only_a_kill_of_an_executor_explains_the_loss_of_one() -> None:
    lost = failed("Command exited with code 137", EXECUTOR_LOST)
    assert unexplained(lost, Kill(BEGAN + 1, ENGINE)) == ["ExecutorLostFailure: Command exited with code 137"]
    assert unexplained(lost, Kill(BEGAN + 1, EXECUTOR)) == []


@pytest.mark.parametrize("code", [1, 134, 139])
def test_no_kill_explains_a_process_that_ended_by_itself(code: int) -> None:
    kills = [Kill(BEGAN + 1, ENGINE), Kill(BEGAN + 1, EXECUTOR)]
    engine = lamina_error("engine.lost") + "the engine process 7 ended with exit code {}"
    assert unexplained(failed(engine.format(137)), *kills) == []
    assert unexplained(failed(engine.format(code)), *kills) != []
    executor = "Command exited with code {}"
    assert unexplained(failed(executor.format(137), EXECUTOR_LOST), *kills) == []
    assert unexplained(failed(executor.format(code), EXECUTOR_LOST), *kills) != []


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("FetchFailed", "Failed to connect to /127.0.0.1:4711"),
        ("TaskKilled", "another attempt succeeded"),
        ("Resubmitted", ""),
        ("ExceptionFailure", "java.io.IOException: no space\n\tat org.apache.spark.storage.BlockManager.put"),
    ],
)
def test_what_spark_ends_by_itself_is_counted_under_its_word(reason: str, text: str) -> None:
    found = judged([failed(text, reason), TaskEnd(BEGAN, ENDED, "Success", spilled_bytes=3)], [])
    assert found == {"tasks": 2, "spilled_bytes": 3, "task_errors": {reason: 1}, "unexplained_task_errors": []}


def event(*metrics: tuple[str, Any], **reason: Any) -> str:
    task = {
        "Task ID": 7, "Launch Time": 1_700_000_000_000, "Finish Time": 1_700_000_002_000, "Failed": True,
        "Accumulables": [{"ID": 1, "Name": name, "Update": value} for name, value in metrics],
    }  # fmt: skip
    return json.dumps(
        {"Event": "SparkListenerTaskEnd", "Stage ID": 1, "Task End Reason": reason, "Task Info": task},
        separators=(",", ":"),
    )


def test_ends_of_tasks_are_read_from_the_logs_of_all_drivers(tmp_path: Path) -> None:
    failure = event(**{"Reason": "ExceptionFailure", "Description": "[x]", "Full Stack Trace": "at x"})
    lost = event(**{"Reason": "ExecutorLostFailure", "Executor ID": "1", "Loss Reason": "code 137"})
    start = '{"Event":"SparkListenerTaskStart"}'
    success = event(("some bytes", "5"), (SPILLED, "7"), (SPILLED, "4"), Reason="Success")
    (tmp_path / "app-1").write_text(f"{start}\n{success}\n{failure}\n")
    # the driver was killed while it wrote
    (tmp_path / "app-2.inprogress").write_text(f"{lost}\n{failure[:90]}")
    assert list(read(tmp_path)) == [
        TaskEnd(BEGAN, ENDED, "Success", spilled_bytes=11),
        TaskEnd(BEGAN, ENDED, "ExceptionFailure", "at x"),
        TaskEnd(BEGAN, ENDED, "ExecutorLostFailure", "code 137"),
    ]
