"""The state stores that are compared, and the Spark settings that make a session use each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.scala import ROOT, benchmark_jar
from lamina.spark import jar_path

FLOOR, HDFS, ROCKSDB, LAMINA = "floor", "hdfs", "rocksdb", "lamina"
STATELESS, TUNED = "stateless", "rocksdb-tuned"
"""The same rows without a state, and RocksDB as its tuning guide has it."""

TITLES = {
    STATELESS: "no state",
    FLOOR: "bare map, no durability",
    LAMINA: "lamina",
    HDFS: "built-in HDFS",
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
    if variant == TUNED:
        return {
            **settings(ROCKSDB),
            PREFIX + "checkpointFormatVersion": "2",
            PREFIX + "rocksdb.trackTotalNumberOfRows": "false",
            PREFIX + "rocksdb.blockCacheSizeMB": "32",
        }
    if variant == LAMINA:
        return {}  # lamina.configure sets them
    raise ValueError(f"unknown variant {variant}")


def jars(variant: str) -> list[Path]:
    """The benchmark's own jars that a session of this variant needs; `lamina.configure` adds lamina's."""
    return [benchmark_jar("workload"), *([benchmark_jar("floor")] if variant == FLOOR else [])]


def prepare(chosen: Sequence[str]) -> None:
    """Compile what the variants need, before anything is timed."""
    for variant in chosen:
        jars(variant)
    if LAMINA in chosen:
        shim_jar()


def shim_jar() -> Path:
    """lamina's shim for the installed Spark, built from this checkout."""
    minor = ".".join(version("pyspark").split(".")[:2])
    subprocess.run([sys.executable, str(ROOT / "hatch_build.py"), minor], check=True, stdout=subprocess.DEVNULL)
    return Path(jar_path(minor))
