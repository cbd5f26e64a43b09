"""Runs a program with a Spark session of its own: a cluster, or a Spark Connect server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def run_program(name: str, argument: str, **environment: str) -> str:
    """What the program beside this file wrote to its standard output; nothing that it started is left."""
    paths = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    # A group of its own, which the JVM, its executors, their engines and Python workers belong to.
    program = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(name)), argument],
        env={**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, messages = program.communicate(timeout=600)
    finally:
        try:
            os.killpg(program.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        program.wait()
    assert program.returncode == 0, messages[-6000:]
    return output
