"""A real Spark session with the built shim."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lamina.spark.configure import EXTENSION
from tests.spark.streams import Streams


def shim_jar() -> str:
    """The jar under test: the one of the installed wheel, or the one that LAMINA_JAR names."""
    named = os.environ.get("LAMINA_JAR")
    if named:
        return named
    from lamina.spark import jar_path

    return jar_path()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session: SparkSession = (
        SparkSession.builder.master("local[2,4]")
        .appName("lamina-tests")
        .config("spark.jars", shim_jar())
        .config("spark.sql.extensions", EXTENSION)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.streaming.metricsEnabled", "true")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.streaming.stateStore.lamina.heap.maxBytes", "1g")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path)
