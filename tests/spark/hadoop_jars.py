"""Jars that only some tests need: Hadoop's S3A and HDFS's servers from Maven Central, and the tests' own programs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.scala import compile_jar, java, pyspark_jars
from tests.spark.conftest import shim_jar

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
TEST_SOURCES = ROOT / "jvm-shim" / "src" / "test" / "scala" / "org" / "apache" / "spark" / "sql" / "lamina" / "wire"

ODD = "org.apache.spark.sql.lamina.wire.OddFileSystem"
"""The tests' own file system."""


def hadoop_aws_jars() -> list[Path]:
    """hadoop-aws of the Hadoop inside pyspark, and what it needs; fetched once, 690 MB."""
    return _fetched("hadoop-aws")


def minicluster_jars() -> list[Path]:
    """HDFS's servers of the Hadoop inside pyspark; fetched once, 56 MB."""
    return _fetched("hadoop-client-minicluster", "-notransitive")


def _fetched(artifact: str, *options: str) -> list[Path]:
    """The jars of an artifact of Hadoop, in the version of pyspark's."""
    (client,) = pyspark_jars().glob("hadoop-client-api-*.jar")
    version = client.stem.rsplit("-", 1)[1]
    target = BUILD / f"{artifact}-{version}"
    if not target.is_dir():
        BUILD.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=BUILD))
        try:
            command = [java(), "-cp", f"{pyspark_jars()}/*", "org.apache.ivy.Main", "-warn", "-types", "jar", *options]
            command += ["-dependency", "org.apache.hadoop", artifact, version, "-confs", "default"]
            command += ["-cache", f"{partial}/cache", "-retrieve", f"{partial}/jars/[artifact]-[revision].[ext]"]
            # where there is no ivy file Ivy looks for one in the directory it runs in
            subprocess.run(command, check=True, cwd=partial, stdin=subprocess.DEVNULL)
            (partial / "jars").rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return sorted(target.glob("*.jar"))


def odd_file_system_jar() -> Path:
    """The file system with the scheme `odd`, and a server of Hadoop files without a query."""
    return compile_jar("odd-file-system", [TEST_SOURCES / "OddFileSystem.scala"], [Path(shim_jar())])


def mini_hdfs_jar() -> Path:
    """HDFS on this machine, as a program."""
    return compile_jar("mini-hdfs", [ROOT / "tests" / "hadoop" / "src"], minicluster_jars())
