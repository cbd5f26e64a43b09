"""Queries over files of JSON lines, one file per batch, run on lamina and on a built-in provider alike."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lamina.settings import PREFIX
from lamina.spark.configure import FILE_MANAGER, FILE_MANAGER_KEY

LAMINA = "org.apache.spark.sql.lamina.LaminaStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

SCHEMA = "t timestamp, k string, v long"

COMPACTION = PREFIX + "compaction.mode"
MODE = os.environ.get("LAMINA_MODE", "heap")
"""That of lamina, where a test says nothing else: `make test-nightly` runs all of them in the others, too."""

BACKEND = MODE.removesuffix("-changelog")

BEHIND_BARRIER = {
    PREFIX + "changelog.enabled": "true",
    PREFIX + "durability.level": "executor",
    FILE_MANAGER_KEY: FILE_MANAGER,
}
"""Commits go into log objects, for which batches wait."""

OF_MODE = BEHIND_BARRIER if MODE.endswith("-changelog") else {}

A_FILE_EACH = {PREFIX + "changelog.enabled": "false"}
"""Each commit is a file, whatever the mode: for tests that look for files, or do something to them."""

SETTLED = {COMPACTION: "full"}
"""Nothing writes to a checkpoint of this mode once its query has stopped: no merges are made in the background."""


@dataclass
class Run:
    """What a run of a query gave: rows per batch, and the progress of each batch."""

    batches: dict[int, list[str]] = field(default_factory=dict)
    progress: list[dict[str, Any]] = field(default_factory=list)

    def metric(self, name: str) -> int:
        """The sum of a custom metric over all batches and operators."""
        return sum(
            int(operator["customMetrics"].get(name, 0))
            for batch in self.progress
            for operator in batch.get("stateOperators", [])
        )

    @property
    def all_rows(self) -> list[str]:
        return sorted(row for rows in self.batches.values() for row in rows)


Query = Callable[[dict[str, DataFrame]], DataFrame]


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets SQL settings of a session, and restores what each was before: its value, or unset."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def wait_for(there: Callable[[], bool]) -> None:
    """Returns when `there()` is true."""
    deadline = time.monotonic() + 600
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Streams:
    """Input directories of JSON lines, one file per batch and source, and runs of queries over them.

    Checkpoints are on local files; `scheme` names another file system that has them by the same path.
    """

    def __init__(self, spark: SparkSession, path: Path, scheme: str = "") -> None:
        self.spark = spark
        self.path = path
        self.scheme = scheme
        self._files = len(list(path.glob("in/*/*.json")))

    def feed(self, source: str, rows: Sequence[dict[str, Any]]) -> None:
        """Adds one file, thus one batch, to a source."""
        folder = self.path / "in" / source
        folder.mkdir(parents=True, exist_ok=True)
        self._files += 1
        path = folder / f"{self._files:05d}.json"
        partial = folder / f"_{path.name}"
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        # the source takes files by time of modification, and none that is a week older than one that it has seen: a
        # query that runs must not see this one with the present time
        os.utime(partial, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        partial.rename(path)

    def sources(self) -> dict[str, DataFrame]:
        return {
            folder.name: self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
            for folder in sorted((self.path / "in").iterdir())
        }

    def run(
        self,
        query: Query,
        provider: str,
        *,
        mode: str = "append",
        checkpoint: str = "checkpoint",
        format_version: int | None = None,
        conf: dict[str, str] | None = None,
        each_batch: Callable[[DataFrame, int], None] | None = None,
    ) -> Run:
        """Runs a query over what has been fed so far and was not processed yet."""
        version = format_version or (1 if provider == HDFS else 2)
        settings = {
            "spark.sql.streaming.stateStore.providerClass": provider,
            "spark.sql.streaming.stateStore.checkpointFormatVersion": str(version),
            **(conf or {}),
        }
        if provider == LAMINA and COMPACTION not in settings:
            settings.setdefault(PREFIX + "backend", BACKEND)
            settings.setdefault(PREFIX + "rocksdb.materializeEvery", "2")
        is_said = any(".changelog." in key or ".durability." in key for key in settings)
        if provider == LAMINA and version > 1 and not is_said:
            settings |= OF_MODE
        result = Run()

        def collect(frame: DataFrame, batch: int) -> None:
            result.batches[batch] = sorted(str(row.asDict(recursive=True)) for row in frame.collect())

        with configured(self.spark, settings):
            running = (
                query(self.sources())
                .writeStream.outputMode(mode)
                .foreachBatch(each_batch or collect)
                .option("checkpointLocation", f"{self.scheme}{self.checkpoint(provider, checkpoint)}")
                .trigger(availableNow=True)
                .start()
            )
            try:
                if not running.awaitTermination(1200):
                    raise TimeoutError("the query did not end")
            finally:
                running.stop()
                result.progress = [json.loads(p.json) if hasattr(p, "json") else p for p in running.recentProgress]
        return result

    def checkpoint(self, provider: str = LAMINA, name: str = "checkpoint") -> Path:
        return self.path / name / provider.rsplit(".", 1)[1]
