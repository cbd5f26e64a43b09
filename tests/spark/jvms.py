"""Settings of the JVMs of the tests."""

from __future__ import annotations

import os

from benchmarks.scala import compile_jar
from tests.matrix import SUITES

ONE_COMPILER = {f"spark.{role}.extraJavaOptions": "-XX:TieredStopAtLevel=1" for role in ("driver", "executor")}
"""For queries of seconds: the second compiler would take much of the processor time, and none of them needs it."""


def local_files() -> dict[str, str]:
    """Local files that fork no processes: `LocalFiles.scala` says why, `core-site.xml` names them to Hadoop."""
    jar = compile_jar("local-files", sorted(SUITES.rglob("LocalFiles.scala")))
    path = os.pathsep.join([str(jar), str(SUITES.with_name("resources"))])
    return {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}
