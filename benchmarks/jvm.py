"""Runs a Scala main of the benchmarks in a fresh JVM and returns its JSON result line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.rounds import MARK
from benchmarks.scala import java, pyspark_jars

# what Spark itself opens for off-heap memory on JDK 17 and 21
OPENS = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref", "java.base/java.lang")


def run_main(main: str, arguments: Sequence[object], jars: Sequence[Path], *, heap: str) -> dict[str, Any]:
    """Run `main` to its end.

    Raises:
        SystemExit: It failed or gave no result; its last lines are shown.
    """
    load = machine.load()
    command = [java(), f"-Xmx{heap}", *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENS)]
    command += ["-cp", os.pathsep.join([*map(str, jars), f"{pyspark_jars()}/*"]), main, *map(str, arguments)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    for line in child.stdout.splitlines():
        if line.startswith(MARK):
            return {**json.loads(line[len(MARK) :]), "load": load}
    shown = "\n".join([*child.stdout.splitlines()[-20:], *child.stderr.splitlines()[-40:]])
    raise SystemExit(f"{shown}\n{main} ended with {child.returncode} and no result")
