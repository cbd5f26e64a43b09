"""Programs with a Spark session of their own, on a cluster or a Spark Connect server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from lamina.spark.configure import CHECKPOINT_FORMAT_KEY, PROVIDER, PROVIDER_KEY
from tests.spark.jvms import java_options, local_files
from tests.spark.streams import BACKEND, OF_MODE

ROOT = Path(__file__).resolve().parent.parent.parent


def run_program(name: str, argument: str, **environment: str) -> str:
    """What the program beside this file wrote to its standard output; nothing that it started is left."""
    # after them whatever Spark the tests themselves have
    paths = os.pathsep.join([str(ROOT / "python"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # A group of its own, which the JVM, its executors, their engines and Python workers belong to.
    program = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(name)), argument],
        env={**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, messages = program.communicate(timeout=1800)
    finally:
        try:
            os.killpg(program.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        program.wait()
    assert program.returncode == 0, messages[-6000:]
    return output


def program_session(master: str, jar: str, settings: dict[str, str]) -> SparkSession:
    """A program's session with lamina; on a cluster its executors have one core each."""
    shared = {
        **local_files(),
        # with both compilers: tasks run side by side here, and re-ordering shows under the second one
        **java_options(),
        "spark.jars": jar,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
        PROVIDER_KEY: PROVIDER,
        CHECKPOINT_FORMAT_KEY: "2",
        "spark.sql.streaming.stateStore.lamina.heap.maxBytes": "256m",
        "spark.sql.streaming.stateStore.lamina.engine.python": sys.executable,
    }
    of_backend = {"spark.sql.streaming.stateStore.lamina.backend": BACKEND}
    if BACKEND == "rocksdb":
        # they have few batches
        of_backend["spark.sql.streaming.stateStore.lamina.rocksdb.materializeEvery"] = "2"
    chosen = {**shared, **of_backend, **settings}
    if chosen[CHECKPOINT_FORMAT_KEY] != "1":
        chosen = {**OF_MODE, **chosen}
    spark: SparkSession = SparkSession.builder.master(master).config(map=chosen).getOrCreate()
    return spark
