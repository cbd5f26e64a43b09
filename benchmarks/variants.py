"""The state stores that are compared, the Spark settings that make a session use each, and how durable each writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.scala import ROOT, benchmark_jar
from lamina.settings import PREFIX as LAMINA_PREFIX
from lamina.settings import Settings
from lamina.spark import jar_path

FLOOR, HDFS, ROCKSDB, LAMINA = "floor", "hdfs", "rocksdb", "lamina"
STATELESS, TUNED, CAPPED = "stateless", "rocksdb-tuned", "lamina-capped"
"""The same rows without a state, RocksDB as its tuning guide has it, and lamina with little memory to spare."""
ON_TABLES, SNAPSHOTS = "lamina-rocksdb", "rocksdb-snapshots"
"""lamina on tables of RocksDB, and Spark's RocksDB without its changelog."""

TITLES = {
    STATELESS: "no state",
    FLOOR: "bare map, no durability",
    LAMINA: "lamina",
    CAPPED: "lamina near its cap",
    ON_TABLES: "lamina, backend rocksdb",
    HDFS: "built-in HDFS",
    SNAPSHOTS: "built-in RocksDB, snapshots",
    ROCKSDB: "built-in RocksDB + changelog",
    TUNED: "built-in RocksDB + changelog, tuned",
}

PREFIX = "spark.sql.streaming.stateStore."
_SPARK_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."


def settings(variant: str) -> dict[str, str]:
    """The settings of a variant; the built-in stores run with Spark's defaults, RocksDB with its changelog.

    Tuned, RocksDB has the checkpoint format of lamina, counts no rows, and has a block cache in which a store fits.
    """
    if variant == FLOOR:
        return {
            PREFIX + "providerClass": "lamina.benchmarks.floor.FloorStateStoreProvider",
            PREFIX + "checkpointFormatVersion": "2",
        }
    if variant in (HDFS, STATELESS):
        return {PREFIX + "providerClass": _SPARK_PROVIDERS + "HDFSBackedStateStoreProvider"}
    if variant == ROCKSDB:
        return {
            PREFIX + "providerClass": _SPARK_PROVIDERS + "RocksDBStateStoreProvider",
            PREFIX + "rocksdb.changelogCheckpointing.enabled": "true",
        }
    if variant == SNAPSHOTS:
        return {**settings(TUNED), PREFIX + "rocksdb.changelogCheckpointing.enabled": "false"}
    if variant == TUNED:
        return {
            **settings(ROCKSDB),
            PREFIX + "checkpointFormatVersion": "2",
            PREFIX + "rocksdb.trackTotalNumberOfRows": "false",
            PREFIX + "rocksdb.blockCacheSizeMB": "32",
        }
    if variant in (LAMINA, CAPPED, ON_TABLES):
        return {}  # lamina.configure sets them
    raise ValueError(f"unknown variant {variant}")


def memory(variant: str, megabytes: int) -> dict[str, str]:
    """Settings that give a store's RocksDB, with all that is in memory for it, so much of the executor."""
    if variant == ON_TABLES:
        return {LAMINA_PREFIX + "rocksdb.memory.fixedPerExecutorBytes": f"{megabytes}m"}
    if variant in (SNAPSHOTS, ROCKSDB, TUNED):
        bounded = {"boundedMemoryUsage": "true", "maxMemoryUsageMB": str(megabytes)}
        return {f"{PREFIX}rocksdb.{name}": value for name, value in bounded.items()}
    return {}


def jars(variant: str) -> list[Path]:
    """The benchmark's own jars that a session of this variant needs; `lamina.configure` adds lamina's."""
    return [benchmark_jar("workload"), *([benchmark_jar("floor")] if variant == FLOOR else [])]


def prepare(chosen: Sequence[str]) -> None:
    """Compile what the variants need, before anything is timed."""
    for variant in chosen:
        jars(variant)
    if LAMINA in chosen or ON_TABLES in chosen:
        shim_jar()


def shim_jar() -> Path:
    """lamina's shim for the installed Spark, built from this checkout."""
    minor = ".".join(version("pyspark").split(".")[:2])
    subprocess.run([sys.executable, str(ROOT / "hatch_build.py"), minor], check=True, stdout=subprocess.DEVNULL)
    return Path(jar_path(minor))


NO_FILES = {"durability": "none, no file is written", "fsync": "no", "compression": "no"}
"""Of a benchmark that stops at the border between shim and engine."""

NO_COMPACTION = {
    LAMINA_PREFIX + "compaction.mode": "full",
    LAMINA_PREFIX + "compaction.fullInterval": "1000000",
    LAMINA_PREFIX + "compaction.maxChain": "900",
}
"""lamina then merges nothing: a version consists of the last snapshot and all increments since."""


def durability(variant: str) -> dict[str, str]:
    """fsync, compression and durability level of a variant as the benchmarks run it."""
    if variant in (FLOOR, STATELESS):
        return {"durability": "none", "fsync": "no", "compression": "no"}
    if variant in (HDFS, ROCKSDB, TUNED):
        return {"durability": "commit waits for the file", "fsync": "no", "compression": "lz4 (Spark's default)"}
    if variant == LAMINA:
        settings = Settings.parse({})
        return {
            "durability": f"level {settings.durability_level}: the task ends when all its stores are durable",
            "fsync": "yes" if settings.storage_fsync_enabled else "no",
            "compression": f"{settings.compression_codec} level {settings.compression_level}",
        }
    raise ValueError(f"unknown variant {variant}")


def told(words: Mapping[str, str]) -> str:
    """What `durability` gives, as one line."""
    return f"{words['durability']}; fsync {words['fsync']}; compression {words['compression']}"
