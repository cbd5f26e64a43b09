"""A real Spark session with the built shim, and what the tests show, for the README's table."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from lamina.spark.configure import EXTENSION
from tests.matrix import LANGUAGES, OPERATORS, Cell
from tests.spark.clusters import standalone
from tests.spark.jvms import ONE_COMPILER, local_files
from tests.spark.streams import Streams


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers(operator, language, *forms): the cells of the README's table it shows")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the cells into the report of `--junitxml`, which `tests.matrix` reads."""
    minor = ".".join(pyspark.__version__.split(".")[:2])
    for item in items:
        for mark in item.iter_markers("covers"):
            operator, language, *forms = mark.args
            assert operator in OPERATORS and language in LANGUAGES, mark
            cells = [Cell(operator, language, minor, form) for form in forms]
            item.user_properties += [("covers", json.dumps(cell)) for cell in cells]


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
        .config(map=local_files())
        .config("spark.sql.extensions", EXTENSION)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config(map=ONE_COMPILER)
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


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master with two workers of one core each."""
    with standalone(tmp_path) as url:
        yield url
