"""Finds the Java that Spark would use and says in one sentence what is wrong with it.

Imports nothing of lamina: the build hook and the Makefile run this file on its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

MAJORS = (17, 21)
_MODULE = "jdk.incubator.vector"
"""Spark starts Java with `--add-modules` of it, and runtimes that were cut down to a few modules lack it."""

_GET = (
    "Install a JDK 17 or 21 (Debian and Ubuntu: `apt install openjdk-17-jdk-headless`; macOS: "
    "`brew install openjdk@17`; others: https://adoptium.net) and put it on PATH or into JAVA_HOME."
)


def java_program() -> str | None:
    """The path of the Java that Spark's scripts would start, or None."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return os.path.join(home, "bin", "java")
    return shutil.which("java")


def java_problem() -> str | None:
    """What was found, what is needed and how to get it; None if the Java fits."""
    program = java_program()
    need = " or ".join(str(major) for major in MAJORS)
    if program is None:
        return f"No Java was found on PATH and JAVA_HOME is not set, but Spark needs Java {need}. {_GET}"
    where = f"{program} (from JAVA_HOME)" if os.environ.get("JAVA_HOME") else program
    try:
        as_spark = _run(program, f"--add-modules={_MODULE}", "-version")
        answer = as_spark if as_spark.returncode == 0 else _run(program, "-version")
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        return f"{where} cannot be run ({error}), but Spark needs Java {need}. {_GET}"
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if match is None or int(match[1]) not in MAJORS:
        found = match[1] if match else f"of an unknown version ({answer.stderr.strip()[:80]})"
        return f"{where} is Java {found}, but Spark needs Java {need}. {_GET}"
    if as_spark.returncode != 0:
        return f"{where} is a Java {match[1]} without the module {_MODULE}, which Spark starts Java with. {_GET}"
    return None


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


if __name__ == "__main__":
    sys.exit(java_problem())
