"""Runs every variant in a fresh child process, alternating, and collects one JSON result from each.

A child is a module of this package run as `python -m <module> <request>`; it prints one line `RESULT <json>`. Variants
take turns within a round and each round starts with another one, so that a slow minute of the machine meets all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.changes import later
from benchmarks.scala import ROOT, java, pyspark_jars

MARK = "RESULT "
_SHOWN = 60
RESULTS = ROOT / "benchmarks" / "results"
# what Spark itself opens for off-heap memory on JDK 17 and 21
OPENS = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref", "java.base/java.lang")


def run_child(
    module: str, request: Mapping[str, Any], timeout: float = 900, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run one child to its end and return its result, with the machine's load before it.

    Args:
        variables: of its environment, beside those of this process; a PYTHONPATH goes before the benchmarks' own.
    Raises:
        SystemExit: The child failed or gave no result; its last lines are shown.
    """
    # a terminated benchmark takes its child along, as an interrupted one does
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    load = machine.load()
    given = dict(variables or {})
    environment = dict(os.environ, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1") | given
    paths = [given.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(request)],
            cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            # the JVM and the engine live in the child's process group: nothing of a round may run during the next one
            _end_group(child.pid)
            child.wait()
        output.seek(0)
        lines = output.read().splitlines()
    if (found := _result(lines)) is not None:
        return {**found, "load": load}
    # the cause of what Spark says at the end is far above
    causes = dict.fromkeys(line for line in lines[:-_SHOWN] if "Caused by" in line or "LaminaError" in line)
    shown = [*list(causes)[-_SHOWN:], *lines[-_SHOWN:]]
    raise SystemExit("\n".join([*shown, f"{module} ended with {code} and no result for {json.dumps(request)}"]))


def run_main(main: str, arguments: Sequence[object], jars: Sequence[Path], *, heap: str) -> dict[str, Any]:
    """Run `main` to its end.

    Raises:
        SystemExit: It failed or gave no result; its last lines are shown.
    """
    load = machine.load()
    command = [java(), f"-Xmx{heap}", *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENS)]
    command += ["-cp", os.pathsep.join([*map(str, jars), f"{pyspark_jars()}/*"]), main, *map(str, arguments)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if (found := _result(child.stdout.splitlines())) is not None:
        return {**found, "load": load}
    shown = "\n".join([*child.stdout.splitlines()[-20:], *child.stderr.splitlines()[-40:]])
    raise SystemExit(f"{shown}\n{main} ended with {child.returncode} and no result")


def print_result(result: Mapping[str, Any]) -> None:
    """The child's last act."""
    print(MARK + json.dumps(result), flush=True)


def turns(variants: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, variant) in the order in which they run."""
    for number in range(rounds):
        shift = number % len(variants)
        for variant in [*variants[shift:], *variants[:shift]]:
            yield number, variant


def progress(text: str) -> None:
    """One line of what is going on, on standard error."""
    print(text, file=sys.stderr, flush=True)


LONG_MINUTES = 60
"""What runs shorter than this is no record."""


def record_name(name: str, minutes: float) -> str:
    """The name of the result of a run of so many minutes: a shorter one goes beside the last record."""
    return name if minutes >= LONG_MINUTES else f"{name}-quick"


def write_result(name: str, result: Mapping[str, Any]) -> None:
    """Keep the JSON of the last run for the report, in its order, with the code that it measured."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    stamped = {**result, "commit": machine.commit(), "code": machine.code()}
    (RESULTS / f"{name}.json").write_text(json.dumps(stamped, indent=1) + "\n")


def _result(lines: Sequence[str]) -> dict[str, Any] | None:
    for line in lines:
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line[len(MARK) :])
            return found
    return None


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def read_result(name: str) -> dict[str, Any]:
    """The JSON of the last run, to keep parts of it.

    Raises:
        SystemExit: There is none, or it measured another code.
    """
    try:
        found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    except FileNotFoundError:
        raise SystemExit(f"there is no last run to keep anything of: {name}.json") from None
    if later(found.get("code", ""), name) is None:
        raise SystemExit(f"{name}.json is of another code of shim or engine: nothing of it can be kept")
    return found
