"""Tiered compaction in the background: merges references of a confirmed version into a segment.

Nothing published changes: the segment is a new file, and the next commit refers to it in place of what it was merged
from.

Tiers are lazy. Nothing is merged while a version consists of at most 1 + log2(version) files, so that with the next
commit's increment they are at most 2 + log2(version). When there are more, the newest few are merged, three or more, up
to the first that is followed by an older one at least as large as all of them together: sizes keep growing from new to
old, a large old segment is left alone until as much has been written after it, and an entry is rewritten less often
than log2(versions) times. A merge of more files than that which `_LONG` versions wrote begins up to `_AHEAD` files
sooner, since versions may pass before it is done. A large version consists of up to `_FEW` files before any are merged:
a preload of a few batches stays as it was written, and what follows it is not merged again with every commit. All
references are merged when most of their rows are dead, which costs no more than what was written since the last time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lamina._version import __version__
from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format.container import SEGMENT, ContainerWriter
from lamina.format.entries import Compression, decode, messages
from lamina.format.manifest import REWRITE, RUN, CommitManifest, Reference, Section, SegmentManifest
from lamina.format.paths import SegmentName
from lamina.store.chain import Segment
from lamina.store.files import StoreFiles
from lamina.store.merge import Merger

WORKING_PREFIX = "lamina-compaction-"
"""Names of the local directories that a compaction works in begin so."""

_LEAST_MERGED = 3
"""Merging only two would come up again with the next commit but one."""

_LONG = 32
_AHEAD = 2

_FEW = 8
_LARGE_BYTES = 16 << 20
_LARGE_ROWS = 1 << 18
"""A version of more bytes or rows is large."""

_LEAST_WAITING_MS = 20_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Compacted:
    """A finished compaction: the segment to adopt, how many references it stands for, and rows before and after."""

    segment: Segment
    replaces: int
    rows_read: int
    rows_written: int


def pick(references: Sequence[Reference], live_rows: int) -> Sequence[Reference]:
    """The newest references that are worth a merge; empty where none are."""
    if len(references) > 1 and _mostly_dead(references, max(live_rows, 1)):
        return references
    if len(references) < 2:
        return ()
    chosen = _newest(references)
    return chosen if len(references) > _most_files(references, chosen) else ()


def _newest(references: Sequence[Reference]) -> Sequence[Reference]:
    """The newest references, up to the first that is followed by an older one at least as large as all of them."""
    merged = 0
    for count, reference in enumerate(references, start=1):
        merged += reference.length
        older = references[count].length if count < len(references) else 0
        if count >= min(_LEAST_MERGED, len(references)) and merged <= older:
            break
    return references[:count]


def _mostly_dead(references: Sequence[Reference], live_rows: int) -> bool:
    """Whether most rows are dead, so that merging all writes no more than was written since the last time.

    Rows that append to lists are not dead, however often their keys come: so what is newer than the oldest reference
    must be as large as it, unless the oldest alone has too many rows.
    """
    oldest, newer = references[-1], references[:-1]
    if oldest.start == 0 and oldest.rows > 2 * live_rows:
        return True
    rows = sum(reference.rows for reference in references)
    return rows > 2 * live_rows and sum(reference.length for reference in newer) >= oldest.length


def live_rows(manifest: CommitManifest) -> int:
    """How many rows the version has."""
    return sum(count.rows for count in manifest.counts.values())


def _most_files(references: Sequence[Reference], chosen: Sequence[Reference]) -> int:
    """How many files the version of these references may consist of before `chosen` are merged."""
    # of the fewest that are merged together the oldest may be large: to begin early would be to merge it more often
    long = len(chosen) > _LEAST_MERGED and chosen[0].end - chosen[-1].start >= _LONG
    ahead = _AHEAD if long else 0
    few = max(references[0].end, 1).bit_length() - ahead
    large = sum(one.rows for one in references) > _LARGE_ROWS or sum(one.length for one in references) > _LARGE_BYTES
    return max(few, _FEW) if large else few


class Compaction:
    """Compactions of one store."""

    def __init__(self, files: StoreFiles, compression: Compression, clock: Clock, ids: Ids) -> None:
        self._files = files
        self._compression = compression
        self._clock = clock
        self._ids = ids

    def run(
        self, manifest: CommitManifest, references: Sequence[Reference], progress: Progress | None
    ) -> Compacted | None:
        """Merges what is worth it of `references`, which make the version of `manifest`; None where nothing is.

        Raises:
            LaminaError: `file.*` naming a damaged or missing file, `storage.*`.
        """
        inputs = pick(references, live_rows(manifest))
        if not inputs:
            return None
        if any(reference.kind == REWRITE for reference in inputs):
            # a chain that ends at rewrites needs all of them, unless one run takes the place of the whole
            inputs = references
        total = sum(reference.rows for reference in inputs)
        done = 0

        def read(rows: int) -> None:
            nonlocal done
            done += rows
            worked()

        def worked() -> None:
            if progress is not None:
                progress(done, total)

        with tempfile.TemporaryDirectory(prefix=WORKING_PREFIX) as directory:
            merged = Merger(directory, worked).merged(
                ((reference.kind == RUN, entries(self._files, reference)) for reference in inputs),
                whole=inputs[-1].start == 0,
                read=read,
            )
            segment = self._publish(inputs[-1].start, inputs[0].end, tuple(inputs), merged)
        pa.default_memory_pool().release_unused()
        return Compacted(segment, len(inputs), total, segment.manifest.sections[0].rows)

    def rebuilt(
        self, references: Sequence[Reference], batches: Iterator[pa.RecordBatch], progress: Progress | None = None
    ) -> Compacted:
        """A segment in place of all `references`; `batches` are the entries of their version, newest first."""
        rows = sum(reference.rows for reference in references)
        done = 0

        def read(more: int) -> None:
            nonlocal done
            done += more
            worked()

        def worked() -> None:
            if progress is not None:
                progress(done, rows)

        with tempfile.TemporaryDirectory(prefix=WORKING_PREFIX) as directory:
            merged = Merger(directory, worked).merged([(False, batches)], whole=True, read=read)
            segment = self._publish(0, references[0].end, tuple(references), merged)
        return Compacted(segment, len(references), rows, segment.manifest.sections[0].rows)

    def is_young(self, segment: Segment, min_age_ms: int) -> bool:
        """Whether no collector can have the segment in its hands.

        A collector deletes what was never referred to once it is older than the minimum age, and it may have decided so
        before the first manifest names the file.
        """
        return 0 <= self._clock.now_ms() - segment.published_ms <= _waiting_ms(min_age_ms) // 2

    def stamped(self, segment: Segment, min_age_ms: int, worked: Callable[[], None]) -> Segment | None:
        """A segment that stays young for a while: one of at most an eighth of the minimum age as it is, and an older
        one with a new time of publication; None where it is lost. It is to be asked for each quarter of that age.

        A young file gets it by a stamp where the storage knows how, otherwise by a copy. An old one, which a collector
        may have in its hands, gets a copy: a new name is in nobody's hands.
        """
        now = self._clock.now_ms()
        if 0 <= now - segment.published_ms <= _waiting_ms(min_age_ms) // 8:
            return segment
        manifest = segment.manifest
        try:
            young = self.is_young(segment, min_age_ms) and self._files.stamp(str(segment.name))
            # a stamp that took long may have come too late
            if young and self._clock.now_ms() - segment.published_ms <= _waiting_ms(min_age_ms) * 3 // 4:
                return replace(segment, published_ms=now)
            return self._publish(
                manifest.start,
                manifest.end,
                manifest.inputs,
                _reported(entries(self._files, segment.reference()), worked),
            )
        except LaminaError as error:
            if error.kind.startswith("file."):
                return None
            if error.kind.startswith("storage."):
                return segment
            raise

    def _publish(
        self, start: int, end: int, inputs: tuple[Reference, ...], batches: Iterator[pa.RecordBatch]
    ) -> Segment:
        name = SegmentName(start, end, self._ids.hex128())
        writer = ContainerWriter(SEGMENT, self._compression)
        written: list[SegmentManifest] = []

        def manifest_of(sections: tuple[Section, ...], header_crc: int) -> Mapping[str, Any]:
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
            return written[0].to_json()

        # the age of the file counts from here: before its publication ends, never after
        published_ms = self._clock.now_ms()
        self._files.publish(str(name), writer.chunks([(RUN, batches)], manifest_of))
        return Segment(written[0], writer.size, published_ms)


def _waiting_ms(min_age_ms: int) -> int:
    """The minimum age by which a segment's age is judged: so short a one as some tests set protects nothing anyhow."""
    return max(min_age_ms, _LEAST_WAITING_MS)


def _reported(batches: Iterator[pa.RecordBatch], worked: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        worked()
        yield batch


def entries(files: StoreFiles, reference: Reference) -> Iterator[pa.RecordBatch]:
    """The verified entries of a section, of which only a batch is in memory."""
    where = files.place(reference)
    schema, undecoded = messages(files.open_section(reference), reference.length, where)
    for message in undecoded:
        yield decode(message, schema, where)
