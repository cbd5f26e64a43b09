"""A query over the benchmarks' own source, moved on batch by batch, into the sink that drops or digests its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks import session

SOURCE = "lamina.benchmarks.workload.KeySource"
SINK = "lamina.benchmarks.workload.DigestSink"
KEY_PAD = "customer-000000000000000"  # a key of 24 characters is an UnsafeRow of 40 bytes


class GatedQuery:
    """A running query whose batches are let through one after the other; there is one at a time in a process."""

    def __init__(
        self, spark: SparkSession, rows: DataFrame, *, mode: str, checkpoint: Path | str, timed: range
    ) -> None:
        """Starts the query. The sink drops the rows of `timed` batches and digests those of all others."""
        self._workload = session.jvm(spark).lamina.benchmarks.workload
        self._workload.Digest.timedBatches(timed.start, timed.stop)
        writer = rows.writeStream.format(SINK).outputMode(mode).option("checkpointLocation", str(checkpoint))
        self._query = writer.start()

    def process(self, batches: int) -> None:
        """Runs until that many batches of the stream are done."""
        self._workload.KeyGate.release(batches)
        self._query.processAllAvailable()

    def process_for(self, seconds: float) -> None:
        """Runs batch after batch, and ends the one that is under way then."""
        self._workload.KeyGate.release(2**62)
        self._query.awaitTermination(seconds)
        self._workload.KeyGate.release(0)
        self._query.processAllAvailable()

    def progress(self) -> dict[int, Any]:
        """Spark's progress of each batch so far."""
        return {p["batchId"]: p for p in self._query.recentProgress if "addBatch" in p["durationMs"]}

    def digest(self) -> str:
        """Of the rows of all batches so far that are not timed."""
        return str(self._workload.Digest.result())

    def stop(self) -> None:
        self._query.stop()
