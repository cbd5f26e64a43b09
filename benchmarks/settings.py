"""What a result says about how durable and how compressed each variant wrote."""

from __future__ import annotations

from benchmarks.variants import FLOOR, HDFS, LAMINA, ROCKSDB
from lamina.settings import Settings


def durability(variant: str) -> dict[str, str]:
    """fsync, compression and durability level of a variant as the benchmarks run it."""
    if variant == FLOOR:
        return {"durability": "none", "fsync": "no", "compression": "no"}
    if variant in (HDFS, ROCKSDB):
        return {"durability": "commit waits for the file", "fsync": "no", "compression": "lz4 (Spark's default)"}
    if variant == LAMINA:
        settings = Settings.parse({})
        return {
            "durability": f"level {settings.durability_level}: the task ends when all its stores are durable",
            "fsync": "yes" if settings.storage_fsync_enabled else "no",
            "compression": f"{settings.compression_codec} level {settings.compression_level}",
        }
    raise ValueError(f"unknown variant {variant}")
