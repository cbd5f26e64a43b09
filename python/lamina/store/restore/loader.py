"""Plans of restores: which references, in which order, bring a caller to a version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format.manifest import CommitManifest, Reference
from lamina.storage import all_of
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.memory.budget import Share, unbounded
from lamina.store.model import Load, Version
from lamina.store.restore import detours, stream
from lamina.store.restore.broken import BrokenPlaces
from lamina.store.tables.local import FETCH_BYTES
from lamina.store.tables.reading import TableReader, is_table_list
from lamina.store.versions import chain
from lamina.store.versions.resolution import Versions, is_empty

log = logging.getLogger(__name__)

EMPTY = "empty"
HAVE = "have"

_MAX_STEPS = 8
"""Increments that a caller gets one by one, where the references do not split at the version that it has."""

_CHECKED_AT_ONCE, _CHECKED_BYTES = 32, 16 << 20
"""Sections that are verified at once, and what they may have in memory together."""


class Loader:
    """Restores of one store.

    Args:
        waiting: gives the bases that no commit refers to yet, in the order in which they were made.
        broken: takes what loads find damaged or missing.
    """

    def __init__(
        self,
        versions: Versions,
        files: StoreFiles,
        waiting: Callable[[], Sequence[chain.Replacement]],
        broken: BrokenPlaces,
    ) -> None:
        self._versions = versions
        self._files = files
        self._waiting = waiting
        self._found = broken

    def load(
        self, version: Version, have: Version | None, share: Share | None = None, *, in_place: bool = False
    ) -> Load:
        """See `Store.load`."""
        attempt = self._versions.locate(version)
        if attempt is None or is_empty(attempt):
            return Load(attempt, 0, EMPTY, 0, {}, (), 0, 0, 0, iter(()))
        try:
            opened = self._versions.open_present(attempt, version)
        except LaminaError as error:
            raise detours.advised(error) from error.__cause__
        if have is not None:
            steps = self._steps(opened, have)
            # no entry may be handed out on top of the caller's rows before all of them are known to be whole
            if steps is not None and self._all_whole(steps, share or unbounded()):
                return self._load(opened, HAVE, steps, None, share)
        references: Sequence[Reference] = opened.references
        chain.check(references, opened.manifest.version, partial(self._files.place_of_commit, attempt))
        references = self._around_broken(opened, references)
        if in_place:
            newest = self._with_waiting(references)
            placed = self._in_place(opened, newest, share)
            if placed is None and newest is not references:
                placed = self._in_place(opened, references, share)
            if placed is not None:
                return placed
            # what leads around a broken file comes as entries
            references = self._around_broken(opened, references)
        return self._load(opened, EMPTY, references, self._recover(opened), share)

    def _with_waiting(self, references: Sequence[Reference]) -> Sequence[Reference]:
        """`references` with the lists in them that the next commit will refer to: more is in tables then."""
        for segment in self._waiting():
            newer = chain.adopt(references, segment)
            if newer is not None and not any(detours.place(reference) in self._broken for reference in newer):
                references = newer
        return references

    def _in_place(self, opened: Opened, references: Sequence[Reference], share: Share | None) -> Load | None:
        """What comes on top of the tables in `references`; None where there are none, or one of them is broken."""
        base = chain.tables(references)
        if not base or not is_table_list(base[0]) or base[0].union is not None:
            return None
        taken = share or unbounded()
        reader = TableReader(self._files, base, lambda: taken.take(0), taken.try_take)
        try:
            taken.take(FETCH_BYTES)
            found = reader.in_place()
        except LaminaError as error:
            if not error.kind.startswith("file."):
                raise
            self._remember_broken(frozenset((detours.place(reader.failed),)))
            return None
        finally:
            taken.close()
        above = chain.mergeable(references)
        return replace(self._load(opened, EMPTY, above, self._next_time(opened), share), in_place=found)

    @property
    def _broken(self) -> frozenset[detours.Place]:
        return self._found.places

    def _around_broken(self, opened: Opened, references: Sequence[Reference]) -> Sequence[Reference]:
        """`references`, or what makes the same version without the sections that earlier loads found broken."""
        broken = self._broken
        if not any(detours.place(reference) in broken for reference in references):
            return references
        try:
            return self._alternatives(opened, broken)
        except LaminaError:
            # somebody may have put the file back
            return references

    def _alternatives(self, opened: Opened, broken: frozenset[detours.Place]) -> Sequence[Reference]:
        with closing(self._versions.down(opened)) as walk:
            return detours.alternatives(walk, self._files, broken)

    def _remember_broken(self, places: frozenset[detours.Place]) -> None:
        for root, path in {(root, path or "") for root, path, _ in self._found.add(places)}:
            where = self._files.location(path) if root is None else f"{root}/{path}"
            log.warning("%s is damaged or missing: loads go around it where other files lead to the state", where)

    def _next_time(self, opened: Opened) -> stream.Recover:
        """No way around what comes after tables that are read in place: it would need the rows below."""

        def recover(_: Reference, broken: frozenset[detours.Place], appended: bool) -> Sequence[Reference]:
            self._remember_broken(broken)
            raise self._ruled_out(opened)

        return recover

    def _ruled_out(self, opened: Opened) -> LaminaError:
        """That no way leads on from what was handed out: `TakenNextTime` where one does from the beginning."""
        kind, message = "file.damaged", f"nothing else leads on to {opened.name}"
        try:
            self._alternatives(opened, self._broken)
        except LaminaError:
            return LaminaError.from_kind(kind, message)
        return detours.TakenNextTime(kind, message)

    def entries(self, opened: Opened, worked: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """The entries of a version newest first, around files that are broken; `worked` as of `stream`."""
        families = opened.manifest.column_families
        references = self._around_broken(opened, opened.references)
        return stream.stream(self._files, references, self._recover(opened), families=families, worked=worked)

    def replay(self, snapshot: Version, end: Version, share: Share | None = None) -> Load:
        """See `Store.replay`."""
        target = self._versions.locate(end)
        start = self._versions.locate(snapshot)
        if target is None or is_empty(target):
            return self.load(end, None, share)
        opened = self._versions.open_present(target, end)
        steps: list[Reference] = []
        with closing(self._retained(opened)) as walk:
            for current in walk:
                oldest = current.manifest.version
                if current.manifest.attempt == start:
                    references = [*steps, *current.references]
                    return self._load(opened, EMPTY, references, self._recover_here(opened), share, oldest=oldest)
                increment = detours.increment_reference(current, self._files)
                if increment is None:
                    break
                steps.append(increment)
                if current.manifest.base is None and is_empty(start):
                    return self._load(opened, EMPTY, steps, None, share, oldest=oldest)
        raise LaminaError.from_kind("state.base", f"{end} does not stand on {snapshot} by increments alone")

    def _retained(self, opened: Opened) -> Generator[Opened]:
        """A version and those that it stands on; the error where one was collected says so."""
        with closing(self._versions.down(opened)) as walk:
            try:
                for opened in walk:
                    yield opened
            except LaminaError as error:
                base = opened.manifest.base
                if error.kind != "file.missing" or base is None:
                    raise
                raise self._versions.absent(Version(base.version, base.attempt), base.attempt) from error

    def _steps(self, opened: Opened, have: Version) -> Sequence[Reference] | None:
        """The references, oldest first, from `have` to the version opened; None where there are none."""
        attempt = have.attempt
        if attempt is None or is_empty(attempt):
            return None
        manifest = opened.manifest
        if manifest.attempt == attempt:
            return ()
        names = [name for name, _ in manifest.lineage]
        if attempt not in names:
            return None
        above = names.index(attempt)
        newer = chain.since(opened.references, manifest.lineage[above][1])
        if newer is not None and newer:
            return tuple(reversed(newer))
        # each is a request: those of a caller that is far behind are not asked for
        return self._increments(opened, names[:above], attempt) if above < _MAX_STEPS else None

    def _increments(self, newest: Opened, names: Sequence[str], attempt: str) -> Sequence[Reference] | None:
        """The increments of `newest` and of `names`, oldest first, if each stands on the next and the last on
        `attempt`."""
        if newest.manifest.base is None:
            return None
        try:
            walk = [newest, *all_of(self._files.storage, self._versions.open, names, _MAX_STEPS)]
        except LaminaError:
            return None
        steps: list[Reference] = []
        for opened, below in zip(walk, [*names, attempt], strict=True):
            increment = detours.increment_reference(opened, self._files)
            base = opened.manifest.base
            if increment is None or base is None or base.attempt != below:
                return None
            steps.append(increment)
        return tuple(reversed(steps))

    def _all_whole(self, references: Sequence[Reference], share: Share) -> bool:
        try:
            for some in self._together(references):
                share.take(sum(map(self._files.reading_bytes, some)))
                try:
                    all_of(self._files.storage, self._files.check_section, some, len(some))
                finally:
                    share.close()
        except LaminaError as error:
            if error.kind.startswith("file."):
                return False
            raise
        return True

    def _together(self, references: Sequence[Reference]) -> Iterator[list[Reference]]:
        """What is verified at once: where a read is a round trip a few sections, and small ones."""
        most = _CHECKED_AT_ONCE if self._files.storage.remote else 1
        some: list[Reference] = []
        size = 0
        for reference in references:
            more = self._files.reading_bytes(reference)
            if some and (len(some) == most or size + more > _CHECKED_BYTES):
                yield some
                some, size = [], 0
            some.append(reference)
            size += more
        if some:
            yield some

    def _recover(self, opened: Opened) -> stream.Recover:
        """Another way to the state at the end of a broken reference of the version opened."""
        manifest = opened.manifest

        def recover(failed: Reference, broken: frozenset[detours.Place], appended: bool) -> Sequence[Reference]:
            self._remember_broken(broken)
            if appended or failed.union is not None:
                # of a union, appends of what is newer in the chain may be out, which another way would bring again
                raise self._ruled_out(opened)
            attempt = self._attempt_at(manifest, failed.end)
            if attempt is None:
                raise self._ruled_out(opened)
            try:
                return self._alternatives(self._versions.open(attempt), broken)
            except LaminaError:
                # the rows handed out already rule out a segment that holds newer changes too
                raise self._ruled_out(opened) from None

        return recover

    def _recover_here(self, opened: Opened) -> stream.Recover:
        """The same for who begins with a certain version, to which no other way from the beginning leads."""
        recover = self._recover(opened)

        def here(failed: Reference, broken: frozenset[detours.Place], appended: bool) -> Sequence[Reference]:
            try:
                return recover(failed, broken, appended)
            except detours.TakenNextTime as error:
                raise LaminaError.from_kind(error.kind, error.message) from error

        return here

    def _load(
        self,
        opened: Opened,
        start: str,
        references: Sequence[Reference],
        recover: stream.Recover | None,
        share: Share | None,
        oldest: int | None = None,
    ) -> Load:
        """`oldest`: the version whose retention keeps all of `references`, where that is not the one opened."""
        manifest = opened.manifest
        batches = stream.stream(self._files, references, recover, share, manifest.column_families)
        return Load(
            manifest.attempt,
            manifest.version,
            start,
            sum(count.rows for count in manifest.counts.values()),
            manifest.counts,
            manifest.column_families,
            manifest.next_column_family,
            chain.files(references),
            sum(reference.length for reference in references),
            self._versions.watched(lambda: manifest.version if oldest is None else oldest, batches),
            replayed_bytes=chain.increments(references)[1],
        )

    def _attempt_at(self, manifest: CommitManifest, version: int) -> str | None:
        if manifest.version == version:
            return manifest.attempt
        older, _ = self._versions.lineage(manifest, version)
        return next((attempt for attempt, number in older if number == version), None)
