"""What makes a base of a store: the part in which backends differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from lamina.format.manifest import CommitManifest, Reference
from lamina.store.memory.budget import Share
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


@dataclass(frozen=True)
class Merge:
    """A merge that is worth it.

    Args:
        bytes: of what it reads, as it is stored.
        run: does it; what it has in memory is taken from the share.
    """

    bytes: int
    run: Callable[[Progress | None, Share], Compacted]


class Materializer(Protocol):
    """Makes files that take the place of references of a confirmed version. Nothing that was published changes."""

    def plan(self, manifest: CommitManifest, references: Sequence[Reference]) -> Merge | None:
        """What is worth materializing of `references`, which make the version of `manifest`; None where nothing is.

        Raises (the run of it):
            LaminaError: `file.*` naming a damaged or missing file, `storage.*`.
        """

    def rebuilt(
        self,
        references: Sequence[Reference],
        batches: Iterator[pa.RecordBatch],
        progress: Progress | None,
        share: Share,
    ) -> Compacted:
        """What takes the place of all `references`; `batches` are the entries of their version, newest first.

        What it has in memory is taken from the share.
        """

    def is_young(self, segment: Segment, min_age_ms: int) -> bool:
        """Whether no collector can have the segment in its hands."""

    def stamped(self, segment: Segment, min_age_ms: int, worked: Callable[[], None]) -> Segment | None:
        """`segment`, young for a while; None where it is lost."""
