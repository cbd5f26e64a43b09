"""Jars that only some tests need: HDFS's servers from Maven Central, and the tests' own programs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.hadoop_jars import fetched
from benchmarks.scala import compile_jar
from tests.spark.conftest import shim_jar

ROOT = Path(__file__).resolve().parents[2]
TEST_SOURCES = ROOT / "jvm-shim" / "src" / "test" / "scala" / "org" / "apache" / "spark" / "sql" / "lamina" / "wire"

ODD = "org.apache.spark.sql.lamina.wire.OddFileSystem"
"""The tests' own file system."""


def minicluster_jars() -> list[Path]:
    """HDFS's servers of the Hadoop inside pyspark; fetched once, 56 MB."""
    return fetched("hadoop-client-minicluster", "-notransitive")


def odd_file_system_jar() -> Path:
    """The file system with the scheme `odd`, and a server of Hadoop files without a query."""
    return compile_jar("odd-file-system", [TEST_SOURCES / "OddFileSystem.scala"], [Path(shim_jar())])


def mini_hdfs_jar() -> Path:
    """HDFS on this machine, as a program."""
    return compile_jar("mini-hdfs", [ROOT / "tests" / "hadoop" / "src"], minicluster_jars())
