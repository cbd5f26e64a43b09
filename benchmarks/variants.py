"""The four state stores that are compared, and the Spark settings that make a session use each."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scala import ROOT, benchmark_jar, compile_jar

FLOOR, HDFS, ROCKSDB, LAMINA = "floor", "hdfs", "rocksdb", "lamina"
ALL = (FLOOR, HDFS, ROCKSDB, LAMINA)

TITLES = {
    FLOOR: "HashMap, no durability",
    HDFS: "built-in HDFS",
    ROCKSDB: "built-in RocksDB + changelog",
    LAMINA: "lamina",
}

_PREFIX = "spark.sql.streaming.stateStore."
_SPARK_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."


def settings(variant: str) -> dict[str, str]:
    """The settings of a variant; the built-in stores run with Spark's defaults, RocksDB with its changelog."""
    if variant == FLOOR:
        return {
            _PREFIX + "providerClass": "lamina.benchmarks.floor.FloorStateStoreProvider",
            _PREFIX + "checkpointFormatVersion": "2",
        }
    if variant == HDFS:
        return {_PREFIX + "providerClass": _SPARK_PROVIDERS + "HDFSBackedStateStoreProvider"}
    if variant == ROCKSDB:
        return {
            _PREFIX + "providerClass": _SPARK_PROVIDERS + "RocksDBStateStoreProvider",
            _PREFIX + "rocksdb.changelogCheckpointing.enabled": "true",
        }
    if variant == LAMINA:
        return {
            _PREFIX + "providerClass": "org.apache.spark.sql.lamina.LaminaStateStoreProvider",
            _PREFIX + "checkpointFormatVersion": "2",
        }
    raise ValueError(f"unknown variant {variant}")


def jars(variant: str) -> list[Path]:
    """The jars that a session of this variant needs beside Spark's."""
    own = {FLOOR: lambda: [benchmark_jar("floor")], LAMINA: lambda: [shim_jar()]}.get(variant, list)
    return [benchmark_jar("workload"), *own()]


def shim_jar() -> Path:
    """lamina's shim, compiled from this checkout."""
    sources = ROOT / "jvm-shim" / "src" / "main"
    return compile_jar("shim", [sources / "scala", sources / "scala-spark-4.3"])
