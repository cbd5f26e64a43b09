"""Settings of the JVMs of the tests."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.scala import compile_jar
from tests.matrix import SUITES

ROOT = Path(__file__).resolve().parent.parent.parent

ALL_COMPILERS = "LAMINA_ALL_COMPILERS"
"""Set in the environment, JVMs compile as by default, as in `make test-nightly`: re-ordering shows under the second."""

CRASH_REPORTS = f"-XX:ErrorFile={ROOT / 'build' / 'hs_err_pid%p.log'}"
"""Where a JVM that crashes says so, whatever its working directory: `tests.stages` looks there."""


def java_options(*options: str) -> dict[str, str]:
    """Options of the JVMs of driver and executors."""
    return {f"spark.{role}.extraJavaOptions": " ".join([CRASH_REPORTS, *options]) for role in ("driver", "executor")}


ONE_COMPILER = java_options(
    *([] if os.environ.get(ALL_COMPILERS) else ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"])
)
"""For queries of seconds: the second compiler would take much of the processor time, and none of them needs it."""


def local_files() -> dict[str, str]:
    """Local files that fork no processes: `LocalFiles.scala` says why, `core-site.xml` names them to Hadoop."""
    jar = compile_jar("local-files", sorted(SUITES.rglob("LocalFiles.scala")))
    path = os.pathsep.join([str(jar), str(SUITES.with_name("resources"))])
    return {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}
