"""The figures per query: collected from the progress that Spark reports, and from the state directory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from lamina.demo.position import position, state_bytes

_LOAD_MS = {"lamina": "laminaLoadMs", "rocksdb": "rocksdbLoadLatencyMs"}
_AFTER_COMMIT_MS = {"lamina": "laminaDurableMs"}
"""What a provider waits for after `commit` returned and before the task ends; reported with the next batch."""


@dataclass(frozen=True)
class Figures:
    """What one query cost.

    Args:
        state_rows: the most rows that its state had after a batch.
        state_bytes: the most bytes that its state took, as the provider reports them.
        written_bytes: mean size, over all batches, of what the state directory holds.
        commit_ms: a value per batch, sorted: the sum over its stores.
        restore_ms: a value per restart after which the query ended a batch: the sum over its stores; empty where the
            provider does not say.
    """

    batches: int
    state_rows: int
    state_bytes: int
    written_bytes: int
    commit_ms: list[int] = field(repr=False)
    restore_ms: list[int]

    def commit_percentile(self, percent: int) -> int | None:
        """The nearest-rank percentile of the commit times."""
        if not self.commit_ms:
            return None
        return self.commit_ms[max(0, -(-percent * len(self.commit_ms) // 100) - 1)]

    @property
    def restore_median_ms(self) -> float | None:
        return median(self.restore_ms) if self.restore_ms else None


class Collected:
    """The progress of all queries over all lives of the driver."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._operators: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._restored: dict[str, list[int]] = defaultdict(list)
        self._fresh: set[str] = set()
        self.late_rows = 0

    def restarted(self, queries: list[str]) -> None:
        """The next progress of each of `queries` is that of its first batch after a restart."""
        self._fresh = set(queries)

    def add(self, progress: dict[str, Any]) -> None:
        """One batch of one query, as in StreamingQueryProgress."""
        query = progress["name"]
        for operator in progress["stateOperators"]:
            self._operators[query].append(operator)
            self.late_rows += operator["numRowsDroppedByWatermark"]
            load = _LOAD_MS.get(self._provider)
            if query in self._fresh and load is not None:
                self._restored[query].append(operator["customMetrics"][load])
        self._fresh.discard(query)

    def figures(self, query: str, checkpoint: Path) -> Figures:
        """The figures of `query`, whose checkpoint is `checkpoint`."""
        operators = self._operators[query]
        batches = position(checkpoint).committed + 1
        after = _AFTER_COMMIT_MS.get(self._provider, "")
        return Figures(
            batches=batches,
            state_rows=max((operator["numRowsTotal"] for operator in operators), default=0),
            state_bytes=max((_bytes_of(self._provider, operator) for operator in operators), default=0),
            written_bytes=state_bytes(checkpoint) // max(1, batches),
            commit_ms=sorted(
                operator["commitTimeMs"] + operator["customMetrics"].get(after, 0) for operator in operators
            ),
            restore_ms=self._restored[query],
        )


def _bytes_of(provider: str, operator: dict[str, Any]) -> int:
    """The size of the state itself: lamina's live rows and their index, the SST files of RocksDB, Spark's estimate."""
    metrics = operator["customMetrics"]
    if provider == "lamina":
        held = metrics["laminaPageBytes"] - metrics["laminaDeadBytes"] + metrics["laminaIndexBytes"]
        return int(held + metrics["laminaSstFileSize"])
    return int(metrics["stateOnCurrentVersionSizeBytes" if provider == "hdfs" else "rocksdbSstFileSize"])
