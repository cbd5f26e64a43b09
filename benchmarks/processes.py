"""What the JVM and the processes of lamina hold of the system, threads, sockets, open files and memory, and how much
processor time they have taken."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from benchmarks import machine

ROLES = ("jvm", "engine", "maintenance")
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


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
    """What each role holds now: the JVM with its executors, the engine, its maintenance process."""
    found = {role: Held() for role in ROLES}
    for process, role in _roles(jvm_pid).items():
        files = list(_targets(process))
        found[role] += Held(
            threads=len(_entries(f"/proc/{process}/task")),
            sockets=sum(target.startswith("socket:") for target in files),
            files=len(files),
            resident=machine.resident_bytes(process),
        )
    return found


def processor_s(jvm_pid: int, *, kernel: bool = False) -> dict[str, float]:
    """Seconds of processor time that each role has taken since its start, or the kernel's part of them."""
    found = dict.fromkeys(ROLES, 0.0)
    for process, role in _roles(jvm_pid).items():
        found[role] += taken_s(process, kernel=kernel)
    return found


def ms_a_batch(before: Mapping[str, float], after: Mapping[str, float], batches: int = 1) -> dict[str, float]:
    """Milliseconds that each role took for a batch between two looks of `processor_s`."""
    return {role: (after[role] - before[role]) * 1000 / batches for role in before}


def taken_s(process: int, *, kernel: bool = False) -> float:
    """Seconds of processor time that a process has taken since its start, or the kernel's part; 0 if it has ended."""
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    ticks = int(fields[12]) + (0 if kernel else int(fields[11]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _roles(jvm_pid: int) -> dict[int, str]:
    roles = {jvm_pid: "jvm"}
    for process, command in machine.descendants(jvm_pid).items():
        if EXECUTOR in command:
            roles[process] = "jvm"
        elif "lamina.engine" in command:
            roles[process] = "maintenance" if "lamina.engine.maintenance" in command else "engine"
    return roles


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
