"""Speculation on a standalone cluster: two attempts of a task commit their state, and the confirmed one's restores."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lamina.settings import PREFIX
from tests.spark.clusters import feed
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program
from tests.spark.streams import A_FILE_EACH, BEHIND_BARRIER
from tests.spark.test_changelog import logged

pytestmark = pytest.mark.long

KEYS = 20
STALLING = 2  # the file whose batch has the task that stalls

IN_FILES = {**A_FILE_EACH, PREFIX + "durability.level": "store"}
"""A commit returns when its file is there, so that both attempts leave one."""

CASES = {"format 1": (1, IN_FILES), "log objects": (2, BEHIND_BARRIER)}
if os.environ.get("LAMINA_REPEATS"):
    # which attempt counts is told by its id, as in log objects
    CASES["format 2"] = 2, IN_FILES


def rows(number: int) -> list[dict[str, Any]]:
    """Each key once."""
    return [{"k": f"key {n}", "v": 1000 * number + n} for n in range(KEYS)]


def run(
    master: str, path: Path, format_version: int, durability: dict[str, str], stalling: int
) -> dict[int, dict[str, dict[str, Any]]]:
    """Runs the query over all files that are not processed yet; the rows of each batch, by key."""
    (path / "events").mkdir(exist_ok=True)
    argument = {
        "master": master,
        "jar": shim_jar(),
        "input": str(path / "in"),
        "checkpoint": str(path / "checkpoint"),
        "answered": str(path / "answered"),
        "events": str(path / "events"),
        "format_version": format_version,
        "durability": durability,
        "stalling": stalling,
    }
    answers = json.loads(run_program("speculation_query.py", json.dumps(argument)).splitlines()[-1])
    return {int(batch): {row["k"]: row for row in rows} for batch, rows in answers.items()}


def ended_tasks(path: Path) -> list[dict[str, Any]]:
    """Each task's end, as Spark's event log has it."""
    events = [
        json.loads(line)
        for file in sorted((path / "events").rglob("events_*"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return [event for event in events if event["Event"] == "SparkListenerTaskEnd"]


def succeeded(task: dict[str, Any]) -> bool:
    return bool(task["Task End Reason"]["Reason"] == "Success")


def attempts_at(checkpoint: Path, version: int) -> tuple[list[str], list[str]]:
    """The attempts of a version of partition 0: those that are files, and those that are in log objects."""
    files = [path.stem.split("_", 1)[1] for path in checkpoint.glob(f"state/0/0/{version}_*.lam")]
    return files, [
        part.attempt
        for parts in logged(checkpoint)
        for part in parts
        if (part.store.partition, part.to) == (0, version)
    ]


@pytest.mark.parametrize(
    ("format_version", "durability"),
    CASES.values(),
    ids=CASES,
)
def test_the_state_of_a_speculative_attempt_that_won_is_what_restores(
    master: str, tmp_path: Path, format_version: int, durability: dict[str, str]
) -> None:
    """With format v1 that is known too: the winner is the later task attempt, and the loser had not seen it."""
    for number in (1, 2, 3):
        feed(tmp_path / "in", number, rows(number))
    answers = run(master, tmp_path, format_version, durability, STALLING)
    tasks = ended_tasks(tmp_path)
    feed(tmp_path / "in", 4, rows(4))
    # new executors, which have to load the state
    answers.update(run(master, tmp_path, format_version, durability, stalling=0))

    assert sorted(answers) == [0, 1, 2, 3]
    for batch, given in answers.items():
        assert sorted(given) == sorted(f"key {n}" for n in range(KEYS))
        for n in range(KEYS):
            row = given[f"key {n}"]
            values = [1000 * number + n for number in range(1, batch + 2)]
            assert (row["n"], row["total"]) == (len(values), sum(values))
            assert row["before"] == (answers[batch - 1][f"key {n}"]["noise"] if batch else 0)

    # A speculative attempt ran and won: Spark took its answer, and killed the stalled first one.
    ended = {(task["Stage ID"], task["Task Info"]["Index"], task["Task Info"]["Attempt"]): task for task in tasks}
    won = [key for key, task in ended.items() if task["Task Info"]["Speculative"] and succeeded(task)]
    assert any(partition == 0 and ended[stage, 0, 0]["Task Info"]["Killed"] for stage, partition, _ in won), won
    assert 1 in {row["attempt"] for row in answers[STALLING - 1].values()}

    # Both committed: Spark's log names one, with format v2, and the other one's lies beside it.
    checkpoint = tmp_path / "checkpoint"
    commit = (checkpoint / "commits" / str(STALLING - 1)).read_text(encoding="utf-8")
    files, in_log = attempts_at(checkpoint, STALLING)
    expected_files, expected_in_log = (0, 2) if durability is BEHIND_BARRIER else (2, 0)
    assert (len(files), len(in_log)) == (expected_files, expected_in_log), (files, in_log)
    confirmed = [attempt for attempt in files + in_log if attempt in commit]
    assert len(confirmed) == (1 if format_version == 2 else 0), (files, in_log, commit)
