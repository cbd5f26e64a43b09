"""The directories of one run of the main job, all below one: the only place that names them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """Where a run keeps what it makes; removing `root` removes everything."""

    root: Path

    @property
    def feed(self) -> Path:
        return self.root / "feed"

    @property
    def temporary(self) -> Path:
        """Temporary files of the driver, its JVM and the engine."""
        return self.root / "tmp"

    def checkpoint(self, query: str) -> Path:
        return self.root / "checkpoint" / query

    def results(self, query: str) -> Path:
        """What the stream wrote: a directory per batch."""
        return self.root / "results" / query

    def expected(self, query: str) -> Path:
        """What the batch run of the query wrote."""
        return self.root / "expected" / query

    def log(self, start: int) -> Path:
        """What the driver and its JVM print, in their `start`-th life."""
        return self.root / f"driver-{start}.log"
