"""Runs targets of the Makefile one after the other, each within its limit, and prints at the end how long each took.

`python -m tests.stages lint test-unit` stops at the first target that fails. A target fails

* when its command does;
* when it is not done at its limit: the threads of all its processes, Java's and Python's, are printed first;
* when a JVM crashed in it, whatever its command says: a report `hs_err_pid*.log` is there that was not there before.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent

MINUTES = {
    "lint": 10,
    "test-unit": 60,
    "test-hadoop": 15,
    "test-scala": 60,
    "test-faults": 30,
    "test-kill": 40,
    "test-packaging": 50,
    "test-pyspark": 80,
    "test-long": 60,
    "test-suites": 90,
    "check-unit": 10,
    "check-operators": 10,
    "check-table": 10,
}
"""What a target may take: four times or more what it takes on two quiet cores. It ends what hangs; each test of Python
has a limit of its own."""

_CRASHES = "hs_err_pid*.log"
_NOT_SEARCHED = {".venv", ".git", "site"}
_DUMP_SECONDS = 30


def main(targets: list[str]) -> int:
    """Runs the targets; the exit code of the first that fails."""
    took: list[tuple[str, float, str]] = []
    code = 0
    for target in targets:
        started = time.monotonic()
        problem, code = _run(target)
        took.append((target, time.monotonic() - started, problem or "passed"))
        if code:
            break
    print("\nstage             minutes")
    for target, seconds, outcome in took:
        print(f"{target:16} {seconds / 60:8.1f}  {outcome}")
    print(f"{'together':16} {sum(seconds for _, seconds, _ in took) / 60:8.1f}", flush=True)
    return code


def _run(target: str) -> tuple[str, int]:
    """What went wrong, empty where nothing did, and the exit code."""
    before = set(_crash_reports())
    print(f"\n==== make {target}", flush=True)
    make = subprocess.Popen([os.environ.get("MAKE", "make"), target], cwd=ROOT, start_new_session=True)
    problem = ""
    try:
        code = make.wait(timeout=MINUTES[target] * 60)
        if code:
            problem = f"failed (exit code {code})"
    except subprocess.TimeoutExpired:
        problem, code = f"not done after {MINUTES[target]} minutes", 1
        _print_threads(make.pid)
    finally:
        _end(make)
    crashes = sorted(set(_crash_reports()) - before)
    for report in crashes:
        print(f"\n==== a JVM crashed: {report}\n{_head(report)}", flush=True)
    if crashes:
        problem, code = f"{problem} a JVM crashed ({len(crashes)})".strip(), code or 1
    return problem, code


def _crash_reports() -> Iterator[Path]:
    for folder, folders, _ in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in _NOT_SEARCHED]
        yield from Path(folder).glob(_CRASHES)


def _head(report: Path) -> str:
    with report.open(errors="replace") as lines:
        return "".join(line for line, _ in zip(lines, range(80), strict=False))


def _print_threads(parent: int) -> None:
    """Prints the threads of all processes below `parent`: the JVMs', and those of Pythons that run pytest."""
    for process in psutil.Process(parent).children(recursive=True):
        try:
            command = process.cmdline()
            name = Path(command[0]).name if command else ""
            print(f"\n==== threads of process {process.pid}: {' '.join(command)[:300]}", flush=True)
            if name == "java":
                jcmd = shutil.which("jcmd", path=str(Path(process.exe()).parent)) or "jcmd"
                subprocess.run([jcmd, str(process.pid), "Thread.print", "-l"], timeout=_DUMP_SECONDS, check=False)
            elif any("pytest" in word for word in command):
                # pytest's faulthandler writes all threads, then the process ends
                process.send_signal(signal.SIGABRT)
                process.wait(timeout=_DUMP_SECONDS)
        except (psutil.Error, OSError, subprocess.TimeoutExpired) as error:
            print(error, flush=True)


def _end(make: subprocess.Popen[bytes]) -> None:
    """Kills what a target that did not end has started, in whatever session it is."""
    if make.poll() is not None:
        return
    for process in [*psutil.Process(make.pid).children(recursive=True), psutil.Process(make.pid)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    make.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
