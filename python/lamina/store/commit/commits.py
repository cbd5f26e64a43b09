"""Commits: how attempts that were begun become durable.

1. A commit publishes one file, whole, under a name that only its attempt can write.
2. Its manifest refers only to files that were durable before it, and to its own sections.
3. An attempt stands on a version whose file is there; the caller has confirmed it.
4. Nothing that was published is ever changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lamina._version import __version__
from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format.attempt_id import AttemptId
from lamina.format.container import COMMIT, ContainerWriter, version_of
from lamina.format.entries import Compression
from lamina.format.manifest import REWRITE, SNAPSHOT, Base, CommitManifest, Reference, Run, Section
from lamina.storage import NotDurable
from lamina.store.changelog.groups import Groups, Place
from lamina.store.changelog.waiting import Waiting
from lamina.store.collection.footprints import Footprint
from lamina.store.collection.retention import Retention
from lamina.store.collection.untold import UntoldFootprints
from lamina.store.commit.attempts import Attempts, Begun
from lamina.store.files.roots import check_roots
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.materialization.waiting_segments import WaitingSegments, Young
from lamina.store.memory.budget import Share
from lamina.store.memory.commit_memory import CommitMemory
from lamina.store.model import Accepted, CommitRequest, Committed, StoreConf, judged_ms
from lamina.store.versions import chain
from lamina.store.versions.checkpoint_state import CheckpointState
from lamina.store.versions.resolution import Versions

ARRIVAL = 1 / 16
"""Part of the minimum age in which a commit arrives that is to be in a log object; one that takes longer has a file."""


class Commits:
    """The commits of one store. Thread-safe."""

    def __init__(
        self,
        checkpoint: CheckpointState,
        files: StoreFiles,
        versions: Versions,
        segments: WaitingSegments,
        young: Young,
        attempts: Attempts,
        untold: UntoldFootprints,
        conf: StoreConf,
        clock: Clock,
        groups: Groups | None = None,
    ) -> None:
        self._groups = groups
        self._checkpoint = checkpoint
        self._files = files
        self._versions = versions
        self._segments = segments
        self._young = young
        self._attempts = attempts
        self._untold = untold
        self._conf = conf
        self._settings = conf.settings
        self._retention = Retention.of(conf.settings, conf.min_versions)
        self._clock = clock
        # a merge that it refers to is at most half of the minimum age old when it is begun
        self._arrives_s = judged_ms(conf.settings.retention_min_age_ms) / 1000 * ARRIVAL

    @property
    def waits_for_others(self) -> bool:
        """Whether small commits become durable together with others."""
        return self._groups is not None

    def accept(
        self, request: CommitRequest, sections: Mapping[str, Iterable[pa.RecordBatch]], share: Share, most_held: int
    ) -> Accepted:
        """See `Store.accept`. The final id of an attempt with a file of its own is the one that it was begun with; that
        of one that is small enough for a group names its place there, where it waits from then on.

        Args:
            sections: `increment`, and `snapshot` or `rewrite` where `begin` asked for it; consumed in their order.
        """
        started = self._clock.monotonic()
        begun = self._attempts.begun_as(request)
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
        places: list[Place] = []
        # Spark's state reader takes the partitions from the directories that are there: the first commit makes one
        groups = self._groups if most_held > 0 and begun.lineage and not begun.apart else None

        def is_in_time() -> bool:
            return self._clock.monotonic() - started < self._arrives_s

        def manifest_of(stored: tuple[Section, ...], header_crc: int) -> bytes:
            _check_rows(request, stored)
            attempt = request.attempt
            if groups is not None and writer.size <= groups.max_bytes and is_in_time():
                # the task may be over when the object is there, and nobody would write the state anew
                self._verify_before(request, begun, older, SNAPSHOT in sections)
                # the storage may have taken its time for that
                if is_in_time():
                    # who has a place keeps others waiting until it is filled
                    share.wait_no_more()
                    places.append(groups.reserve())
                    attempt = str(AttemptId.parse(attempt).within(str(places[0].id)))
            written.append(self._new_manifest(request, attempt, begun, stored, header_crc, older))
            return written[0].to_bytes()

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
            self._verify_before(request, begun, older, SNAPSHOT in sections)
            return remembered()

        def remembered() -> Committed:
            opened = Opened(written[0], self._files.locator.of(written[0].attempt), writer.size)
            self._versions.remember(opened)
            self._attempts.end(request.attempt)
            self._untold.add(written[0].attempt, Footprint.of(opened))
            took_ms = (self._clock.monotonic() - started) * 1000
            increments, increment_bytes = chain.increments(written[0].references)
            return Committed(opened.location.name, writer.size, writer.raw_bytes, took_ms, increments, increment_bytes)

        held: list[Any] = []
        try:
            whole = most_held > 0 and _gather(chunks, most_held, held)
            if places and not whole:
                # all that is left is the end of its manifest
                held.extend(chunks)
        except BaseException:
            for place in places:
                place.drop()
            share.close()
            raise
        if places and groups is not None:
            waiting = Waiting(places[0], held, written[0], share.close, request.patient)
            seal = partial(groups.seal, places[0].id.log)
            if request.alone:
                seal()

            def when_durable() -> Committed:
                waiting.result()
                return remembered()

            hurry = partial(groups.hurry, places[0].id.log)
            return Accepted(written[0].attempt, memory.gathered_bytes, when_durable, waiting.when_told, seal, hurry)
        groups = None
        if whole:
            return Accepted(request.attempt, memory.gathered_bytes, publish)
        committed = publish()
        return Accepted(request.attempt, 0, lambda: committed)

    def _verify_before(self, request: CommitRequest, begun: Begun, older: Sequence[Reference], is_whole: bool) -> None:
        """That what the commit stands on is there, before anybody is told that it is durable."""
        if not is_whole:
            self._verify_base(request, begun)
        self._verify_adopted(request, older, begun.base)

    def _verify_base(self, request: CommitRequest, begun: Begun) -> None:
        """The look for the base's file that was begun with the attempt."""
        if begun.look is None or begun.look.found():
            return
        assert begun.base is not None
        raise LaminaError.from_kind(
            "state.base",
            f"{self._files.place_of_commit(begun.look.attempt)}, which attempt {request.attempt} stands on, is not "
            "there any more; the next attempt writes the state in full",
        )

    def _verify_adopted(self, request: CommitRequest, older: Sequence[Reference], base: Opened | None) -> None:
        """Segments that it is the first to name may have been collected until its publication: it was slow, or a clock
        is wrong."""
        known = {reference.path for reference in base.references} if base else set()
        new = [one.path for one in older if one.path and one.root is None and one.path not in known]
        missing = self._files.missing(new)
        if missing:
            self._segments.keep(self._files.missing)
            raise LaminaError.from_kind(
                "state.base",
                f"{min(missing)}, which attempt {request.attempt} stands on, was collected before the attempt was "
                "published; it is tried again. Raise retention.minAgeMs if this repeats, and look at the clocks",
            )

    def _refuse_if_superseded(self, request: CommitRequest) -> None:
        """Without ids in Spark's log the newest run counts, so an older one must not publish any more."""
        newer = self._checkpoint.newer_run() if self._conf.format_version == 1 else None
        if newer is not None:
            raise LaminaError.from_kind(
                "state.superseded",
                f"version {request.version} of {self._files.identity} is not written: run {newer} "
                f"of the query started after this one (epoch {self._attempts.epoch()}); stop one of them",
            )

    def _new_manifest(
        self,
        request: CommitRequest,
        attempt: str,
        begun: Begun,
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
        where = partial(self._files.place_of_commit, attempt)
        chain.check(references, request.version, where)
        check_roots(references, self._files.storage, self._files.directory, where)
        return CommitManifest(
            attempt=attempt,
            version=request.version,
            base=Base(base.version, base.attempt) if base else None,
            store=self._files.identity,
            run=Run(self._attempts.epoch(), self._checkpoint.run_id, request.task_attempt, begun.siblings),
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


def _check_rewrite(request: CommitRequest, begun: Begun, brought: bool) -> None:
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
