"""What callers may ask a store, whatever its backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from lamina.format.manifest import CommitManifest, StoreIdentity
from lamina.store.collection.collector import Judged
from lamina.store.collection.footprints import Footprint
from lamina.store.collection.known_others import KnownOthers
from lamina.store.materialization.materializer import Compacted, Merge, Progress
from lamina.store.memory.budget import Share
from lamina.store.model import (
    Accepted,
    Begin,
    Collected,
    CommitRequest,
    Committed,
    Feed,
    Load,
    StoreId,
    Version,
    VersionInfo,
)
from lamina.store.versions.chain import Replacement


class Store(Protocol):
    """One store. Thread-safe."""

    store_id: StoreId
    identity: StoreIdentity

    def resolve(self, version: Version) -> str | None:
        """The attempt of `version` that counts, whose file is there; None for an empty store. Confirms nothing.

        Raises:
            LaminaError: `state.not-retained`, `file.missing`, `attempt-id.unknown`.
        """

    def confirm(self, version: Version) -> Version:
        """Tells the store that a streaming open builds on `version`; gives it with its attempt."""

    def versions(self) -> list[VersionInfo]:
        """The commits whose files are there, oldest first."""

    def manifest(self, version: Version) -> CommitManifest | None:
        """The manifest of the attempt of `version` that counts; None for an empty store."""

    def lineage(self, version: Version) -> list[Version]:
        """The written versions that `version` consists of or stands on, newest first, as far as manifests are there."""

    def begin(self, base: Version, *, task_attempt: int, load_empty: bool, force_snapshot: bool, have: bool) -> Begin:
        """Confirms `base` and allots an attempt of the version after it.

        Args:
            load_empty: the new version is built from nothing, whatever `base` holds.
            force_snapshot: the new version is written in full, without a base.
            have: the caller has the rows of `base`, so that a lost base can be replaced by a snapshot.
        Raises:
            LaminaError: `file.*`, `state.not-retained`, `attempt-id.unknown`, `storage.*`.
        """

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

    def accept(
        self,
        request: CommitRequest,
        sections: Mapping[str, Iterable[pa.RecordBatch]],
        share: Share | None = None,
        *,
        most_held: int,
    ) -> Accepted:
        """Receives an attempt that `begin` allotted, and gives it its final id.

        Args:
            sections: as in `commit`; consumed when it returns.
            share: as in `commit`; given back when the file is durable.
            most_held: a file of at most so many bytes waits for `publish`; a larger one is published while it arrives.
        Raises:
            LaminaError: as `commit`; what a file that waits may fail for is raised by its `publish`.
        """

    @property
    def is_prompt(self) -> bool:
        """Whether a publication takes about as long as a message between processes."""

    def load(
        self,
        version: Version,
        *,
        have: Version | None,
        read_only: bool,
        share: Share | None = None,
        in_place: bool = False,
    ) -> Load:
        """Streams `version`, from empty or on top of the version that the caller has.

        Args:
            have: what the caller's table holds; used where the way from there is known and whole.
            read_only: a streaming open (False) confirms the version.
            share: what the restore has in memory is taken from it.
            in_place: the caller reads tables that the version stands on where they are.
        Raises:
            LaminaError: `file.*`, `state.not-retained`, `attempt-id.unknown`, `storage.*`; also from the batches.
        """

    def replay(self, snapshot: Version, end: Version, share: Share | None = None) -> Load:
        """Streams `end` from the state of `snapshot` and every increment after it, newest first.

        Raises:
            LaminaError: as `load`, and `state.base` where `end` does not stand on `snapshot` by increments.
        """

    def feed(self, start: int, end: Version, family: int | None, share: Share | None = None) -> Feed:
        """The changes of versions `start` … `end`, both inclusive.

        Raises:
            LaminaError: `state.not-retained`, `state.base`, `file.*`, `storage.*`.
        """

    def compact(self, progress: Progress | None = None) -> Compacted | None:
        """Merges references of the confirmed version into a segment; None where nothing is worth it.

        Where an input is broken and another way leads to the same state, the whole version becomes the segment, so
        that the next one does not need the broken file.

        Run in the maintenance process; the segment counts once a store that commits has adopted it.

        Args:
            progress: called with the rows read so far and the rows to read.
        """

    def plan_compaction(self, *, at_once: bool = False) -> Merge | None:
        """The merge that `compact` would do, or None: for callers to whom it matters how long it takes.

        Args:
            at_once: whether somebody waits for a base without increments above it.
        """

    def adopt(self, made: Replacement) -> None:
        """Lets the next commit refer to a finished segment in place of what it was merged from."""

    def stamp_segments(self, progress: Progress | None = None) -> list[tuple[str, Replacement | None]]:
        """Gives finished segments that wait a new time of publication before they are too old to be referred to.

        Run in the maintenance process, so that no commit writes one anew.

        Returns:
            the names of those that were stamped, written under a new name, or lost, with what they became.
        """

    def replace_segment(self, name: str, stamped: Replacement | None) -> None:
        """Lets the next commit refer to `stamped` in place of the waiting segment of that name; None forgets it."""

    def waiting_segments(self) -> list[Replacement]:
        """The finished segments that the next commit is to refer to."""

    def set_waiting_segments(self, segments: Sequence[Replacement]) -> None:
        """Lets the next commit refer to these finished segments, and to no others."""

    def collect(self, confirmed: Version, *, dry_run: bool, progressed: Callable[[], None] = lambda: None) -> Collected:
        """Deletes files that nothing needs any more, by the rules of `lamina.store.collection.retention`.

        Args:
            progressed: called after each manifest that was read, since a first collection reads very many.
        """

    def judge(self, confirmed: Version, others: KnownOthers, progressed: Callable[[], None] = lambda: None) -> Judged:
        """What `collect` would do, by a look at the runs that stores of the checkpoint share and that may be old.

        Whoever deletes the files looks at the runs again before, and says afterwards that it has.
        """

    def take_footprints(self) -> list[tuple[str, Footprint]]:
        """The latest attempts that became durable since the last call, by any handle of the store in its run and
        process, each with the files that it needs."""

    def note_footprints(self, footprints: Iterable[tuple[str, Footprint]]) -> None:
        """Lets collections go by what `take_footprints` of another process gave, where they would read manifests."""

    def is_settled(self, confirmed: Version) -> bool:
        """Whether a collection would do what the last one by `judge` did, so that it need not be asked for."""

    def rest(self) -> None:
        """Gives the memory of manifests back; what is small is kept for the next use."""

    def give_up_files(self) -> None:
        """Removes what is kept on the local disk for the next merge; not while one goes on."""
