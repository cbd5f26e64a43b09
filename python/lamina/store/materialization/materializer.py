"""What makes a base of a store: the part in which backends differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from lamina.format.manifest import CommitManifest, Reference
from lamina.store.versions.chain import Segment

Progress = Callable[[int, int], None]
"""Called with the rows read so far and the rows to read."""


@dataclass(frozen=True)
class Compacted:
    """A finished compaction: the segment to adopt, how many references it stands for, and rows before and after."""

    segment: Segment
    replaces: int
    rows_read: int
    rows_written: int


class Materializer(Protocol):
    """Makes files that take the place of references of a confirmed version. Nothing that was published changes."""

    def run(
        self, manifest: CommitManifest, references: Sequence[Reference], progress: Progress | None
    ) -> Compacted | None:
        """Materializes what is worth it of `references`, which make the version of `manifest`; None where nothing is.

        Raises:
            LaminaError: `file.*` naming a damaged or missing file, `storage.*`.
        """

    def rebuilt(
        self, references: Sequence[Reference], batches: Iterator[pa.RecordBatch], progress: Progress | None = None
    ) -> Compacted:
        """What takes the place of all `references`; `batches` are the entries of their version, newest first."""

    def is_young(self, segment: Segment, min_age_ms: int) -> bool:
        """Whether no collector can have the segment in its hands."""

    def stamped(self, segment: Segment, min_age_ms: int, worked: Callable[[], None]) -> Segment | None:
        """`segment`, young for a while; None where it is lost."""
