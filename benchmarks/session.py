"""The Spark sessions of the benchmarks, and what can be read of their JVM between two batches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import machine, variants
from lamina.spark import configure

PARTITIONS = 2


def start(
    variant: str,
    *,
    driver_memory: str,
    extra_jars: list[Path] | None = None,
    master: str = "local[2]",
    partitions: int = PARTITIONS,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on this machine with the variant's state store.

    Args:
        partitions: of each shuffle.
        conf: further settings.
    """
    builder = (
        SparkSession.builder.master(master)
        .appName(f"benchmark-{variant}")
        .config("spark.driver.memory", driver_memory)
        .config("spark.ui.enabled", "false")
        .config("spark.jars", ",".join(map(str, [*variants.jars(variant), *(extra_jars or [])])))
        .config("spark.sql.shuffle.partitions", str(partitions))
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config("spark.log.level", "ERROR")
    )
    for key, value in {**variants.settings(variant), **(conf or {})}.items():
        builder = builder.config(key, value)
    if variant in (variants.LAMINA, variants.CAPPED, variants.ON_TABLES):
        builder = configure(builder, backend="rocksdb" if variant == variants.ON_TABLES else "heap")
        # the engine's start is part of what a restart takes, as where no plugin starts it
        builder = builder.config("spark.plugins", "")
    return builder.getOrCreate()


def start_steady(name: str, folder: Path, settings: dict[str, str]) -> SparkSession:
    """A session on lamina whose heap is touched at its start, so that a growing process has another reason.

    Its local files lie in `tmp`, which it makes in the folder.
    """
    (folder / "tmp").mkdir()
    builder = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", f"-Xms2g -XX:+AlwaysPreTouch -Djava.io.tmpdir={folder / 'tmp'}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder / "tmp"))
        .config("spark.sql.streaming.minBatchesToRetain", "10")
        .config(map=settings)
    )
    return configure(builder, retention_min_age_ms=30_000).getOrCreate()


def jvm(spark: SparkSession) -> Any:
    """The root of the JVM's packages."""
    return spark.sparkContext._jvm


def gc_millis(spark: SparkSession) -> int:
    """Milliseconds that the JVM has spent in garbage collections."""
    beans = jvm(spark).java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    return sum(bean.getCollectionTime() for bean in beans)


def heap_after_collection(spark: SparkSession) -> int:
    """Bytes in use on the heap after a full collection."""
    jvm(spark).java.lang.System.gc()
    return int(jvm(spark).java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed())


def jvm_pid(spark: SparkSession) -> int:
    """Process id of the JVM."""
    return int(jvm(spark).java.lang.ProcessHandle.current().pid())


def resident(spark: SparkSession) -> dict[str, int]:
    """Greatest resident memory, in bytes, of the JVM and of each process that it started, named by what it is."""
    pid = jvm_pid(spark)
    found = {"jvm": machine.peak_resident_bytes(pid)}
    for child, command in machine.descendants(pid).items():
        found[_role(command)] = machine.peak_resident_bytes(child)
    return found


def directory_bytes(path: Path) -> dict[str, int]:
    """Sums of the sizes of all files below a directory: `segments`, of lamina's maintenance and of RocksDB's
    snapshots, and `commits`."""
    total = {"commits": 0, "segments": 0}
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                size = os.path.getsize(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            total["segments" if name.endswith((".seg", ".sst", ".rdb", ".zip")) else "commits"] += size
    return total


def _role(command: str) -> str:
    return "maintenance" if "maintenance" in command else "engine" if "lamina" in command else command.split(" ")[0]
