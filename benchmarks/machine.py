"""Describes the machine and the software of a run, without anything that names a host, a person or a path."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import random
import re
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.scala import ROOT, java

MEASURED = (("jvm-shim/src/main", "*.scala"), ("python/lamina", "*.py"))
NOT_MEASURED = ("cli", "demo", "testing")  # of python/lamina; nothing of a query runs them


class Machine(TypedDict):
    cpu: str
    cores: int
    memory_gib: float
    system: str
    jdk: str
    python: str
    spark: str
    pyarrow: str


def describe() -> Machine:
    """CPU, memory and versions."""
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=f"{platform.system()} {platform.release().split('-')[0]}",
        jdk=_jdk(),
        python=platform.python_version(),
        spark=version("pyspark"),
        pyarrow=version("pyarrow"),
    )


@functools.cache
def code() -> str:
    """A digest of the sources of shim and engine: what was measured of others says nothing of these."""
    digest = hashlib.sha256()
    for folder, pattern in MEASURED:
        for file in sorted((ROOT / folder).rglob(pattern)):
            name = file.relative_to(ROOT / folder)
            if name.parts[0] not in NOT_MEASURED:
                digest.update(f"{name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def commit() -> str:
    """The commit that is checked out, with a + where files of it were changed, other than results."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def temporary_files() -> str:
    """The kind of file system that temporary directories are made in: checkpoints of benchmarks lie there."""
    place = Path(tempfile.gettempdir()).resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((len(mounted), kind) for mounted, kind in mounts if place.is_relative_to(mounted))[1]


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def pace_ms() -> float:
    """Processor time that a fixed piece of work takes now, which whoever shares the host changes, within minutes."""
    block, table, places = _fixed_work()
    began = time.thread_time()
    hashlib.sha256(block).digest()
    pc.take(table, places)
    return (time.thread_time() - began) * 1000


@functools.cache
def _fixed_work() -> tuple[bytes, pa.Array, pa.Array]:
    """What is hashed, for the processor; and 32 MB with the places that are read of them, for the memory."""
    drawn = random.Random(1)
    rows = 4_000_000
    return bytes(2_000_000), pa.array(range(rows), pa.int64()), pa.array(drawn.choices(range(rows), k=200_000))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process now, 0 if it has ended."""
    return _status(pid, "VmRSS")


def peak_resident_bytes(pid: int) -> int:
    """The greatest resident memory that a process ever had, 0 if it has ended."""
    return _status(pid, "VmHWM")


def descendants(pid: int) -> dict[int, str]:
    """Command lines of all processes below `pid`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    queue = list(children.get(pid, []))
    while queue:
        child = queue.pop()
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if command:
            found[child] = command.replace(b"\0", b" ").decode(errors="replace")
        queue.extend(children.get(child, []))
    return found


def _status(pid: int, field: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def _cpu() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _jdk() -> str:
    found = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    match = re.search(r'version "([^"]+)"', found)
    return match.group(1) if match else "unknown"
