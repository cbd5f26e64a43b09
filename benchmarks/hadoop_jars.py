"""Jars of Hadoop that pyspark does not have, from Maven Central, in the version of pyspark's Hadoop."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.scala import ROOT, java, pyspark_jars

BUILD = ROOT / "build"


def hadoop_aws_jars() -> list[Path]:
    """hadoop-aws of the Hadoop inside pyspark, and what it needs; fetched once, 690 MB."""
    return fetched("hadoop-aws")


def fetched(artifact: str, *options: str) -> list[Path]:
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
