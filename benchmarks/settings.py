"""What a result says about how durable and how compressed each variant wrote."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.variants import FLOOR, HDFS, LAMINA, ROCKSDB, STATELESS, TUNED
from lamina.settings import PREFIX, Settings

NO_FILES = {"durability": "none, no file is written", "fsync": "no", "compression": "no"}
"""Of a benchmark that stops at the border between shim and engine."""

NO_COMPACTION = {
    PREFIX + "compaction.mode": "full",
    PREFIX + "compaction.fullInterval": "1000000",
    PREFIX + "compaction.maxChain": "900",
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
