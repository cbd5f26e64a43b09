"""A JVM that serves Hadoop files, for all tests here."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.scala import java, pyspark_jars
from lamina.storage import Jvm
from tests.spark.conftest import shim_jar
from tests.spark.hadoop_jars import odd_file_system_jar


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a program prints; it ends where there is none."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the program ended with {process.wait()}"
    return line.strip()


@contextlib.contextmanager
def serving(*jars: Path) -> Iterator[Jvm]:
    """A JVM that serves Hadoop files, without Spark around it; `jars` are beside Spark's."""
    token = secrets.token_hex(32)
    classes = os.pathsep.join([f"{pyspark_jars()}/*", shim_jar(), str(odd_file_system_jar()), *map(str, jars)])
    process = subprocess.Popen(
        [java(), "-Xmx512m", "-cp", classes, "org.apache.spark.sql.lamina.wire.HadoopFilesServer", token],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Jvm(line_of(process), token)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="module")
def jvm() -> Iterator[Jvm]:
    """A JVM that serves Hadoop files."""
    with serving() as jvm:
        yield jvm
