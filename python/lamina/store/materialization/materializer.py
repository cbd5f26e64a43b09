"""What makes a base of a store: the part in which backends differ."""

from __future__ import annotations

import logging
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import pyarrow as pa

from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format.manifest import CommitManifest, Reference, StoreIdentity
from lamina.settings import PREFIX
from lamina.store.materialization.merging import Merger
from lamina.store.memory.budget import Share
from lamina.store.model import InPlace, judged_ms
from lamina.store.versions.chain import Replacement, Segment, TableList

log = logging.getLogger(__name__)

Made = TypeVar("Made", Segment, TableList)

MERGE_BYTES = 96 << 20
"""What a merge has in memory at most, whatever its inputs: batches of all sources, a step, and what is made of it."""

_COPIES = 4
"""How often a small merge has its inputs in memory: as read, sorted, folded and written."""

Progress = Callable[[int, int], None]
"""Called with the rows read so far and the rows to read."""


@dataclass(frozen=True)
class Compacted:
    """A finished merge: what to adopt, how many references it stands for, and rows before and after.

    `in_place` makes a directory of it, in a local one, for who reads it in place; None where nobody can. `merged` is
    what was merged besides, by the names of metrics.
    """

    made: Replacement
    replaces: int
    rows_read: int
    rows_written: int
    in_place: Callable[[str], InPlace] | None = None
    merged: Mapping[str, int] = field(default_factory=dict)


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

    def is_due(self, references: Sequence[Reference], live_rows: int) -> bool:
        """Whether materializing some of `references` is worth it; they make a version of so many rows."""

    def plan(self, manifest: CommitManifest, references: Sequence[Reference], *, at_once: bool) -> Merge | None:
        """What is worth materializing of `references`, which make the version of `manifest`; None where nothing is.

        Args:
            at_once: whether somebody waits for it, so that whatever is not in the base is worth it.
        Raises (the run of it):
            LaminaError: `file.*` naming a damaged or missing file, `storage.*`.
        """

    def needs_rebuild(self, references: Sequence[Reference]) -> bool:
        """Whether `references` stand on another backend's base, so that all of them are to be `rebuilt`."""

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

    def stamped(self, made: Replacement, worked: Callable[[], None]) -> Replacement | None:
        """`made`, young for a while; None where it is lost, or is to be made anew."""

    def give_up_files(self) -> None:
        """Removes what it keeps on the local disk to be quicker the next time; not while it works."""


def fresh_ms(min_age_ms: int) -> int:
    """How old new files may become before they are to be stamped."""
    return judged_ms(min_age_ms) // 8


def is_fresh(published_ms: int, min_age_ms: int, now_ms: int) -> bool:
    """Whether new files need no stamp yet."""
    return 0 <= now_ms - published_ms <= fresh_ms(min_age_ms)


def is_young(published_ms: int, min_age_ms: int, now_ms: int) -> bool:
    """Whether no collector can have new files in its hands.

    A collector deletes what was never referred to once it is older than the minimum age, and it may have decided so
    before the first manifest names the file.
    """
    return 0 <= now_ms - published_ms <= judged_ms(min_age_ms) // 2


def is_in_time(published_ms: int, min_age_ms: int, stamped_ms: int) -> bool:
    """Whether stamps of young files that had ended by then count: those that took long may have come too late."""
    return stamped_ms - published_ms <= judged_ms(min_age_ms) * 3 // 4


def stamped_at_birth(made: Made, min_age_ms: int, clock: Clock, stamp: Callable[[], bool]) -> Made:
    """`made`, which was just published: where that took long, with a new time of publication, if there are stamps.

    What was not there could be in no collector's hands, and what is there is not old before the minimum age.
    """
    now = clock.now_ms()
    if is_fresh(made.published_ms, min_age_ms, now) or not is_in_time(made.published_ms, min_age_ms, now):
        return made
    try:
        stamped = stamp() and is_in_time(made.published_ms, min_age_ms, clock.now_ms())
    except LaminaError as error:
        if not error.kind.startswith("storage."):
            raise
        stamped = False
    return replace(made, published_ms=now) if stamped else made


