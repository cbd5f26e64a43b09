"""Runs `transformWithState` on lamina in a session without its extension: prints why each query failed, or null."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.streams import LAMINA, Streams
from tests.spark.test_transform_with_state import with_pandas, with_rows


def main(argument: dict[str, str]) -> None:
    settings = {
        "spark.jars": argument["jar"],
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    spark: SparkSession = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    assert spark.conf.get("spark.sql.extensions", None) is None
    streams = Streams(spark, Path(argument["path"]))
    failures: dict[str, str | None] = {}
    for query in (with_rows, with_pandas):
        failures[query.__name__] = None
        try:
            streams.run(query, LAMINA, mode="update", checkpoint=query.__name__)
        except StreamingQueryException as error:
            failures[query.__name__] = str(error)
    print(json.dumps(failures))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
