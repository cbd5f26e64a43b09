"""A user's program: counts words in a stream and compares with the same query as a batch.

    app.py <folder> configure | submitted | by-hand <jar>

It prints one line of JSON for the test; it imports lamina only where a user would (`configure`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

BATCHES = 3
WORDS = ["tea", "milk", "sugar", "honey", "Grüße", ""]


def session(way: str, rest: list[str]) -> SparkSession:
    """The session as the three documented ways make it; master and further settings come from the environment."""
    builder = SparkSession.builder.appName("packaging").config("spark.sql.shuffle.partitions", "4")
    if "MASTER" in os.environ:
        builder = builder.master(os.environ["MASTER"])
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    if way == "configure":
        import lamina

        builder = lamina.configure(builder, backend="heap")
    elif way == "by-hand":
        provider = "org.apache.spark.sql.lamina.LaminaStateStoreProvider"
        builder = builder.config("spark.jars", rest[0])
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", provider)
    return builder.getOrCreate()


def engine_parents() -> list[int]:
    """The processes, started under this test's mark, that have an engine as a child; empty where there is no /proc."""
    mark = f"LAMINA_TEST_MARK={os.environ['LAMINA_TEST_MARK']}".encode()
    parents = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"lamina.engine" in (folder / "cmdline").read_bytes() and mark in (folder / "environ").read_bytes():
                parents.add(int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]))
        except OSError:
            continue
    return sorted(parents)


def java_only(pids: list[int]) -> list[int]:
    """Those of the processes that are JVMs: the engine's own maintenance process has a Python parent."""
    return [pid for pid in pids if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0]]


def main() -> None:
    """Writes input, runs the stream over it file by file, twice, and prints what was seen."""
    folder, way, *rest = sys.argv[1:]
    source, checkpoint = Path(folder) / "in", Path(folder) / "checkpoint"
    source.mkdir()
    spark = session(way, rest)
    counts: dict[str, int] = {}
    parents: list[int] = []

    def collect(frame: DataFrame, _batch: int) -> None:
        counts.update({row["word"]: row["count"] for row in frame.collect()})
        parents[:] = java_only(engine_parents())

    progress = []
    for part in range(2):  # the second run starts from the checkpoint of the first
        for index in range(BATCHES):
            lines = [json.dumps({"word": WORDS[(index * 7 + n * n + part) % len(WORDS)]}) for n in range(50)]
            (source / f"{part}{index}.json").write_text("\n".join(lines), encoding="utf-8")
        stream = spark.readStream.schema("word string").option("maxFilesPerTrigger", "1").json(str(source))
        query = (
            stream.groupBy("word")
            .agg(f.count("*").alias("count"))
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(collect)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress += [entry["stateOperators"][0] for entry in query.recentProgress if entry["stateOperators"]]
    batch = spark.read.schema("word string").json(str(source)).groupBy("word").agg(f.count("*").alias("count"))
    expected = {row["word"]: row["count"] for row in batch.collect()}
    seen = {
        "identical": counts == expected,
        "words": len(expected),
        "spark": spark.version,
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size(),  # type: ignore[union-attr]
        "engine_parents": len(parents),
        "proc": Path("/proc/self/environ").exists(),
        "state_files": len(list((checkpoint / "state").rglob("*.lam"))),
        "other_files": len(list((checkpoint / "state").rglob("*.delta"))),
        "metrics": sorted(progress[-1]["customMetrics"]),
        "batches": len(progress),
        "jars": spark.conf.get("spark.jars", ""),
        "format": spark.conf.get("spark.sql.streaming.stateStore.checkpointFormatVersion", "1"),
        "lamina_installed": any((Path(entry) / "lamina" / "__init__.py").exists() for entry in sys.path if entry),
    }
    spark.stop()
    print("SEEN " + json.dumps(seen))


if __name__ == "__main__":
    main()
