"""The processes of a kill campaign: found by a mark in their environment, whoever their parent is by now."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MARK = "LAMINA_KILL_CAMPAIGN"
DRIVER, EXECUTOR, ENGINE, MAINTENANCE, PROGRAM = "driver", "executor", "engine", "maintenance", "program"

_ROLES = (
    (MAINTENANCE, "lamina.engine.maintenance"),
    (ENGINE, "lamina.engine"),
    (EXECUTOR, "CoarseGrainedExecutorBackend"),
    (DRIVER, "SparkSubmit"),
    (PROGRAM, "tests.kill.query"),
)


def of(campaign: str) -> dict[int, str]:
    """Process id and role of each living process of the campaign; other processes have their command as role."""
    mark = f"{MARK}={campaign}".encode()
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if command:  # a zombie has none
            found[int(entry.name)] = next((role for role, part in _ROLES if part in command), command[:80])
    return found


def with_role(campaign: str, role: str) -> list[int]:
    """The processes of a role, oldest first."""
    return sorted(process for process, found in of(campaign).items() if found == role)


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
