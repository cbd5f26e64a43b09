"""Runs `transformWithState` on lamina in a session without its extension: prints why each query failed, or null."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from tests.spark.programs import program_session
from tests.spark.streams import LAMINA, Streams
from tests.spark.test_transform_with_state import with_pandas, with_rows


def main(argument: dict[str, str]) -> None:
    spark = program_session("local[2]", argument["jar"], {"spark.sql.session.timeZone": "UTC"})
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
