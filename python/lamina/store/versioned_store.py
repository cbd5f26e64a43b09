"""A store whose versions are bases and increments on a storage: commit, restore, materialize, collect.

The rows live in the caller. This class puts together what keeps the promises about files, and is the same for all
backends: what is a backend's own is how a base is made of increments, the `Materializer` that it is given.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from lamina.checkpoint import CheckpointLogs
from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format.manifest import CommitManifest, StoreIdentity
from lamina.store import feed
from lamina.store.changelog.groups import Groups
from lamina.store.collection.collector import Collector, Judged
from lamina.store.collection.footprints import Footprint
from lamina.store.collection.known_others import KnownOthers
from lamina.store.collection.retention import Retention
from lamina.store.collection.untold import UntoldFootprints
from lamina.store.commit.attempts import Attempts
from lamina.store.commit.commits import Commits
from lamina.store.commit.log_age import LogAge
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.store_files import StoreFiles
from lamina.store.materialization.materializer import Compacted, Materializer, Merge, Progress, is_young
from lamina.store.materialization.waiting_segments import WaitingSegments
from lamina.store.memory.budget import Share, unbounded
from lamina.store.model import (
    Accepted,
    Begin,
    Collected,
    CommitRequest,
    Committed,
    Feed,
    Load,
    StoreConf,
    StoreId,
    Version,
    VersionInfo,
)
from lamina.store.restore.broken import BrokenPlaces
from lamina.store.restore.detours import TakenNextTime
from lamina.store.restore.loader import Loader
from lamina.store.versions.chain import Replacement
from lamina.store.versions.checkpoint_state import CheckpointState
from lamina.store.versions.query_log import QueryLog
from lamina.store.versions.resolution import Versions, is_empty


class VersionedStore:
    """One store, as `Store` says. Thread-safe. `lamina.store.factory` makes it.

    Args:
        materializer_of: makes bases of the store whose files it is given.
        segments: those that other handles of the store share, if there are any.
    """

    def __init__(
        self,
        checkpoint: CheckpointState,
        store_id: StoreId,
        conf: StoreConf,
        materializer_of: Callable[[StoreFiles], Materializer],
        *,
        clock: Clock,
        ids: Ids,
        segments: WaitingSegments | None = None,
        untold: UntoldFootprints | None = None,
        log_age: LogAge | None = None,
        broken: BrokenPlaces | None = None,
        groups: Groups | None = None,
        logs: LogObjects | None = None,
    ) -> None:
        settings = conf.settings
        self.store_id = store_id
        self.identity = StoreIdentity(checkpoint.uuid or "", store_id.operator, store_id.partition, store_id.name)
        self._checkpoint = checkpoint
        self._background = settings.compaction_mode == "background"
        self._files = StoreFiles(checkpoint.storage, self.identity, settings.engine_local_max_bytes, logs)
        self._versions = Versions(self._files)
        self._materializer = materializer_of(self._files)
        self._segments = WaitingSegments() if segments is None else segments
        broken = BrokenPlaces() if broken is None else broken
        self._loader = Loader(self._versions, self._files, self._segments.all, broken)
        self._untold = UntoldFootprints() if untold is None else untold

        def young(made: Replacement) -> bool:
            return is_young(made.published_ms, settings.retention_min_age_ms, clock.now_ms())

        due = self._materializer.is_due
        self._attempts = Attempts(
            checkpoint,
            self._files,
            self._versions,
            self._segments,
            young,
            due,
            conf,
            clock,
            ids,
            log_age or LogAge(),
            self._committed,
            broken,
        )
        self._commits = Commits(
            checkpoint,
            self._files,
            self._versions,
            self._segments,
            young,
            self._attempts,
            self._untold,
            conf,
            clock,
            groups,
        )
        self._collector = Collector(self._files, self._versions, Retention.of(settings, conf.min_versions), clock)
        self._lock = threading.Lock()
        self._confirmed: Version | None = None
        self._compacted: str | None = None

    # Which version

    def resolve(self, version: Version) -> str | None:
        attempt = self._versions.locate(version)
        if attempt is not None and not is_empty(attempt) and not self._files.has_commit(attempt):
            raise self._versions.absent(version, attempt)
        return attempt

    def _committed(self, version: int) -> str | None:
        """The attempt that Spark's log names for a version, where there is a log beside the state."""
        checkpoint, _, state = self.store_id.checkpoint_url.rstrip("/").rpartition("/")
        if state != "state":
            return None
        return QueryLog(CheckpointLogs(self._files.storage.at(checkpoint)), self.store_id).attempt_of(version)

    def confirm(self, version: Version) -> Version:
        return self._confirm(Version(version.version, self._versions.locate(version)))

    def _confirm(self, version: Version) -> Version:
        with self._lock:
            self._confirmed = version
        return version

    def versions(self) -> list[VersionInfo]:
        return self._versions.infos()

    def manifest(self, version: Version) -> CommitManifest | None:
        attempt = self._versions.locate(version)
        return None if attempt is None or is_empty(attempt) else self._versions.open(attempt, version).manifest

    def lineage(self, version: Version) -> list[Version]:
        newest = self.manifest(version)
        if newest is None:
            return []
        older, _ = self._versions.lineage(newest, 0)
        return [Version(newest.version, newest.attempt), *(Version(number, attempt) for attempt, number in older)]

    # Writing

    def begin(self, base: Version, *, task_attempt: int, load_empty: bool, force_snapshot: bool, have: bool) -> Begin:
        begun, confirmed = self._attempts.begin(
            base, task_attempt=task_attempt, load_empty=load_empty, force_snapshot=force_snapshot, have=have
        )
        self._confirm(confirmed)
        return begun

    def commit(
        self, request: CommitRequest, sections: Mapping[str, Iterable[pa.RecordBatch]], share: Share | None = None
    ) -> Committed:
        return self.accept(request, sections, share, most_held=0).publish()

    def accept(
        self,
        request: CommitRequest,
        sections: Mapping[str, Iterable[pa.RecordBatch]],
        share: Share | None = None,
        *,
        most_held: int,
    ) -> Accepted:
        return self._commits.accept(request, sections, share or unbounded(), most_held)

    @property
    def is_prompt(self) -> bool:
        return self._files.storage.is_prompt and not self._commits.waits_for_others

    # Reading

    def load(
        self,
        version: Version,
        *,
        have: Version | None,
        read_only: bool,
        share: Share | None = None,
        in_place: bool = False,
    ) -> Load:
        load = self._loader.load(version, have, share, in_place=in_place)
        if not read_only:
            self._confirm(Version(version.version, load.attempt))
        return load

    def replay(self, snapshot: Version, end: Version, share: Share | None = None) -> Load:
        return self._loader.replay(snapshot, end, share)

    def feed(self, start: int, end: Version, family: int | None, share: Share | None = None) -> Feed:
        newest = self.manifest(end)
        if newest is None:
            return Feed((), iter(()))
        references = feed.increments(self._versions, self._files, newest, start)
        batches: Iterator[pa.RecordBatch] = feed.batches(self._versions, self._files, references, family, share)
        return Feed(newest.column_families, batches)

    # Maintenance

    def compact(self, progress: Progress | None = None) -> Compacted | None:
        merge = self.plan_compaction()
        return None if merge is None else merge.run(progress, unbounded())

    def plan_compaction(self, *, at_once: bool = False) -> Merge | None:
        with self._lock:
            confirmed = self._confirmed
        if not self._background or confirmed is None or is_empty(confirmed.attempt):
            return None
        assert confirmed.attempt is not None
        with self._lock:
            if self._compacted == confirmed.attempt and not at_once:
                return None  # its segment waits for the next commit
        opened = self._versions.open(confirmed.attempt, confirmed)
        self._segments.keep(self._files.missing)
        references = self._segments.expected(opened)

        def rebuilt(progress: Progress | None, share: Share) -> Compacted:
            def worked() -> None:
                if progress is not None:
                    progress(0, sum(reference.rows for reference in references))

            return self._materializer.rebuilt(references, self._loader.entries(opened, worked), progress, share)

        if self._materializer.needs_rebuild(references):
            merge = Merge(sum(reference.length for reference in references), rebuilt)
        else:
            planned = self._materializer.plan(opened.manifest, references, at_once=at_once)
            if planned is None:
                self._looked_at(confirmed)
                return None
            merge = planned
        self._versions.open_present(confirmed.attempt, confirmed)

        def run(progress: Progress | None, share: Share) -> Compacted:
            self._collector.unsettle()
            try:
                compacted = merge.run(progress, share)
            except LaminaError as error:
                if error.kind not in ("file.damaged", "file.missing", "file.identity"):
                    raise
                try:
                    compacted = rebuilt(progress, share)
                except TakenNextTime:
                    compacted = rebuilt(progress, share)
            self._looked_at(confirmed)
            return compacted

        return Merge(merge.bytes, run)

    def _looked_at(self, confirmed: Version) -> None:
        with self._lock:
            self._compacted = confirmed.attempt

    def adopt(self, made: Replacement) -> None:
        self._segments.add(made)

    def stamp_segments(self, progress: Progress | None = None) -> list[tuple[str, Replacement | None]]:
        changed: list[tuple[str, Replacement | None]] = []
        batches = itertools.count(1)

        def worked() -> None:
            if progress is not None:
                progress(next(batches), 0)

        for segment in self._segments.all():
            stamped = self._materializer.stamped(segment, worked)
            if stamped is not segment:
                self._collector.unsettle()
                self.replace_segment(str(segment.name), stamped)
                changed.append((str(segment.name), stamped))
        return changed

    def replace_segment(self, name: str, stamped: Replacement | None) -> None:
        self._segments.replace(name, stamped)

    def waiting_segments(self) -> list[Replacement]:
        return self._segments.all()

    def set_waiting_segments(self, segments: Sequence[Replacement]) -> None:
        self._segments.set(segments)

    def collect(self, confirmed: Version, *, dry_run: bool, progressed: Callable[[], None] = lambda: None) -> Collected:
        return self._collector.collect(
            self._located(confirmed),
            self._checkpoint.standing,
            dry_run=dry_run,
            waiting=self._segments.names(),
            progressed=progressed,
        )

    def judge(self, confirmed: Version, others: KnownOthers, progressed: Callable[[], None] = lambda: None) -> Judged:
        return self._collector.judge(
            self._located(confirmed),
            others.recently,
            again=others.now,
            pins=others.pins,
            waiting=self._segments.names(),
            progressed=progressed,
        )

    def take_footprints(self) -> list[tuple[str, Footprint]]:
        return self._untold.take()

    def note_footprints(self, footprints: Iterable[tuple[str, Footprint]]) -> None:
        self._collector.note(footprints)

    def is_settled(self, confirmed: Version) -> bool:
        return self._collector.is_settled(confirmed)

    def _located(self, version: Version) -> Version:
        return Version(version.version, self._versions.locate(version))

    def rest(self) -> None:
        self._versions.forget_all()

    def give_up_files(self) -> None:
        self._materializer.give_up_files()
