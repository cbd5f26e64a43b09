"""A query on tables of RocksDB on a cluster, over the files that were not processed yet: `python
tables_cluster_query.py <JSON>`.

It may kill an executor once, in the middle of the rows that a task reads from its tables. Prints the answers of each
batch, why the query failed, and of how many tables its state was, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tests.spark.cluster_queries import session
from tests.spark.streams import LAMINA, Streams
from tests.spark.test_restarts import totals


def killing(marker: str, row: int) -> Callable[[str], str]:
    """Gives back what it is given. At some row of a task it kills the executor, once."""
    seen = 0

    def same(key: str) -> str:
        nonlocal seen
        seen += 1
        if seen == row:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return key
            daemon = os.getppid()
            jvm = int(Path(f"/proc/{daemon}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
            assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{jvm}/cmdline").read_text(encoding="utf-8")
            os.kill(jvm, signal.SIGKILL)
        return key

    return same


def main(argument: dict[str, Any]) -> None:
    spark = session(argument)
    streams = Streams(spark, Path(argument["path"]))

    def query(frames: dict[str, DataFrame]) -> DataFrame:
        found = totals(frames)
        if "marker" not in argument:
            return found
        kill = f.udf(killing(argument["marker"], argument["row"]), "string")
        return found.select(kill("k").alias("k"), "n", "total")

    answers: dict[int, dict[str, tuple[int, int]]] = {}

    def collect(frame: DataFrame, batch: int) -> None:
        answers[batch] = {row.k: (row.n, row.total) for row in frame.collect()}

    failure, tables = None, 0
    try:
        done = streams.run(query, LAMINA, mode="complete", conf=argument["conf"], each_batch=collect)
        tables = done.metric("laminaSstFiles")
    except StreamingQueryException as error:
        failure = str(error)
    print(json.dumps({"answers": answers, "failure": failure, "tables": tables}))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
