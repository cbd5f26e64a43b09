"""Local files for the JVM of the tests that fork no processes: those of Spark's suites."""

from __future__ import annotations

import os

from benchmarks.scala import compile_jar
from tests.matrix import SUITES


def local_files() -> dict[str, str]:
    """Settings of a session that has them; `LocalFiles.scala` says why, `core-site.xml` names them to Hadoop."""
    jar = compile_jar("local-files", sorted(SUITES.rglob("LocalFiles.scala")))
    path = os.pathsep.join([str(jar), str(SUITES.with_name("resources"))])
    return {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}
