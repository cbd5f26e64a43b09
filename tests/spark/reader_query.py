"""A session with the jar on its class path and no setting of lamina: prints what it reads of checkpoints, as JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(argument: str) -> None:
    """Reads the state and the metadata of each checkpoint."""
    given = json.loads(argument)
    builder = SparkSession.builder.master("local[1]").config("spark.jars", given["jar"])
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    found = []
    for path in given["checkpoints"]:
        state = spark.read.format("statestore").load(path)
        changes = spark.read.format("statestore").option("readChangeFeed", True).option("changeStartBatchId", 0)
        metadata = spark.read.format("state-metadata").load(path)
        found.append(
            {
                "state": sorted(str(row) for row in state.collect()),
                "changes": changes.load(path).count(),
                "operators": [row.operatorName for row in metadata.collect()],
            }
        )
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
