"""The processes of a kill campaign: found by a mark in their environment, whoever their parent is by now."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "LAMINA_KILL_CAMPAIGN"
DRIVER, EXECUTOR, ENGINE, MAINTENANCE, PROGRAM = "driver", "executor", "engine", "maintenance", "program"

_ROLES = {
    "lamina.engine.maintenance": MAINTENANCE,
    "lamina.engine": ENGINE,
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": EXECUTOR,
    "org.apache.spark.deploy.SparkSubmit": DRIVER,
    "tests.kill.query": PROGRAM,
}
"""By a word of their command."""


def of(campaign: str) -> dict[int, str]:
    """Process id and role of each living process of the campaign, oldest first; others have their command as role."""
    return {process.pid: role for process, role in sorted(_of(campaign), key=lambda found: found[0].create_time())}


def with_role(campaign: str, role: str) -> list[int]:
    """The processes of a role, oldest first, which their numbers do not tell: those begin again at the highest."""
    return [process for process, found in of(campaign).items() if found == role]


def _of(campaign: str) -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) != campaign:
                continue
            command = process.cmdline()
            process.create_time()  # kept by the process, also when it has ended
        except (psutil.Error, OSError):
            continue
        if command:  # a zombie has none
            # whole words: Spark's own command has the keys of settings in it, such as ...lamina.engine.python
            role = next((role for word, role in _ROLES.items() if word in command), " ".join(command)[:80])
            yield process, role


def kill(process: int) -> bool:
    """Sends SIGKILL; whether there was somebody to get it."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def gone_within(campaign: str, seconds: float) -> dict[int, str]:
    """Waits until no process of the campaign is left; gives those that are still there after `seconds`."""
    end = time.monotonic() + seconds
    while (left := of(campaign)) and time.monotonic() < end:
        time.sleep(0.2)
    return left


def open_files(process: int, below: Path) -> list[str]:
    """The files below a directory that a process has open."""
    found = []
    try:
        for entry in Path(f"/proc/{process}/fd").iterdir():
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if target.startswith(f"{below}/"):
                found.append(target)
    except OSError:
        pass
    return found
