"""What became of maintenance jobs, in figures: for an engine's statistics, and for the next commit of each store."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

from lamina.settings import MERGE_METRICS

_MOST_UNREPORTED = 10_000
"""Stores of which is remembered what nobody asked for yet; those of queries that have ended are forgotten first."""

FIGURES = ("segments", "merge_ms", "failed_merges", "deleted_files", "deleted_bytes", *MERGE_METRICS)

SPACE = ("stored_bytes", "newest_bytes")


class MaintenanceFigures:
    """Adds up the reports of jobs. Not thread-safe."""

    def __init__(self) -> None:
        self._done = 0
        self._failed = 0
        self._segments = 0
        self._failed_merges = 0
        self._merge_ms = 0
        self._collected: Counter[str] = Counter()
        self._last_error: dict[str, str] | None = None
        self._stopped: str | None = None
        self._busy_s = 0.0
        self._unreported: OrderedDict[Hashable, Counter[str]] = OrderedDict()

    def add(self, store: Hashable, report: Mapping[str, Any], seconds: float) -> None:
        """Counts what a job of a store reported that took so long."""
        self._done += report["ok"]
        self._failed += not report["ok"]
        self._last_error = report.get("error", self._last_error)
        self._stopped = report.get("stopped", self._stopped)
        self._busy_s += seconds
        self.add_files(store, report)

    def add_files(self, store: Hashable, report: Mapping[str, Any]) -> None:
        """Counts what a job that ended, or goes on, reported of files of a store."""
        collected = report.get("collected", {})
        self._segments += report.get("segment") is not None
        self._failed_merges += report.get("merge_failed", False)
        self._merge_ms += report.get("merge_ms", 0)
        self._collected.update(collected)
        unreported = self._unreported.setdefault(store, Counter())
        unreported["segments"] += report.get("segment") is not None
        unreported["merge_ms"] += report.get("merge_ms", 0)
        unreported["failed_merges"] += report.get("merge_failed", False)
        unreported["deleted_files"] += collected.get("delete_files", 0)
        unreported["deleted_bytes"] += collected.get("delete_bytes", 0)
        unreported.update(report.get("merged", {}))
        for name, size in report.get("space", {}).items():
            # of the last collection, and no sum
            unreported[name] = size
        self._unreported.move_to_end(store)
        while len(self._unreported) > _MOST_UNREPORTED:
            self._unreported.popitem(last=False)

    def fail_start(self, message: str) -> None:
        """Notes that the process could not be started."""
        self._last_error = {"kind": "engine.start", "message": message}

    def pop(self, store: Hashable) -> dict[str, int]:
        """What became of the store's files since the last call: segments written and the time of merges,
        merges that failed, files and bytes deleted, merges of tables. And what the last collection since then left,
        if there was one."""
        found = self._unreported.pop(store, Counter())
        return {name: found[name] for name in FIGURES} | {name: found[name] for name in SPACE if name in found}

    def merges(self) -> dict[str, int]:
        """How many were made and failed so far, and how long all together took."""
        return {"merges": self._segments, "failed": self._failed_merges, "merge_ms": self._merge_ms}

    def stats(self) -> dict[str, Any]:
        """Jobs done and failed, the time of all together, and what became of files.

        `collected` adds up all collections: files and bytes that were deleted, or looked at and kept, by class.
        """
        return {
            "done": self._done,
            "failed": self._failed,
            "segments": self._segments,
            "failed_merges": self._failed_merges,
            "deleted_files": self._collected["delete_files"],
            "deleted_bytes": self._collected["delete_bytes"],
            "collected": dict(sorted(self._collected.items())),
            "collection_stopped": self._stopped,
            "last_error": self._last_error,
            "busy_ms": round(self._busy_s * 1000),
        }
