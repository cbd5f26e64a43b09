"""`lamina doctor`: whether Java, Python and the packages of this machine fit, one sentence a finding."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import typer
from rich.text import Text

from lamina._version import __version__
from lamina.cli.wording import plain_console, show
from lamina.errors import LaminaError
from lamina.spark.jars import jar_path, spark_home, spark_minor
from lamina.spark.java import java_problem, java_program

PYTHONS = ((3, 10), (3, 13))
SPARKS = ("4.3", "4.2")
_FIRST_PYTHON = {"4.3": (3, 11), "4.2": (3, 10)}
_ENGINE_PACKAGES = {"pyarrow": "17", "fsspec": "2024.6"}
"""What the engine needs in the Python of every executor; py4j comes with Spark."""

_PROBE = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps([list(sys.version_info[:3]), found]))
"""


@dataclass(frozen=True)
class Finding:
    """One sentence about one thing."""

    fits: bool
    text: str


def doctor() -> None:
    """Checks whether Java, Python, pyspark and pyarrow fit; says what was found, what is needed, how to get it.

    Exit code 1 if something does not fit. It looks at the Python that runs it, and at the one that the executors of
    this machine will use (PYSPARK_PYTHON) if that is another one.

    \b
    Examples:
      lamina doctor
      PYSPARK_PYTHON=/opt/python/bin/python3 lamina doctor
    """
    console = plain_console()
    fits = True
    for finding in findings():
        fits = fits and finding.fits
        mark, style = ("✓", "green") if finding.fits else ("✗", "red")
        line = Text(f"{mark} ", style=style) + Text(finding.text, style="" if finding.fits else "red")
        show(console, [line])
    raise typer.Exit(0 if fits else 1)


def findings() -> Iterator[Finding]:
    """All findings, in the order in which they should be put right."""
    yield Finding(True, f"lamina {__version__}.")
    yield _python(sys.version_info[:3], sys.executable)
    yield _java()
    yield from _packages({name: _installed(name) for name in _ENGINE_PACKAGES}, sys.executable)
    yield _tables(_installed("rocksdict"))
    yield from _spark()
    yield from _executor_python()


def _python(version: tuple[int, ...], where: str) -> Finding:
    first, last = PYTHONS
    text = ".".join(map(str, version))
    if first <= version[:2] <= last:
        return Finding(True, f"Python {text} ({where}).")
    return Finding(
        False,
        f"{where} is Python {text}, but lamina needs Python {_dotted(first)} to {_dotted(last)}: make a virtual "
        f"environment with one of them, such as `python{_dotted(last)} -m venv .venv`.",
    )


def _java() -> Finding:
    problem = java_problem()
    return Finding(False, problem) if problem else Finding(True, f"Java that fits ({java_program()}).")


def _packages(found: dict[str, str | None], python: str) -> Iterator[Finding]:
    for name, version in found.items():
        least = _ENGINE_PACKAGES[name]
        get = f"`{python} -m pip install '{name}>={least}'`"
        if version is None:
            yield Finding(False, f"{name} is not installed for {python}, but the engine needs {least} or newer: {get}.")
        elif _numbers(version) < _numbers(least):
            yield Finding(False, f"{name} {version} is installed for {python}, but the engine needs {least}: {get}.")
        else:
            yield Finding(True, f"{name} {version}.")


def _tables(rocksdict: str | None) -> Finding:
    """What only one backend needs."""
    if rocksdict is None:
        return Finding(True, "No rocksdict, which only backend rocksdb needs: `pip install 'lamina[rocksdb]'`.")
    return Finding(True, f"rocksdict {rocksdict}.")


def _spark() -> Iterator[Finding]:
    """The Spark that a driver would start, and whether this installation has a shim for it."""
    newest = SPARKS[0] if sys.version_info[:2] >= _FIRST_PYTHON[SPARKS[0]] else SPARKS[-1]
    try:
        minor = spark_minor()
        if minor in SPARKS:
            yield Finding(True, f"Spark {minor} ({spark_home()}).")
            yield Finding(True, f"The shim for Spark {minor} ({jar_path(minor)}).")
        else:
            yield Finding(
                False,
                f"{spark_home()} is Spark {minor}, but lamina {__version__} is for Spark {' and '.join(SPARKS)}: "
                f"`{sys.executable} -m pip install pyspark=={newest}.0`.",
            )
    except LaminaError as error:
        yield Finding(False, error.message)


def _environment(program: str) -> tuple[str, str]:
    """What an interpreter is and where it lies: virtual environments of one interpreter have links to it."""
    return os.path.dirname(os.path.abspath(program)), os.path.realpath(program)


def _executor_python() -> Iterator[Finding]:
    """The Python of executors on this machine, where it is another one."""
    program = os.environ.get("PYSPARK_PYTHON")
    if not program or _environment(shutil.which(program) or program) == _environment(sys.executable):
        return
    try:
        answer = subprocess.run(
            [program, "-c", _PROBE, *_ENGINE_PACKAGES], capture_output=True, text=True, timeout=60, check=True
        )
        version, found = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        yield Finding(
            False,
            f"PYSPARK_PYTHON is {program}, which cannot be run ({error}), but the engine is started with it: "
            "set it to a Python that has pyarrow and fsspec, or unset it.",
        )
        return
    yield _python(tuple(version), program)
    yield from _packages(found, program)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
