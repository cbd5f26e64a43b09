"""Writes tests/golden/spark-partitions/keys.json: keys as UnsafeRows, and where Spark itself puts them.

Run with the Python of an environment that has Spark: `python -m tests.golden.make_spark_partitions <file>`. Each case
has the schema of a key, and for each key its bytes and its partition of 7 and of 200.
"""

from __future__ import annotations

import datetime
import json
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

PARTITIONS = (7, 200)
DAY = datetime.date(2026, 11, 24)
AT = datetime.datetime(2026, 11, 24, 12, 30, 1, 123456)

CASES: dict[str, list[tuple[Any, ...]]] = {
    "k boolean": [(True,), (False,), (None,)],
    "k tinyint": [(number,) for number in (0, 1, -1, 127, -128, None)],
    "k smallint": [(number,) for number in (0, 1, -1, 32767, -32768, None)],
    "k int": [(number,) for number in (0, 1, -1, 2**31 - 1, -(2**31), 123456, None)],
    "k bigint": [(number,) for number in (0, 1, -1, 2**63 - 1, -(2**63), 2**32, 1234567890123, None)],
    "k float": [(number,) for number in (0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, None)],
    "k double": [(number,) for number in (0.0, -0.0, 1.5, -1.5, 1e300, 5e-324, math.inf, -math.inf, math.nan, None)],
    "k date": [(DAY,), (datetime.date(1900, 1, 1),), (None,)],
    "k timestamp": [(AT,), (datetime.datetime(1969, 1, 1),), (None,)],
    "k timestamp_ntz": [(AT,), (None,)],
    "k decimal(18,2)": [(Decimal(text),) for text in ("0", "1.5", "-99999999.25")] + [(None,)],
    "k decimal(38,2)": [(Decimal(text),) for text in ("0", "1.5", "-1", f"{'1234567890' * 3}.12")] + [(None,)],
    "k string": [("x" * size,) for size in range(10)] + [("é\u4e2d\U0001f600",), ("a long one " * 100,), (None,)],
    "k binary": [(bytes(range(250, 250 + size)) if size < 7 else b"\xff" * size,) for size in range(9)] + [(None,)],
    "k interval day to second": [(datetime.timedelta(days=-1, seconds=5),), (None,)],
    "carrier string, flight int": [("UA", 1), ("UA", -1), (None, 1), ("UA", None), (None, None), ("", 0)],
    "w struct<start: timestamp, end: timestamp>, carrier string": [
        ((AT, AT), "UA"), ((AT, None), "DL"), (None, "UA"), (None, None), ((None, None), ""),
    ],
    "s struct<a: string, t: struct<b: bigint, c: string>>": [
        (("x", (1, "y")),), (("x", None),), ((None, (None, "some text")),), (None,),
    ],
    ", ".join(f"c{number} int" for number in range(70)): [
        tuple(range(70)), tuple(None if number % 3 else number for number in range(70)), (None,) * 70,
    ],
}  # fmt: skip


def main(file: Path) -> None:
    spark = SparkSession.builder.master("local[1]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    written = []
    for ddl, values in CASES.items():
        keys = spark.createDataFrame(values, ddl).coalesce(1)
        hashed = F.hash(*keys.columns)
        parts = [F.pmod(hashed, F.lit(number)).alias(f"p{number}") for number in PARTITIONS]
        partitions = [list(row) for row in keys.select(*parts).collect()]
        plan = keys._jdf.queryExecution().executedPlan()
        rows = [bytes(row.getBytes()).hex() for row in plan.executeCollect()]
        keyed = [[row, *where] for row, where in zip(rows, partitions, strict=True)]
        written.append({"schema": plan.schema().json(), "keys": keyed})
    file.write_text(json.dumps({"partitions": PARTITIONS, "cases": written}, indent=1) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
