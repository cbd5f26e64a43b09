"""Speculation on a standalone cluster: two attempts of a task commit their state, and the confirmed one's restores."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.spark.jars import spark_home
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program

pytestmark = pytest.mark.long

KEYS = 20
STALLING = 2  # the file whose batch has the task that stalls


def url_of(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where a master says that it listens."""
    deadline = time.monotonic() + 300
    while not (found := re.search(r"Starting Spark master at (spark://\S+)", log.read_text(encoding="utf-8"))):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.1)
    return found[1]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master with a worker on 127.0.0.1 and one on 127.0.0.2: Spark speculates on another host only."""
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_DIRS": str(tmp_path / "local")}
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(tmp_path / f"{name}.log", "wb") as log:
            # A group of its own, which the worker's executors and their engines belong to.
            process = subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(process)
        return process

    try:
        package = "org.apache.spark.deploy"
        listens = start("master", f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = url_of(tmp_path / "master.log", listens)
        for host in ("127.0.0.1", "127.0.0.2"):
            own = ["--cores", "1", "--memory", "1500m", "--webui-port", "0", "--work-dir", str(tmp_path / host)]
            start(f"worker {host}", f"{package}.worker.Worker", "--host", host, *own, url)
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def feed(folder: Path, number: int) -> None:
    """One file, thus one batch: each key once."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:05d}.json"
    rows = [{"k": f"key {n}", "v": 1000 * number + n} for n in range(KEYS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # the source takes files by time of modification
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run(master: str, path: Path, format_version: int, stalling: int) -> dict[int, dict[str, dict[str, Any]]]:
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


@pytest.mark.parametrize("format_version", [2, 1])
def test_the_state_of_a_speculative_attempt_that_won_is_what_restores(
    master: str, tmp_path: Path, format_version: int
) -> None:
    """With format v1 that is known too: the winner is the later task attempt, and the loser had not seen it."""
    for number in (1, 2, 3):
        feed(tmp_path / "in", number)
    answers = run(master, tmp_path, format_version, STALLING)
    tasks = ended_tasks(tmp_path)
    feed(tmp_path / "in", 4)
    answers.update(run(master, tmp_path, format_version, stalling=0))  # new executors, which have to load the state

    assert sorted(answers) == [0, 1, 2, 3]
    for batch, rows in answers.items():
        assert sorted(rows) == sorted(f"key {n}" for n in range(KEYS))
        for n in range(KEYS):
            row = rows[f"key {n}"]
            values = [1000 * number + n for number in range(1, batch + 2)]
            assert (row["n"], row["total"]) == (len(values), sum(values))
            assert row["before"] == (answers[batch - 1][f"key {n}"]["noise"] if batch else 0)

    # A speculative attempt ran and won: Spark took its answer, and killed the stalled first one.
    ended = {(task["Stage ID"], task["Task Info"]["Index"], task["Task Info"]["Attempt"]): task for task in tasks}
    won = [key for key, task in ended.items() if task["Task Info"]["Speculative"] and succeeded(task)]
    assert any(partition == 0 and ended[stage, 0, 0]["Task Info"]["Killed"] for stage, partition, _ in won), won
    assert 1 in {row["attempt"] for row in answers[STALLING - 1].values()}

    # Both committed: Spark's log names one, with format v2, and the other one's file lies beside it.
    partition = tmp_path / "checkpoint" / "state" / "0" / "0"
    commit = (tmp_path / "checkpoint" / "commits" / str(STALLING - 1)).read_text(encoding="utf-8")
    files = [path.name for path in partition.glob(f"{STALLING}_*.lam")]
    confirmed = [name for name in files if name.split("_", 1)[1].removesuffix(".lam") in commit]
    assert len(files) == 2 and len(confirmed) == (1 if format_version == 2 else 0), (files, commit)
