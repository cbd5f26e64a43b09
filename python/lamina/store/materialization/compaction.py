"""Tiered compaction in the background: merges references of a confirmed version into a segment.

Nothing published changes: the segment is a new file, and the next commit refers to it in place of what it was merged
from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from lamina._version import __version__
from lamina.components import Clock, Ids
from lamina.format.container import SEGMENT, ContainerWriter
from lamina.format.entries import Compression
from lamina.format.manifest import (
    REWRITE,
    RUN,
    ColumnFamily,
    CommitManifest,
    Reference,
    Section,
    SegmentManifest,
    to_bytes,
)
from lamina.format.paths import SegmentName
from lamina.store.files.store_files import StoreFiles
from lamina.store.materialization.materializer import (
    Compacted,
    Merge,
    Progress,
    Work,
    kept_young,
    stamped_at_birth,
    young,
)
from lamina.store.materialization.sources import read_sources
from lamina.store.materialization.tiers import are_mostly_dead, live_rows, pick
from lamina.store.memory.budget import Share
from lamina.store.tables.reading import is_table_list
from lamina.store.versions.chain import Replacement, Segment, mergeable, tables

_DEAD_TIMES = 4
_MUCH_BYTES = 2 << 20
"""Of a version with so many times more rows than live ones, and so much of it in log objects, all is merged, however
few commits that are: a restore would read the state several times. Less is read in no time, and a merge writes a file.
"""


class Compaction:
    """The materializer whose bases are segments.

    Args:
        min_age_ms: after which a collector deletes what no version has referred to.
        most_parts: commits in log objects are left alone until a version consists of so many of them,
        most_bytes: or of so many bytes of them, or has the same rows in them again and again.
    """

    def __init__(
        self,
        files: StoreFiles,
        compression: Compression,
        min_age_ms: int,
        clock: Clock,
        ids: Ids,
        *,
        most_parts: int = 0,
        most_bytes: int = 0,
    ) -> None:
        self._most_parts = most_parts
        self._most_bytes = most_bytes
        self._files = files
        self._compression = compression
        self._min_age_ms = min_age_ms
        self._clock = clock
        self._ids = ids

    def is_due(self, references: Sequence[Reference], live_rows: int) -> bool:
        return self.needs_rebuild(references) or bool(self._picked(references, live_rows))

    def _picked(self, references: Sequence[Reference], live_rows: int) -> Sequence[Reference]:
        """What is worth a merge. In log objects commits cost no request each, as segments do."""
        parts = _down_to_last_part(references)
        if not parts:
            return pick(references, live_rows)
        in_log = [one.length for one in parts if one.is_in_log]
        size = sum(in_log)
        if len(in_log) >= self._most_parts or size >= self._most_bytes:
            return max(parts, pick(references, live_rows), key=len)
        if size >= _MUCH_BYTES and are_mostly_dead(references, live_rows, _DEAD_TIMES):
            return mergeable(references)
        # files between and below the parts, which do not become more merely because there are parts
        files = pick([one for one in references if not one.is_in_log], live_rows)
        return references[: references.index(files[-1]) + 1] if files else ()

    def needs_rebuild(self, references: Sequence[Reference]) -> bool:
        return any(map(is_table_list, tables(references)))

    def plan(self, manifest: CommitManifest, references: Sequence[Reference], *, at_once: bool = False) -> Merge | None:
        """The merge that is worth it of `references`, which make the version of `manifest`; None where none is.

        Args:
            at_once: whatever is in a log object is worth it.
        """
        rows = live_rows(manifest)
        # merged again and again, what is in the log would become more and more segments
        logged = max(_down_to_last_part(references), pick(references, rows), key=len) if at_once else ()
        inputs = logged or self._picked(references, rows)
        if not inputs:
            return None
        start = inputs[-1].start
        if any(reference.kind == REWRITE or reference.union is not None for reference in inputs):
            # a chain that ends at rewrites or a union needs all of them, unless one run takes the place of the whole
            if len(mergeable(references)) < len(references):
                return None
            # all of them are the state, wherever the oldest begins
            inputs, start = references, 0
        return Merge(
            sum(reference.length for reference in inputs),
            lambda progress, share: self._run(inputs, start, manifest.column_families, progress, share),
        )

    def _run(
        self,
        inputs: Sequence[Reference],
        start: int,
        families: Sequence[ColumnFamily],
        progress: Progress | None,
        share: Share,
    ) -> Compacted:
        with closing(read_sources(self._files, inputs, families, share)) as entries:
            return self._merged(inputs, entries, start, progress, share)

    def rebuilt(
        self,
        references: Sequence[Reference],
        batches: Iterator[pa.RecordBatch],
        progress: Progress | None,
        share: Share,
    ) -> Compacted:
        """A segment in place of all `references`; `batches` are the entries of their version, newest first."""
        return self._merged(references, [(False, batches)], 0, progress, share)

    def _merged(
        self,
        replaced: Sequence[Reference],
        sources: Iterable[tuple[bool, Iterator[pa.RecordBatch]]],
        start: int,
        progress: Progress | None,
        share: Share,
    ) -> Compacted:
        """A segment from version `start` on in place of `replaced`, of the entries of `sources`.

        Args:
            sources: newest first: whether one is sorted with each key once, and its entries.
        """
        total = sum(reference.rows for reference in replaced)
        work = Work(total, progress, share)
        try:
            merged = work.merged(sources, whole=start == 0)
            segment = self._publish(start, replaced[0].version, tuple(replaced), merged)
            segment = young(segment, self._min_age_ms, self._clock, lambda: self.stamped(segment, work.worked))
        finally:
            share.close()
        pa.default_memory_pool().release_unused()
        return Compacted(segment, len(replaced), total, segment.manifest.sections[0].rows)

    def stamped(self, made: Replacement, worked: Callable[[], None]) -> Replacement | None:
        """See `kept_young`: a segment that cannot be stamped is copied."""
        if not isinstance(made, Segment):
            # of another backend, which the query was restarted from
            return None
        segment, manifest = made, made.manifest

        def copied() -> Segment:
            batches = _reported(self._files.entries(segment.reference()), worked)
            return self._publish(manifest.start, manifest.end, manifest.inputs, batches)

        return kept_young(
            segment,
            self._min_age_ms,
            self._clock,
            stamp=lambda: self._files.stamp(str(segment.name)),
            anew=copied,
            copies_young=True,
        )

    def give_up_files(self) -> None:
        """Keeps none."""

    def _publish(
        self, start: int, end: int, inputs: tuple[Reference, ...], batches: Iterator[pa.RecordBatch]
    ) -> Segment:
        name = SegmentName(start, end, self._ids.hex128())
        writer = ContainerWriter(SEGMENT, self._compression)
        written: list[SegmentManifest] = []

        def manifest_of(sections: tuple[Section, ...], header_crc: int) -> bytes:
            written.append(
                SegmentManifest(
                    self._files.identity,
                    name.id,
                    start,
                    end,
                    sections,
                    header_crc,
                    self._clock.now_ms(),
                    f"lamina {__version__}",
                    inputs,
                )
            )
            return to_bytes(written[0].to_json())

        # the age of the file counts from here: before its publication ends, never after
        published_ms = self._clock.now_ms()
        self._files.publish(str(name), writer.chunks([(RUN, batches)], manifest_of))
        made = Segment(written[0], writer.size, published_ms)
        return stamped_at_birth(made, self._min_age_ms, self._clock, lambda: self._files.stamp(str(name)))


def _down_to_last_part(references: Sequence[Reference]) -> Sequence[Reference]:
    """The newest references, down to the oldest one to a commit in a log object."""
    return references[: max((index + 1 for index, one in enumerate(references) if one.is_in_log), default=0)]


def _reported(batches: Iterator[pa.RecordBatch], worked: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        worked()
        yield batch
