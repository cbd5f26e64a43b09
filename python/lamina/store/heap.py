"""The heap store: each commit writes its increment as one file; a version is what its manifest refers to.

The table itself lives in the caller. This class puts together what keeps the promises about files: `commits` writes,
`loads` restores, `compaction` merges, `retention` collects.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format.entries import Compression
from lamina.format.manifest import CommitManifest, StoreIdentity
from lamina.store import feed
from lamina.store.chain import Segment
from lamina.store.checkpoint_state import CheckpointState
from lamina.store.commits import Commits
from lamina.store.compaction import Compacted, Compaction
from lamina.store.files import StoreFiles
from lamina.store.loads import Loader
from lamina.store.memory_budget import Share, unbounded
from lamina.store.model import (
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
from lamina.store.retention import Collector, Retention
from lamina.store.segments import WaitingSegments
from lamina.store.versions import Versions, file_name, is_empty


class HeapStore:
    """One store. Thread-safe.

    Args:
        segments: those that other handles of the store share, if there are any.
    """

    def __init__(
        self,
        checkpoint: CheckpointState,
        store_id: StoreId,
        conf: StoreConf,
        *,
        clock: Clock,
        ids: Ids,
        segments: WaitingSegments | None = None,
    ) -> None:
        settings = conf.settings
        self.store_id = store_id
        self.identity = StoreIdentity(checkpoint.uuid or "", store_id.operator, store_id.partition, store_id.name)
        self._checkpoint = checkpoint
        self._background = settings.compaction_mode == "background"
        self._files = StoreFiles(checkpoint.storage, self.identity)
        self._versions = Versions(self._files)
        self._loader = Loader(self._versions, self._files)
        compression = Compression(settings.compression_codec, settings.compression_level)
        self._compaction = Compaction(self._files, compression, clock, ids)
        self._min_age_ms = settings.retention_min_age_ms
        self._segments = WaitingSegments() if segments is None else segments
        self._commits = Commits(
            checkpoint,
            self._files,
            self._versions,
            self._segments,
            lambda segment: self._compaction.is_young(segment, self._min_age_ms),
            conf,
            clock=clock,
            ids=ids,
        )
        self._collector = Collector(self._files, self._versions, Retention.of(settings, conf.min_versions), clock)
        self._lock = threading.Lock()
        self._confirmed: Version | None = None
        self._compacted: str | None = None

    # Which version

    def resolve(self, version: Version) -> str | None:
        """The attempt of `version` that counts, whose file is there; None for an empty store. Confirms nothing.

        Raises:
            LaminaError: `state.not-retained`, `file.missing`, `attempt-id.unknown`.
        """
        attempt = self._versions.locate(version)
        if attempt is not None and not is_empty(attempt) and not self._files.exists(file_name(attempt)):
            raise self._versions.absent(version, file_name(attempt))
        return attempt

    def confirm(self, version: Version) -> Version:
        """Tells the store that a streaming open builds on `version`; gives it with its attempt."""
        return self._confirm(Version(version.version, self._versions.locate(version)))

    def _confirm(self, version: Version) -> Version:
        with self._lock:
            self._confirmed = version
        return version

    def versions(self) -> list[VersionInfo]:
        """The commits whose files are there, oldest first."""
        return self._versions.infos()

    def manifest(self, version: Version) -> CommitManifest | None:
        """The manifest of the attempt of `version` that counts; None for an empty store."""
        attempt = self._versions.locate(version)
        return None if attempt is None or is_empty(attempt) else self._versions.open(attempt, version).manifest

    def lineage(self, version: Version) -> list[Version]:
        """The written versions that `version` consists of or stands on, newest first, as far as manifests are there."""
        newest = self.manifest(version)
        if newest is None:
            return []
        older, _ = self._versions.lineage(newest, 0)
        return [Version(newest.version, newest.attempt), *(Version(number, attempt) for attempt, number in older)]

    # Writing

    def begin(self, base: Version, *, task_attempt: int, load_empty: bool, force_snapshot: bool, have: bool) -> Begin:
        """Confirms `base` and allots an attempt of the version after it.

        Args:
            load_empty: the new version is built from nothing, whatever `base` holds.
            force_snapshot: the new version is written in full, without a base.
            have: the caller has the rows of `base`, so that a lost base can be replaced by a snapshot.
        Raises:
            LaminaError: `file.*`, `state.not-retained`, `attempt-id.unknown`, `storage.*`.
        """
        begun, confirmed = self._commits.begin(
            base, task_attempt=task_attempt, load_empty=load_empty, force_snapshot=force_snapshot, have=have
        )
        self._confirm(confirmed)
        return begun

    def commit(
        self, request: CommitRequest, sections: Mapping[str, Iterable[pa.RecordBatch]], share: Share | None = None
    ) -> Committed:
        """Writes an attempt that `begin` allotted; returns when its file is durable.

        Args:
            sections: `increment`, and `snapshot` or `rewrite` where `begin` asked for it; consumed in their order.
            share: what a large commit has in memory is taken from it.
        Raises:
            LaminaError: `store.state`, `state.base`, `state.superseded`, `storage.*`, `engine.protocol`.
        """
        return self._commits.commit(request, sections, share or unbounded())

    # Reading

    def load(self, version: Version, *, have: Version | None, read_only: bool, share: Share | None = None) -> Load:
        """Streams `version`, from empty or on top of the version that the caller has.

        Args:
            have: what the caller's table holds; used where the way from there is known and whole.
            read_only: a streaming open (False) confirms the version.
            share: what the restore has in memory is taken from it.
        Raises:
            LaminaError: `file.*`, `state.not-retained`, `attempt-id.unknown`, `storage.*`; also from the batches.
        """
        load = self._loader.load(version, have, share)
        if not read_only:
            self._confirm(Version(version.version, load.attempt))
        return load

    def replay(self, snapshot: Version, end: Version, share: Share | None = None) -> Load:
        """Streams `end` from the state of `snapshot` and every increment after it, newest first.

        Raises:
            LaminaError: as `load`, and `state.base` where `end` does not stand on `snapshot` by increments.
        """
        return self._loader.replay(snapshot, end, share)

    def feed(self, start: int, end: Version, family: int | None, share: Share | None = None) -> Feed:
        """The changes of versions `start` … `end`, both inclusive.

        Raises:
            LaminaError: `state.not-retained`, `state.base`, `file.*`, `storage.*`.
        """
        newest = self.manifest(end)
        if newest is None:
            return Feed((), iter(()))
        references = feed.increments(self._versions, self._files, newest, start)
        batches: Iterator[pa.RecordBatch] = feed.batches(self._versions, self._files, references, family, share)
        return Feed(newest.column_families, batches)

    # Maintenance

    def compact(self, progress: Callable[[int, int], None] | None = None) -> Compacted | None:
        """Merges references of the confirmed version into a segment; None where nothing is worth it.

        Where an input is broken and another way leads to the same state, the whole version becomes the segment, so
        that the next one does not need the broken file.

        Run in the maintenance process; the segment counts once a store that commits has adopted it.

        Args:
            progress: called with the rows read so far and the rows to read.
        """
        with self._lock:
            confirmed = self._confirmed
        if not self._background or confirmed is None or is_empty(confirmed.attempt):
            return None
        assert confirmed.attempt is not None
        with self._lock:
            if self._compacted == confirmed.attempt:
                return None  # its segment waits for the next commit
        opened = self._versions.open_present(confirmed.attempt, confirmed)
        self._segments.keep(self._files.exists)
        references = self._segments.expected(opened)
        try:
            compacted = self._compaction.run(opened.manifest, references, progress)
        except LaminaError as error:
            if error.kind not in ("file.damaged", "file.missing", "file.identity"):
                raise
            compacted = self._compaction.rebuilt(references, self._loader.entries(opened), progress)
        with self._lock:
            self._compacted = confirmed.attempt
        return compacted

    def adopt(self, segment: Segment) -> None:
        """Lets the next commit refer to a finished segment in place of what it was merged from."""
        self._segments.add(segment)

    def stamp_segments(self, progress: Callable[[int, int], None] | None = None) -> list[tuple[str, Segment | None]]:
        """Gives finished segments that wait a new time of publication before they are too old to be referred to.

        Run in the maintenance process, so that no commit writes one anew.

        Returns:
            the names of those that were stamped, written under a new name, or lost, with what they became.
        """
        changed: list[tuple[str, Segment | None]] = []
        batches = itertools.count(1)

        def worked() -> None:
            if progress is not None:
                progress(next(batches), 0)

        for segment in self._segments.all():
            stamped = self._compaction.stamped(segment, self._min_age_ms, worked)
            if stamped is not segment:
                self.replace_segment(str(segment.name), stamped)
                changed.append((str(segment.name), stamped))
        return changed

    def replace_segment(self, name: str, stamped: Segment | None) -> None:
        """Lets the next commit refer to `stamped` in place of the waiting segment of that name; None forgets it."""
        self._segments.replace(name, stamped)

    def waiting_segments(self) -> list[Segment]:
        """The finished segments that the next commit is to refer to."""
        return self._segments.all()

    def set_waiting_segments(self, segments: Sequence[Segment]) -> None:
        """Lets the next commit refer to these finished segments, and to no others."""
        self._segments.set(segments)

    def collect(self, confirmed: Version, *, dry_run: bool, progressed: Callable[[], None] = lambda: None) -> Collected:
        """Deletes files that nothing needs any more, by the rules of `lamina.store.retention`.

        Args:
            progressed: called after each manifest that was read, since a first collection reads very many.
        """
        newest = Version(confirmed.version, self._versions.locate(confirmed))
        return self._collector.collect(
            newest, self._checkpoint.standing(), dry_run=dry_run, waiting=self._segments.names(), progressed=progressed
        )

    def rest(self) -> None:
        """Gives the memory of manifests back; what is small is kept for the next use."""
        self._versions.forget()
