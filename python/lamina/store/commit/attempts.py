"""Attempts of the next version between `begin` and their commit: what they stand on, and what they are to bring."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format.attempt_id import AttemptId
from lamina.format.manifest import Lineage, Reference
from lamina.store.commit.base_looks import BaseLook, BaseLooks
from lamina.store.commit.log_age import LogAge
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.materialization.materializer import spread_over
from lamina.store.materialization.tiers import live_rows
from lamina.store.materialization.waiting_segments import WaitingSegments, Young
from lamina.store.model import Begin, CommitRequest, StoreConf, Version
from lamina.store.restore.broken import BrokenPlaces
from lamina.store.restore.detours import Place, advised, place
from lamina.store.versions import chain
from lamina.store.versions.checkpoint_state import CheckpointState
from lamina.store.versions.resolution import Versions, is_empty

_ATTEMPTS_KEPT = 16
"""Attempts that were begun and not committed; older ones were abandoned."""

_MAX_LINEAGE = 1_000
_SPARE_LINEAGE = 28
"""Lineage beyond the retained versions, so that most questions about it cost no further manifest."""

_SOON = 10
"""A store that has merged what it has names that, and leaves the log, after so many times fewer batches without a
change."""

Due = Callable[[Sequence[Reference], int], bool]
"""Whether materializing some of the references of a version of so many rows is worth it."""


@dataclass(frozen=True)
class Begun:
    """An attempt between `begin` and `commit`; `base` is None where it stands on nothing. An `apart` one has a file
    of its own."""

    version: int
    base: Opened | None
    lineage: Lineage
    siblings: tuple[str, ...]
    needs_snapshot: bool
    rewrite: tuple[int, int] | None
    look: BaseLook | None
    apart: bool = False


class Attempts:
    """The attempts of one store that were begun. Thread-safe."""

    def __init__(
        self,
        checkpoint: CheckpointState,
        files: StoreFiles,
        versions: Versions,
        segments: WaitingSegments,
        young: Young,
        due: Due,
        conf: StoreConf,
        clock: Clock,
        ids: Ids,
        log_age: LogAge,
        committed: Callable[[int], str | None],
        broken: BrokenPlaces,
    ) -> None:
        self._checkpoint = checkpoint
        self._files = files
        self._versions = versions
        self._segments = segments
        self._young = young
        self._due = due
        self._clock = clock
        self._log_age = log_age
        interval_ms = conf.settings.changelog_materialize_interval_ms
        self._old_after_s = spread_over(interval_ms, files.identity) / 1000 if interval_ms else math.inf
        self._merges = conf.settings.compaction_mode == "background"
        self._conf = conf
        self._settings = conf.settings
        self._lineage_length = min(_MAX_LINEAGE, conf.min_versions + _SPARE_LINEAGE)
        self._ids = ids
        self._committed = committed
        self._broken = broken
        self._lock = threading.Lock()
        self._begun: OrderedDict[str, Begun] = OrderedDict()
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
        broken = self._broken_in(opened)
        # of tables the whole state may be more than memory has and a commit has time for: a merge makes them anew
        by_merge = self._merges and self._settings.backend == "rocksdb"
        lost = not usable or (bool(broken) and not by_merge)
        stands = not lost and not load_empty and not force_snapshot
        references = self._chain_on(opened)
        wanted = chain.wants_snapshot(self._settings, version, references)
        standing = opened if stands else None
        leaves = standing is not None and self._rests(base.version, standing, self._settings.changelog_max_idle_batches)
        if standing is not None and not self._merges:
            # who has no merges in the background writes its state whole
            leaves = leaves or self._changes_seldom(base.version, references)
            wanted = wanted or leaves
        needs_snapshot = not load_empty and (force_snapshot or lost)
        snapshot = needs_snapshot or (wanted and not load_empty)
        apart = (leaves and snapshot) or (standing is not None and self._may_leave(base.version, standing))
        # what a snapshot takes the place of is not worth a merge; but of tables it may be more than memory has and a
        # commit has time for, and the one after it asks for it again until there is a merge
        merges = self._merges and (not snapshot or self._settings.backend == "rocksdb")
        expected = self._segments.expected(standing) if standing is not None and merges else None
        begun = Begun(
            version,
            standing,
            self._lineage_on(located),
            siblings,
            needs_snapshot,
            None if snapshot else self._turn(standing),
            look if stands else None,
            apart,
        )
        attempt = str(AttemptId.for_file(version, self.epoch(), self._ids.hex128()))
        with self._lock:
            self._begun[attempt] = begun
            while len(self._begun) > _ATTEMPTS_KEPT:
                self._begun.popitem(last=False)
        answer = Begin(
            attempt,
            None if load_empty else located,
            snapshot,
            begun.rewrite,
            lost=lost,
            apart=apart,
            materialization_due=expected is not None
            and (self._broken.ask(broken) or self._is_old(base.version, expected)),
            compaction_due=standing is not None
            and expected is not None
            and self._due(expected, live_rows(standing.manifest)),
        )
        return answer, Version(base.version, located)

    def begun_as(self, request: CommitRequest) -> Begun:
        """The attempt that `request` commits.

        Raises:
            LaminaError: `store.state` where it was not begun here, `state.base` where it was begun on another base.
        """
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

    def end(self, attempt: str) -> None:
        """Says that an attempt is durable."""
        with self._lock:
            self._begun.pop(attempt, None)

    def _is_old(self, version: int, references: Sequence[Reference]) -> bool:
        """Whether something that these references have in the log at a version has been there for as long as it may: in
        batches that brought nothing, so that a store that changes seldom keeps no object for long, or in time."""
        oldest = next((one for one in reversed(references) if one.is_in_log), None)
        seen_s = self._log_age.seen_s(None if oldest is None else oldest.path, self._clock.monotonic())
        return oldest is not None and (self._changes_seldom(version, references) or seen_s >= self._old_after_s)

    def _changes_seldom(self, version: int, references: Sequence[Reference]) -> bool:
        """Whether so many batches as may brought nothing since the oldest of these references that are in the log."""
        in_log = [one for one in references if one.is_in_log]
        if not in_log:
            return False
        # each came with one version, wherever its changes begin: those of snapshots and rewrites do at 0
        idle_batches = version - (in_log[-1].end - 1) - len({one.end for one in in_log})
        return idle_batches >= self._settings.changelog_max_idle_batches

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
        if load_empty:
            return self._replaced(base.version, by_version), siblings
        return self._versions.arbitrate(by_version, base), siblings

    def _replaced(self, version: int, by_version: Mapping[int, Sequence[AttemptId]]) -> str | None:
        """The attempt whose place a version takes that is built from nothing, by who knows the number of the one before
        it only, as Spark's offline repartition does: its lineage retains that one and those before it.

        It is the one that Spark's log names, where it has ids; else that of the newest version that has a file: in
        those after it the store rested, or was no partition's.
        """
        newest = max((number for number in by_version if number <= version), default=0)
        for number in dict.fromkeys((version, newest)) if self._conf.format_version > 1 else ():
            named = self._committed(number) if number else None
            if named is not None:
                return named
        return self._versions.arbitrate(by_version, Version(newest)) if newest else None

    def _open_base(
        self, base: Version, *, lenient: bool, may_wait: bool
    ) -> tuple[Opened | None, bool, BaseLook | None]:
        """The base's manifest (None for an empty store), whether a version can stand on it as far as is known, and the
        look for its file that the commit has to wait for.

        Args:
            may_wait: a moment ago is good enough, and where a request takes a round trip its answer may come later.
        """
        if base.attempt is None or is_empty(base.attempt):
            return None, True, None
        known = self._versions.remembered(base.attempt)
        if may_wait and known is not None:
            if self._files.was_seen(base.attempt):
                return known, True, None
            if self._files.storage.remote:
                return known, True, self._looks.begun(base.attempt)
        try:
            opened = self._versions.open_present(base.attempt, base)
            chain.check(opened.references, opened.manifest.version, partial(self._files.place_of_commit, base.attempt))
        except LaminaError as error:
            if lenient and error.kind in ("file.missing", "file.damaged", "state.not-retained"):
                return None, False, None
            raise advised(error) from error.__cause__
        return opened, True, None

    def _broken_in(self, base: Opened | None) -> frozenset[Place]:
        """What loads went around that a commit on `base` would still refer to: the ways around it leave retention, and
        nothing else may read it before the next restore."""
        broken = self._broken.places
        return frozenset(map(place, self._applied(base))) & broken if broken and base is not None else frozenset()

    def _chain_on(self, base: Opened | None) -> Sequence[Reference]:
        """What a commit on `base` would refer to; finished segments matter only where the chain is long."""
        if base is None:
            return ()
        references = base.references
        short = chain.files(references) < chain.longest(self._settings, references)
        return references if short else self._applied(base)

    def _applied(self, base: Opened) -> Sequence[Reference]:
        """What a commit on `base` refers to below it, with finished segments."""
        return self._segments.applied(base, self._young)

    def _rests(self, version: int, base: Opened, idle_batches: int) -> bool:
        """Whether a store keeps log objects, and has changed nothing for so many batches."""
        return version - base.manifest.version >= idle_batches and self._is_in_log(base.references)

    def _may_leave(self, version: int, base: Opened) -> bool:
        """Whether the next commit names what was merged of a store that has changed nothing for a while, and takes it
        out of the log: what waits is kept young in vain until then, on some storages by copies of all of it.

        Once: a commit that brought nothing may itself make a merge due.
        """
        if version - base.manifest.version < max(1, self._settings.changelog_max_idle_batches // _SOON):
            return False
        references, applied = tuple(base.references), self._applied(base)
        is_over = references[0].rows == 0 and not self._is_in_log(references)
        return applied != references and not is_over and not self._is_in_log(applied)

    @staticmethod
    def _is_in_log(references: Iterable[Reference]) -> bool:
        return any(one.is_in_log for one in references)

    def _lineage_on(self, attempt: str | None) -> Lineage:
        """The lineage of a version after `attempt`; also where it does not stand on it (retention follows it)."""
        if attempt is None or is_empty(attempt):
            return Lineage()
        known = self._versions.remembered(attempt)
        older = known.manifest.lineage if known else Lineage()
        return older.after(attempt, AttemptId.parse(attempt).version, self._lineage_length)

    def epoch(self) -> int:
        """The epoch of the run.

        Raises:
            LaminaError: `store.state` where the store was opened for reading only.
        """
        if self._checkpoint.epoch is None:
            raise LaminaError.from_kind("store.state", f"{self._files.identity} was opened for reading only")
        return self._checkpoint.epoch
