"""How the tasks of the kill campaign ended, and what explains their errors, most of which Spark tries again.

Spark's event logs say it, one of each driver. Of a driver that was killed the last events may be missing: those of the
stage that was running.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina.errors import KINDS
from tests.kill.processes import ENGINE, EXECUTOR

NEAR_S = 30.0
"""A kill may be so long before the task that it makes fail."""

NOTICED_S = 1.0
"""The campaign may notice so late that one of its orders was carried out."""

TEXT_LENGTH = 4000

SUCCESS, EXECUTOR_LOST = "Success", "ExecutorLostFailure"
"""Spark's words for ends of a task."""

OF_A_KILL = {
    "engine.lost": ENGINE,
    "engine.start": ENGINE,
}
"""The kinds of error of lamina that a task, or a query, may fail with because a process was killed, and which one."""

_KIND = re.compile(rf": \[({'|'.join(map(re.escape, KINDS))})\]")
"""An error of lamina, whatever Spark has wrapped it in: where it ends a task it is a text behind another class."""

_LAST_WORDS = re.compile(r"; its last words:\n(?:(?!\tat |Caused by: |Suppressed: ).*\n?)*")
"""What the error about an engine that ended quotes of its log, in which its maintenance process has a say, too."""

_EXIT = re.compile(r"exit(?:ed with)? code (\d+)")
_KILLED = str(128 + signal.SIGKILL)
_CODE = "org.apache.spark.sql.lamina."


SPILLED = "lamina: bytes of changes that batches kept on the local disk, for want of memory"
"""How Spark's event logs name the metric `laminaSpilledBytes`."""


@dataclass(frozen=True)
class Kill:
    """A process of the query was sent SIGKILL at `at`, in seconds since 1970."""

    at: float
    victim: str


@dataclass(frozen=True)
class TaskEnd:
    """The end of one attempt of a task, with Spark's word for it; times in seconds since 1970."""

    began: float
    ended: float
    reason: str
    text: str = ""
    spilled_bytes: int = 0


def read(logs: Path) -> Iterator[TaskEnd]:
    """The ends of all tasks of all drivers whose event logs are in the directory `logs`."""
    for log in sorted(logs.iterdir()):
        with log.open(errors="replace") as lines:
            for line in lines:
                # the last line of a driver that was killed may be cut off
                if line.startswith('{"Event":"SparkListenerTaskEnd"') and line.endswith("}\n"):
                    yield _end(json.loads(line))


def _end(event: dict[str, Any]) -> TaskEnd:
    reason, task = event["Task End Reason"], event["Task Info"]
    texts = (reason.get(name) for name in ("Full Stack Trace", "Loss Reason", "Kill Reason", "Message"))
    text = next(filter(None, texts), "")
    spilled = sum(
        int(metric.get("Update", 0)) for metric in task.get("Accumulables", []) if metric.get("Name") == SPILLED
    )
    return TaskEnd(task["Launch Time"] / 1000, task["Finish Time"] / 1000, reason["Reason"], text, spilled)


def judged(ends: Iterable[TaskEnd], kills: Sequence[Kill]) -> dict[str, Any]:
    """How many tasks ended, how many failed by what explains it, and the texts of those that nothing explains.

    `spilled_bytes` is what batches kept on the local disk.
    """
    tasks, spilled, explained = 0, 0, Counter[str]()
    unexplained = []
    for end in ends:
        tasks += 1
        spilled += end.spilled_bytes
        if end.reason == SUCCESS:
            continue
        reason = explanation(end, kills)
        if reason is None:
            unexplained.append(f"{end.reason}: {_shortened(end.text)}"[:TEXT_LENGTH])
        else:
            explained[reason] += 1
    return {
        "tasks": tasks,
        "spilled_bytes": spilled,
        "task_errors": dict(explained),
        "unexplained_task_errors": unexplained,
    }


def _shortened(text: str) -> str:
    """What an error and its causes say, and the places in lamina's code."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("\t") or _CODE in line)


def explanation(end: TaskEnd, kills: Sequence[Kill]) -> str | None:
    """What explains that an attempt of a task failed; None where nothing does.

    An error of lamina needs a kill near it, of the process whose end makes such an error; so does the loss of an
    executor. Any other error that came out of lamina's code has no explanation. All others are Spark's.
    """
    if end.reason == EXECUTOR_LOST:
        return _of_kills(end, kills, {EXECUTOR}, end.reason)
    kinds = sorted(set(_KIND.findall(_LAST_WORDS.sub("\n", end.text))))
    if kinds and all(kind in OF_A_KILL for kind in kinds):
        return _of_kills(end, kills, {OF_A_KILL[kind] for kind in kinds}, " ".join(kinds))
    return None if kinds or _CODE in end.text else end.reason


def _of_kills(end: TaskEnd, kills: Sequence[Kill], victims: set[str], what: str) -> str | None:
    if set(_EXIT.findall(end.text)) - {_KILLED}:
        return None  # a process crashed, or gave up, by itself
    killed = {kill.victim for kill in kills if end.began - NEAR_S <= kill.at <= end.ended + NOTICED_S}
    return f"{what}, {' and '.join(sorted(victims))} killed" if victims <= killed else None
