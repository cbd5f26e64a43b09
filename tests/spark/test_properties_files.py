"""Queries with the files of `conf/`, read as `spark-submit --properties-file` does: each runs, in the mode it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lamina.settings import PREFIX, Settings
from lamina.spark.configure import CHECKPOINT_FORMAT_KEY, EXTENSIONS_KEY, FILE_MANAGER_KEY, PLUGINS_KEY, PROVIDER_KEY
from tests.spark import streams as of_streams
from tests.spark.programs import ROOT
from tests.spark.streams import LAMINA, Streams
from tests.spark.test_backends import totals
from tests.spark.test_changelog import commits
from tests.spark.test_restarts import Answers, rows, unload_all

OF_SPARK = {PROVIDER_KEY, CHECKPOINT_FORMAT_KEY, FILE_MANAGER_KEY}

QUICK = {PREFIX + "rocksdb.materializeEvery": "1", "spark.sql.streaming.stateStore.maintenanceInterval": "200ms"}
"""Tables are there after few batches, where there are any."""


def entries(spark: SparkSession, path: Path) -> dict[str, str]:
    """What spark-submit takes from a file."""
    assert spark.sparkContext._jvm is not None
    read = spark.sparkContext._jvm.org.apache.spark.util.Utils.getPropertiesFromFile(str(path)).iterator()
    found = {}
    while read.hasNext():
        entry = read.next()
        found[entry._1()] = entry._2()
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.conf")), ids=lambda path: path.stem)
def test_a_query_runs_with_a_properties_file_in_the_mode_it_names(
    streams: Streams, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the file's settings and no others, whatever mode the tests run in
    monkeypatch.setattr(of_streams, "OF_MODE", {})
    spark = streams.spark
    given = entries(spark, path)
    # the session of the tests has it, for it cannot be set later
    assert given.pop(EXTENSIONS_KEY) == spark.conf.get(EXTENSIONS_KEY)
    del given[PLUGINS_KEY]
    # Spark takes any name, and so does lamina where it is not one of its own
    Settings.parse(given)
    assert {key for key in given if not key.startswith(PREFIX)} <= OF_SPARK

    answers, table_bytes = Answers(), 0
    for number in range(2):
        for batch in range(4 * number, 4 * number + 4):
            streams.feed("s", rows(batch))
        run = streams.run(totals, LAMINA, mode="complete", conf={**given, **QUICK}, each_batch=answers)
        table_bytes += run.metric("laminaSstFileSize")
        unload_all(spark)
    assert sorted(answers.batches) == list(range(8))
    answers.check()

    found = commits(streams.checkpoint())
    in_log = path.stem.endswith("-changelog")
    assert (found["parts"] > 0, found["files"] > 0) == (in_log, not in_log), found
    assert (table_bytes > 0) == path.stem.startswith("rocksdb")