def young(made: Made, min_age_ms: int, clock: Clock, stamped: Callable[[], Replacement | None]) -> Made:
    """`made`, or what `stamped` gives where publication took so long that no commit may refer to it: it would wait for
    ever, and all that is merged later behind it.

    Raises:
        LaminaError: `storage.failed` where that took too long, too.
    """
    took_ms = clock.now_ms() - made.published_ms
    found = made if is_young(made.published_ms, min_age_ms, clock.now_ms()) else stamped()
    if not isinstance(found, type(made)) or not is_young(found.published_ms, min_age_ms, clock.now_ms()):
        raise LaminaError.from_kind(
            "storage.failed",
            f"{made.name} took {took_ms / 1000:.0f} s to write, and its copy was too slow, too: with "
            f"{PREFIX}retention.minAgeMs, {min_age_ms} ms, they might be collected before a commit refers to them. "
            f"Raise that setting to more than {2 * took_ms} ms, or find out what makes the disk or the storage slow",
        )
    return found


def kept_young(
    made: Made,
    min_age_ms: int,
    clock: Clock,
    *,
    stamp: Callable[[], bool],
    anew: Callable[[], Made | None],
    copies_young: bool,
) -> Made | None:
    """`made` as it is where it is at most an eighth of the minimum age old, else with a new time of publication; None
    where it is lost, or takes too long to be made anew. It is to be asked for each quarter of that age.

    A young one gets it by stamps where the storage knows how. An old one, which a collector may have in its hands, is
    made anew: new names are in nobody's hands.

    Args:
        stamp: stamps its new files; whether the storage could.
        anew: publishes it under other names.
        copies_young: whether a young one is made anew, too, where the storage has no stamps; else it waits until it is
            old.
    """
    now = clock.now_ms()
    if is_fresh(made.published_ms, min_age_ms, now):
        return made
    try:
        if is_young(made.published_ms, min_age_ms, now):
            if stamp():
                if is_in_time(made.published_ms, min_age_ms, clock.now_ms()):
                    return replace(made, published_ms=now)
            elif not copies_young:
                return made
        copy = anew()
        if copy is None or is_young(copy.published_ms, min_age_ms, clock.now_ms()):
            return copy
        log.warning("%s is given up: its copy took longer than half of %sretention.minAgeMs", made.name, PREFIX)
        return None
    except LaminaError as error:
        if error.kind.startswith("file."):
            return None
        if error.kind.startswith("storage."):
            return made
        raise


def spread_over(most: int, store: StoreIdentity) -> int:
    """A bound for a store that is up to a quarter less than `most`, so that stores that began together are not due
    together."""
    return most - zlib.crc32(repr(store.to_json()).encode()) % (most // 4 + 1)


class Work:
    """A merge that goes on: what it reads, with the room that it takes and what is told of it.

    Args:
        rows: to read.
        share: room for what the merge makes of what it reads is taken from it, up to what it has in memory at most.
    """

    def __init__(self, rows: int, progress: Progress | None, share: Share) -> None:
        self._rows = rows
        self._progress = progress
        self._share = share
        self._done = 0

    def _read(self, rows: int) -> None:
        self._done += rows
        self.worked()

    def worked(self) -> None:
        """Says that the merge goes on."""
        if self._progress is not None:
            self._progress(self._done, self._rows)

    def merged(
        self, sources: Iterable[tuple[bool, Iterator[pa.RecordBatch]]], *, whole: bool
    ) -> Iterator[pa.RecordBatch]:
        """The entries of all sources, newest first, as one sorted run; `whole`: of nothing below them."""
        return Merger(tempfile.gettempdir(), self.worked).merged(
            ((is_sorted, self._taken(batches)) for is_sorted, batches in sources), whole=whole, read=self._read
        )

    def _taken(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`batches`, with room for them."""
        for batch in batches:
            room = min(_COPIES * int(batch.nbytes), MERGE_BYTES - self._share.held)
            if room > 0:
                self._share.take(room)
            yield batch
