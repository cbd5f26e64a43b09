"""What all tests share: where the repository is, how long hypothesis looks for a counterexample, what a test may take.

Where CI is set, a skipped test is an error, unless `SKIPPED_FOR` has its reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

# No deadline: the machine may be busy. CI repeats the same examples; a developer's runs look further each time.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

SKIPPED_FOR = {
    "root may write everywhere": "a directory that may not be written to does not exist for root",
    "needs a small file system, which this user may not mount": "a sandbox may forbid user namespaces",
    "Spark 4.2 words its refusal differently": "Spark 4.3, which CI has, runs it",
}
"""How the messages of skips that are no errors begin, and why the test cannot run there."""

DUMP_BEFORE_SECONDS = 60
"""The JVMs' threads are printed so long before a test's limit, at which pytest-timeout prints Python's and ends it."""


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parent.parent


def refused_skip(report: Any) -> str | None:
    """Why a skip is an error here; None where it is none."""
    if not os.environ.get("CI") or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return None
    # (file, line, "Skipped: <message>")
    message = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if any(known in message for known in SKIPPED_FOR):
        return None
    return f"{message}: a skip is an error where CI is set, unless tests/conftest.py has its reason"


def _refuse(report: Any) -> None:
    if reason := refused_skip(report):
        report.outcome = "failed"
        report.longrepr = reason


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _refuse(report)
    return report


_dumps: dict[str, threading.Timer] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Before pytest-timeout ends a test that hangs, the threads of the JVMs that it waits for are printed."""
    timer = threading.Timer(max(0.0, settings.timeout - DUMP_BEFORE_SECONDS), print_jvm_threads)
    timer.daemon = True
    timer.start()
    _dumps[item.nodeid] = timer


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    if timer := _dumps.pop(item.nodeid, None):
        timer.cancel()


def print_jvm_threads() -> None:
    """Writes the threads of all JVMs below this process to the terminal."""
    with open(os.dup(2), "wb", buffering=0) as terminal:
        for process in psutil.Process().children(recursive=True):
            try:
                if process.name() != "java":
                    continue
                jcmd = shutil.which("jcmd", path=str(Path(process.exe()).parent)) or "jcmd"
                command = [jcmd, str(process.pid), "Thread.print", "-l"]
                threads = subprocess.run(command, timeout=30, capture_output=True, check=False).stdout
                terminal.write(b"\n==== threads of JVM %d\n%s\n" % (process.pid, threads))
            except (psutil.Error, OSError, subprocess.TimeoutExpired) as error:
                terminal.write(f"{error}\n".encode())
