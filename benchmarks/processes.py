"""What the JVM and the processes of lamina hold of the system: threads, sockets, open files, memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks import machine

ROLES = ("jvm", "engine", "maintenance")


@dataclass(frozen=True)
class Held:
    """Counts, of which open files include sockets, and bytes of resident memory."""

    threads: int = 0
    sockets: int = 0
    files: int = 0
    resident: int = 0

    def __add__(self, other: Held) -> Held:
        mine, others = asdict(self), asdict(other)
        return Held(**{name: mine[name] + others[name] for name in mine})


def held(jvm_pid: int) -> dict[str, Held]:
    """What each role holds now: the JVM, the engine, its maintenance process."""
    found = {role: Held() for role in ROLES}
    processes = {jvm_pid: "jvm"}
    for process, command in machine.descendants(jvm_pid).items():
        if "lamina.engine" in command:
            processes[process] = "maintenance" if "lamina.engine.maintenance" in command else "engine"
    for process, role in processes.items():
        files = list(_targets(process))
        found[role] += Held(
            threads=len(_entries(f"/proc/{process}/task")),
            sockets=sum(target.startswith("socket:") for target in files),
            files=len(files),
            resident=machine.resident_bytes(process),
        )
    return found


def _targets(process: int) -> Iterator[str]:
    for name in _entries(f"/proc/{process}/fd"):
        try:
            yield os.readlink(f"/proc/{process}/fd/{name}")
        except OSError:
            continue


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
