"""Attempts of the next version: what they stand on, and how they become durable.

1. A commit publishes one file, whole, under a name that only its attempt can write.
2. Its manifest refers only to files that were durable before it, and to its own sections.
3. An attempt stands on a version whose file is there; the caller has confirmed it.
4. Nothing that was published is ever changed.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lamina._version import __version__
from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format.attempt_id import AttemptId
from lamina.format.container import COMMIT, ContainerWriter, version_of
from lamina.format.entries import Compression
from lamina.format.manifest import REWRITE, SNAPSHOT, Base, CommitManifest, Reference, Run, Section
from lamina.storage import NotDurable
from lamina.store.collection.footprints import Footprint
from lamina.store.collection.retention import Retention
from lamina.store.collection.untold import UntoldFootprints
from lamina.store.commit.base_looks import BaseLook, BaseLooks
from lamina.store.files.roots import check_roots
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.materialization.tiers import live_rows, pick
from lamina.store.materialization.waiting_segments import WaitingSegments, Young
from lamina.store.memory.budget import Share
from lamina.store.memory.commit_memory import CommitMemory
from lamina.store.model import Accepted, Begin, CommitRequest, Committed, StoreConf, Version
from lamina.store.restore.detours import advised
from lamina.store.versions import chain
from lamina.store.versions.checkpoint_state import CheckpointState
from lamina.store.versions.resolution import Versions, is_empty

_ATTEMPTS_KEPT = 16
"""Attempts that were begun and not committed; older ones were abandoned."""

_MAX_LINEAGE = 1_000
_SPARE_LINEAGE = 28
"""Lineage beyond the retained versions, so that most questions about it cost no further manifest."""


@dataclass(frozen=True)
class _Begun:
    """An attempt between `begin` and `commit`; `base` is None where it stands on nothing."""

    version: int
    base: Opened | None
    lineage: tuple[tuple[str, int], ...]
    siblings: tuple[str, ...]
    needs_snapshot: bool
    rewrite: tuple[int, int] | None
    look: BaseLook | None


class Commits:
    """The attempts of one store. Thread-safe."""

    def __init__(
        self,
        checkpoint: CheckpointState,
        files: StoreFiles,
        versions: Versions,
        segments: WaitingSegments,
        young: Young,
        untold: UntoldFootprints,
        conf: StoreConf,
        *,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._checkpoint = checkpoint
        self._files = files
        self._versions = versions
        self._segments = segments
        self._young = young
        self._untold = untold
        self._conf = conf
        self._settings = conf.settings
        self._retention = Retention.of(conf.settings, conf.min_versions)
        self._lineage_length = min(_MAX_LINEAGE, conf.min_versions + _SPARE_LINEAGE)
        self._clock = clock
        self._ids = ids
        self._lock = threading.Lock()
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        self._looks = BaseLooks(files.has_commit, versions.forget)

    def begin(
        self, base: Version, *, task_attempt: int, load_empty: bool, force_snapshot: bool, have: bool
    ) -> tuple[Begin, Version]:
        """See `Store.begin`; also gives `base` with its attempt, which is confirmed by it."""
        version = base.version + 1
        located, siblings = self._candidates(base, load_empty=load_empty)
        opened, usable, look = self._open_base(
            Version(base.version, located), lenient=have or load_empty, may_wait=have and not load_empty
        )
        stands = usable and not load_empty and not force_snapshot
        wanted = chain.wants_snapshot(self._settings, version, self._chain_on(opened))
        needs_snapshot = not load_empty and (force_snapshot or not usable)
        snapshot = needs_snapshot or (wanted and not load_empty)
        begun = _Begun(
            version,
            opened if stands else None,
            self._lineage_on(located),
            siblings,
            needs_snapshot,
            self._turn(opened) if stands and not snapshot else None,
            look if stands else None,
        )
        attempt = str(AttemptId.for_file(version, self._epoch(), self._ids.hex128()))
        with self._lock:
            self._begun[attempt] = begun
            while len(self._begun) > _ATTEMPTS_KEPT:
                self._begun.popitem(last=False)
        answer = Begin(
            attempt,
            None if load_empty else located,
            snapshot,
            begun.rewrite,
            lost=not usable,
            # what a snapshot takes the place of is not worth a merge
            compaction_due=begun.base is not None and not snapshot and self._is_due(begun.base),
        )
        return answer, Version(base.version, located)

    def _is_due(self, base: Opened) -> bool:
        """Whether merging files of a confirmed version is worth it, once finished segments are referred to."""
        if self._settings.compaction_mode != "background":
            return False
        return bool(pick(self._segments.expected(base), live_rows(base.manifest)))

    def _turn(self, base: Opened | None) -> tuple[int, int] | None:
        """The part, and of how many, that a commit on `base` rewrites; None where it rewrites none."""
        if self._settings.compaction_mode != "rolling" or base is None:
            return None
        parts = self._settings.compaction_rolling_parts
        return chain.next_part(base.manifest.references, parts), parts

    def _candidates(self, base: Version, *, load_empty: bool) -> tuple[str | None, tuple[str, ...]]:
        """The attempt of `base`, and the attempts that are there of the version after it (without ids only)."""
        by_id = self._conf.format_version > 1 and (base.attempt is not None or base.version == 0)
        if by_id:
            return self._versions.locate(base), ()
        by_version = self._files.attempts()
        siblings = tuple(str(attempt) for attempt in by_version.get(base.version + 1, ()))
        if base.attempt is not None or base.version == 0:
            return self._versions.locate(base), siblings
        if load_empty and base.version not in by_version:
            return None, siblings
        return self._versions.arbitrate(by_version, base), siblings

    def _open_base(
        self, base: Version, *, lenient: bool, may_wait: bool
    ) -> tuple[Opened | None, bool, BaseLook | None]:
        """The base's manifest (None for an empty store), whether a version can stand on it as far as is known, and the
        look for its file that the commit has to wait for.

        Args:
            may_wait: where a request takes a round trip, the answer of a look may come later.
        """
        if base.attempt is None or is_empty(base.attempt):
            return None, True, None
        known = self._versions.remembered(base.attempt)
        if may_wait and known is not None and self._files.storage.remote:
            return known, True, self._looks.begun(base.attempt)
        try:
            opened = self._versions.open_present(base.attempt, base)
            chain.check(opened.references, opened.manifest.version, self._files.place_of_commit(base.attempt))
        except LaminaError as error:
            if lenient and error.kind in ("file.missing", "file.damaged", "state.not-retained"):
                return None, False, None
            raise advised(error) from error.__cause__
        return opened, True, None

    def _chain_on(self, base: Opened | None) -> Sequence[Reference]:
        """What a commit on `base` would refer to; finished segments matter only where the chain is long."""
        if base is None:
            return ()
        references = base.references
        short = chain.files(references) < chain.longest(self._settings)
        return references if short else self._segments.applied(base, self._young)

    def _lineage_on(self, attempt: str | None) -> tuple[tuple[str, int], ...]:
        """The lineage of a version after `attempt`; also where it does not stand on it (retention follows it)."""
        if attempt is None or is_empty(attempt):
            return ()
        known = self._versions.remembered(attempt)
        older = known.manifest.lineage if known else ()
        return ((attempt, AttemptId.parse(attempt).version), *older)[: self._lineage_length]

    def accept(
        self, request: CommitRequest, sections: Mapping[str, Iterable[pa.RecordBatch]], share: Share, most_held: int
    ) -> Accepted:
        """See `Store.accept`. The final id of an attempt with a file of its own is the one that it was begun with.

        Args:
            sections: `increment`, and `snapshot` or `rewrite` where `begin` asked for it; consumed in their order.
        """
        started = self._clock.monotonic()
        begun = self._begun_as(request)
        if begun.needs_snapshot and SNAPSHOT not in sections:
            raise LaminaError.from_kind("state.base", f"attempt {request.attempt} has no base and brings no snapshot")
        if SNAPSHOT not in sections:
            _check_rewrite(request, begun, REWRITE in sections)
        older: Sequence[Reference] = ()
        if begun.base and SNAPSHOT not in sections:
            older = chain.carried(self._segments.applied(begun.base, self._young), request.rewrite)
        writer = ContainerWriter(
            COMMIT,
            Compression(self._settings.compression_codec, self._settings.compression_level),
            version_of(
                {*sections, *(reference.kind for reference in older)},
                union=any(reference.union is not None for reference in older),
            ),
        )
        written: list[CommitManifest] = []

        def manifest_of(stored: tuple[Section, ...], header_crc: int) -> Mapping[str, Any]:
            _check_rows(request, stored)
            written.append(self._new_manifest(request, begun, stored, header_crc, older))
            return written[0].to_json()

        remote, rows = self._files.storage.remote, max(request.rows.values(), default=0)
        memory = CommitMemory(share, remote=remote, most_held=most_held, rows=rows)
        chunks = memory.written(writer.chunks(memory.received(sections), manifest_of))

        def publish() -> Committed:
            try:
                # right before it: a commit may have waited since it was accepted
                self._refuse_if_superseded(request)
                self._files.publish_commit(request.attempt, itertools.chain(held, chunks))
            except LaminaError as error:
                # a storage may fail after it did what it was asked for: the name is the attempt's alone, so a look
                # decides, unless what there is to see may not last
                lost_answer = error.kind == "storage.failed" and not isinstance(error.__cause__, NotDurable)
                if not lost_answer or not written or not self._is_there(written[0], writer.size):
                    raise
            finally:
                held.clear()
                share.close()
            if SNAPSHOT not in sections:
                self._verify_base(request, begun)
            self._verify_adopted(written[0], begun.base)
            opened = Opened(written[0], self._files.locator.of(request.attempt), writer.size)
            self._versions.remember(opened)
            with self._lock:
                self._begun.pop(request.attempt, None)
            self._untold.add(request.attempt, Footprint.of(opened))
            took_ms = (self._clock.monotonic() - started) * 1000
            return Committed(opened.location.name, writer.size, writer.raw_bytes, took_ms)

        held: list[Any] = []
        try:
            whole = most_held > 0 and _gather(chunks, most_held, held)
        except BaseException:
            share.close()
            raise
        if whole:
            return Accepted(request.attempt, memory.gathered_bytes, publish)
        committed = publish()
        return Accepted(request.attempt, 0, lambda: committed)

    def _verify_base(self, request: CommitRequest, begun: _Begun) -> None:
        """The look for the base's file that was begun with the attempt."""
        if begun.look is None or begun.look.found():
            return
        assert begun.base is not None
        raise LaminaError.from_kind(
            "state.base",
            f"{self._files.place_of_commit(begun.look.attempt)}, which attempt {request.attempt} stands on, is not "
            "there any more; the next attempt writes the state in full",
        )

    def _verify_adopted(self, manifest: CommitManifest, base: Opened | None) -> None:
        """Segments that it is the first to name may have been collected until its publication: it was slow, or a clock
        is wrong."""
        known = {reference.path for reference in base.references} if base else set()
        for reference in manifest.references:
            path = reference.path
            if path and reference.root is None and path not in known and not self._files.exists(path):
                self._segments.keep(self._files.exists)
                raise LaminaError.from_kind(
                    "state.base",
                    f"{path}, which attempt {manifest.attempt} stands on, was collected before the attempt was "
                    "published; it is tried again. Raise retention.minAgeMs if this repeats, and look at the clocks",
                )

    def _begun_as(self, request: CommitRequest) -> _Begun:
        with self._lock:
            begun = self._begun.get(request.attempt)
        if begun is None or begun.version != request.version:
            raise LaminaError.from_kind(
                "store.state", f"attempt {request.attempt} of version {request.version} was not begun here"
            )
        named = request.base.attempt if request.base else None
        if begun.base is not None and named is not None and named != begun.base.manifest.attempt:
            raise LaminaError.from_kind(
                "state.base", f"attempt {request.attempt} was begun on {begun.base.manifest.attempt}, not on {named}"
            )
        return begun

    def _refuse_if_superseded(self, request: CommitRequest) -> None:
        """Without ids in Spark's log the newest run counts, so an older one must not publish any more."""
        newer = self._checkpoint.newer_run() if self._conf.format_version == 1 else None
        if newer is not None:
            raise LaminaError.from_kind(
                "state.superseded",
                f"version {request.version} of {self._files.identity} is not written: run {newer} "
                f"of the query started after this one (epoch {self._epoch()}); stop one of them",
            )

    def _new_manifest(
        self,
        request: CommitRequest,
        begun: _Begun,
        sections: tuple[Section, ...],
        header_crc: int,
        older: Sequence[Reference],
    ) -> CommitManifest:
        base = begun.base.manifest if begun.base else None
        references = chain.own_references(
            sections,
            request.version,
            base.version if base else 0,
            older,
            self._files.identity,
            request.rewrite,
        )
        # nothing is published that could not be restored
        where = self._files.place_of_commit(request.attempt)
        chain.check(references, request.version, where)
        check_roots(references, self._files.storage, self._files.directory, where)
        return CommitManifest(
            attempt=request.attempt,
            version=request.version,
            base=Base(base.version, base.attempt) if base else None,
            store=self._files.identity,
            run=Run(self._epoch(), self._checkpoint.run_id, request.task_attempt, begun.siblings),
            created_ms=self._clock.now_ms(),
            writer=f"lamina {__version__}",
            spark=self._conf.spark,
            sections=sections,
            header_crc=header_crc,
            references=references,
            lineage=begun.lineage,
            counts=request.counts,
            column_families=request.column_families,
            next_column_family=request.next_column_family,
            retention=self._retention.to_json(),
        )

    def _is_there(self, manifest: CommitManifest, size: int) -> bool:
        try:
            found = self._files.open_commit(manifest.attempt)
        except LaminaError:
            return False
        return found.size == size and found.manifest.to_json() == manifest.to_json()

    def _epoch(self) -> int:
        if self._checkpoint.epoch is None:
            raise LaminaError.from_kind("store.state", f"{self._files.identity} was opened for reading only")
        return self._checkpoint.epoch


def _gather(chunks: Iterator[Any], most: int, held: list[Any]) -> bool:
    """Puts chunks into `held` until there are no more, or more than `most` bytes; whether there are no more."""
    size = 0
    while size <= most:
        chunk = next(chunks, None)
        if chunk is None:
            return True
        held.append(chunk)
        size += len(chunk)
    return False


def _check_rewrite(request: CommitRequest, begun: _Begun, brought: bool) -> None:
    """Raises where another part is rewritten than `begin` asked for, or none."""
    part = request.rewrite
    said = (part.part, part.parts) if part is not None else None
    if said != begun.rewrite or brought != (said is not None):
        raise LaminaError.from_kind(
            "engine.protocol",
            f"attempt {request.attempt} was to rewrite the part {begun.rewrite}, and says that it brings {said}",
        )


def _check_rows(request: CommitRequest, sections: Sequence[Section]) -> None:
    """Raises where other rows arrived than the caller says it sent."""
    for section in sections:
        expected = request.rows.get(section.name)
        if expected is not None and expected != section.rows:
            raise LaminaError.from_kind(
                "engine.protocol",
                f"attempt {request.attempt} announced {expected} rows of {section.name}, and {section.rows} arrived",
            )
