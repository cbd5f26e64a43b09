"""Collection: which files of a store are needed, and which may go.

Rules (DESIGN section 8):

1. Retained are the last confirmed version N, the `min_versions` versions before it, and every version that was the
   newest one within the last `min_version_age_ms`, along the lineage of N. Of each retained version the newest file at
   or below it is kept, with all that its manifest refers to.
2. Nothing numbered above N is deleted: what this process knows may be old news.
3. Nothing is deleted where a newer run of the query is known, or where the lineage cannot be followed, or a file that N
   refers to is not there. Whoever judges by an older look at the runs looks again before it deletes.
4. A file that was referred to goes when the first manifest without it that makes it unneeded has been there for the
   minimum age; a file that never was, when it has itself been there that long, and what a publication has not ended
   after six times that, since it may go on. Ages come from the storage's own times.
5. A file that is none of ours stays. The first store of each checkpoint also collects what cut-off publications left in
   `_lamina` (`leftovers`).
6. What a commit refers to stays as long as the commit stays by rule 2 or by its age: a version may be committed in
   Spark's log long before anybody builds on it, and a reader may have opened it. Where such a commit cannot be read,
   and whoever wrote it did not tell what it refers to, nothing is deleted.
7. What an attempt refers to that a pin names stays: another checkpoint needs it. Where a pin cannot be read, nothing is
   deleted.

Rule 4 in detail: the version made by a lineage's manifest M leaves the retained set when the manifest of version n +
min_versions is published, n being the version after M's in the lineage, and not before n has been there for
`min_version_age_ms`. Readers that opened it before have the minimum age to finish, however many versions follow in
that time: the lineage is followed down to the first version that left longer ago than that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from lamina.checkpoint import Pin, read_pins
from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format.manifest import Reference
from lamina.storage import Listed, Storage
from lamina.store.collection.classes import COMMIT, FOREIGN, LOG, TEMPORARY, StoreFile, least_age_ms, number_of
from lamina.store.collection.footprints import Entry, Footprint, Footprints, Progressed
from lamina.store.collection.known_others import newer_run
from lamina.store.collection.leftovers import collects_shared, shared_temporaries, temporaries_elsewhere
from lamina.store.collection.lineage import RetainedLineage
from lamina.store.collection.registry import Registry
from lamina.store.collection.retention import Retention
from lamina.store.collection.settled import Settled
from lamina.store.files.locator import attempt_of, is_part
from lamina.store.files.log_parts import Needless
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.model import DELETE, KEEP, WAIT, Collected, Verdict, Version
from lamina.store.versions.checkpoint_state import Standing
from lamina.store.versions.resolution import Versions, is_empty


@dataclass(frozen=True)
class Judged:
    """What a collection would do with each file of a store, before it does it.

    Args:
        collected: as a dry run says it.
        storage: of the checkpoint.
        own: the paths of the files to delete, below the directory `state`.
        beside: those to delete that are in places of log objects.
        shared: gives those of log objects that no store needs any more, once for deletion and once for a dry run.
        deleted: to be called when they were deleted, or where there are none; gives what the collection did.
    """

    collected: Collected
    storage: Storage
    own: Sequence[str]
    beside: Sequence[Needless]
    shared: Callable[[bool], Sequence[Needless]]
    deleted: Callable[[Sequence[Needless]], Collected]

    @cached_property
    def in_logs(self) -> Sequence[Needless]:
        """The log objects among it."""
        return self.shared(False)

    @cached_property
    def files(self) -> Sequence[tuple[Storage, str]]:
        """All that is to be deleted: paths, and the storage of each."""
        own = [(self.storage, path) for path in self.own]
        return [*own, *((one.storage, one.path) for one in (*self.beside, *self.in_logs))]

    def delete(self) -> None:
        """Deletes it."""
        for storage, paths in by_storage(self.files).items():
            storage.delete_many(paths)

    def done(self) -> Collected:
        """To be called when they were deleted, or where there are none; gives what the collection did."""
        return self.deleted(self.in_logs)

    @classmethod
    def stopped(
        cls, storage: Storage, reason: str, *, needs_repair: bool = False, lost: tuple[Reference, ...] = ()
    ) -> Judged:
        """That of a collection that looks at no file."""
        found = Collected((), True, reason, needs_repair=needs_repair, lost=lost)
        return cls(found, storage, (), (), lambda _: (), lambda _: replace(found, dry_run=False))


class Collector:
    """Collections of one store. Remembers what manifests refer to, which never changes."""

    def __init__(self, files: StoreFiles, versions: Versions, retention: Retention, clock: Clock) -> None:
        self._files = files
        self._versions = versions
        self._retention = retention
        self._clock = clock
        self._footprints = Footprints(files)
        self._registry = Registry(self._footprints, files.locator)
        self._first_unneeded: dict[str, int] = {}
        self._settled: Settled | None = None

    def collect(
        self,
        confirmed: Version,
        standing: Callable[[], Standing | None],
        *,
        dry_run: bool,
        named: Collection[str] = (),
        waiting: Collection[str] = (),
        progressed: Progressed = lambda: None,
    ) -> Collected:
        """Deletes what nothing needs any more; with `dry_run` only says what it would.

        Args:
            standing: tells how this run stands among the others, as it is now; None for readers. It is asked once more
                before anything is deleted.
            named, waiting, progressed: as of `judge`.
        Raises:
            LaminaError: as `judge`, and `store.state` for readers that want to delete.
        """
        known = standing()
        if known is None and not dry_run:
            raise LaminaError.from_kind("store.state", f"{self._files.identity} was opened for reading only")
        judged = self.judge(
            confirmed, lambda: known, again=standing, named=named, waiting=waiting, progressed=progressed
        )
        if dry_run:
            # also in one of others that would go with what this store says
            now = self._clock.now_ms()
            in_logs = (_of_log(one, now) for one in judged.shared(True))
            return replace(judged.collected, verdicts=(*judged.collected.verdicts, *in_logs))
        now_known = standing() if judged.files else None
        if now_known is not None and now_known.newer is not None:
            return Collected((), False, newer_run(now_known.newer))
        try:
            judged.delete()
        except LaminaError as error:
            text = f"{error.message}; part of what goes may be gone, and the next collection deletes the rest"
            raise LaminaError.from_kind(error.kind, text) from error
        return judged.done()

    def judge(
        self,
        confirmed: Version,
        standing: Callable[[], Standing | None],
        *,
        again: Callable[[], Standing | None] | None = None,
        pins: Callable[[int], Sequence[Pin]] | None = None,
        named: Collection[str] = (),
        waiting: Collection[str] = (),
        progressed: Progressed = lambda: None,
    ) -> Judged:
        """What a collection would do with each file.

        Args:
            confirmed: the newest version that a streaming open built on, with its attempt.
            standing: tells how this run stands among the others, perhaps as it was a while ago; None for readers.
            again: tells it as it is now.
            pins: gives the checkpoint's pins, for this minimum age; by default they are read.
            named: attempts that Spark's log names, which stay whether or not they are in the lineage.
            waiting: names of finished segments that the next commit is to refer to.
            progressed: called after each version of the lineage that was followed, and each manifest that was read.
        Raises:
            LaminaError: `file.*` where a retained version cannot be read, `storage.*`.
        """
        self._settled = None
        storage = self._files.storage
        if confirmed.attempt is None or is_empty(confirmed.attempt):
            return Judged.stopped(storage, "the store is empty")
        known = standing()
        if known is not None and known.newer is not None:
            return Judged.stopped(storage, newer_run(known.newer))
        # before the listing: what is published or adopted while this goes on must not look older than it is
        now = self._clock.now_ms()
        listing = {entry.name: entry for entry in self._files.list(confirmed.attempt, progressed)}
        if known is not None:
            written = _epochs(listing)
            if again is not None and max(written - known.epochs, default=0) > known.run.epoch:
                # this run may have claimed another epoch since
                known = again() or known
            epoch = max(written - known.epochs, default=0)
            if epoch > known.run.epoch:
                return Judged.stopped(storage, f"a newer run of the query has written to the store, with epoch {epoch}")
        if not self._is_among(listing, confirmed.attempt):
            raise self._versions.absent(confirmed, confirmed.attempt)
        if unread := self._unread(confirmed.attempt, listing, now):
            reason = f"{unread} cannot be read, and may have commits of the store: see lamina fsck"
            return Judged.stopped(storage, reason, needs_repair=True)
        # what is not there any more is not taken from memory: a retained version that was lost has to show
        self._footprints.keep(lambda attempt: self._is_among(listing, attempt))
        lineage = self._followed(self._lineage_of(confirmed, listing), confirmed.version, listing, now, progressed)
        if lineage is None:
            reason = "the lineage of the retained versions cannot be followed: see lamina fsck"
            return Judged.stopped(storage, reason, needs_repair=True)
        newest = lineage.entries[0][1]
        if unlisted := self._unlisted(newest, listing):
            # without the version's number, of which there is another one each time
            reason = (
                f"{self._files.location(unlisted[0])}, which the newest version needs, is not there: see lamina fsck"
            )
            # who has its rows writes them anew: for that a listing that once left something out is not enough
            lost = self._files.missing(unlisted)
            references = self._versions.open(confirmed.attempt, confirmed).references
            which = tuple(one for one in references if one.root is None and one.path in lost)
            return Judged.stopped(storage, reason, needs_repair=True, lost=which)
        found = read_pins(storage) if pins is None else pins(self._retention.min_age_ms)
        verdicts, needed = self._verdicts(lineage, confirmed.version, listing, now, waiting, progressed)
        pinned = {attempt: "a version in Spark's log needs it" for attempt in named if self._is_among(listing, attempt)}
        pinned |= {
            attempt: f"pin {pin.id} needs it"
            for pin in found
            for attempt in pin.of(self._files.identity)
            if not is_empty(attempt)
        }
        verdicts = _with_a_directory(self._without_pinned(verdicts, pinned, progressed))
        needed |= {name for attempt in pinned for name in self._footprints.names(attempt)}
        self._registry.keep(listing, len(lineage.entries))
        # of the lineage's own versions the registry knows what they need
        used = self._registry.last_used
        self._footprints.keep(lambda attempt: attempt in pinned or not self._is_among(used, attempt))
        shares = collects_shared(self._files.identity)
        min_age_ms = self._retention.min_age_ms
        shared = shared_temporaries(storage, min_age_ms, now) if shares else []
        beside = temporaries_elsewhere(self._files.cut_off_logs(), min_age_ms, now) if shares else []
        needed |= {verdict.path for verdict in verdicts if verdict.action != DELETE}
        elsewhere = [verdict for verdict, _ in beside]
        settled = Settled.of(
            confirmed, lineage, Collected((*verdicts, *shared, *elsewhere), True), self._retention, now
        )
        own = [*map(_with_its_object, verdicts)]
        newest_bytes = sum(
            listing[name].size
            for name, version in self._registry.last_used.items()
            if version == newest and name in listing
        )
        collected = Collected((*own, *shared, *elsewhere), True, newest_bytes=newest_bytes)
        gone = {verdict.path for verdict in own if verdict.action == DELETE}
        paths = [*self._files.deleting(gone)]
        paths += [verdict.path for verdict in shared if verdict.action == DELETE]

        def in_logs(dry_run: bool) -> Sequence[Needless]:
            if known is None:
                return ()
            parts = filter(is_part, needed)
            return self._files.tell_needs(known.run, confirmed.version, parts, dry_run=dry_run)

        def deleted(logs: Sequence[Needless]) -> Collected:
            self._registry.forget(gone)
            self._footprints.keep(lambda attempt: not self._is_among(gone, attempt))
            self._settled = settled
            verdicts = (*collected.verdicts, *(_of_log(one, now) for one in logs))
            return replace(collected, verdicts=verdicts, dry_run=False)

        going = [one for verdict, one in beside if verdict.action == DELETE]
        return Judged(collected, storage, paths, going, in_logs, deleted)

    def _unread(self, confirmed: str, listing: Mapping[str, Listed], now: int) -> str | None:
        """A log object that may have commits of which this store's collection has to know: younger ones than the
        confirmed one, or than the minimum age."""
        newest = self._files.locator.of(confirmed).listed(listing)
        assert newest is not None
        return self._files.unread_since(min(newest.modified_ms, now - self._retention.min_age_ms))

    def note(self, footprints: Iterable[tuple[str, Footprint]]) -> None:
        """Remembers the footprints of attempts that somebody else has read or written."""
        self._footprints.note_told(footprints)

    def is_settled(self, confirmed: Version) -> bool:
        """Whether a collection by this collector would do what the last one did, as far as one knows without a look."""
        settled = self._settled is not None and self._settled.holds(confirmed, self._clock.now_ms())
        return settled and self._files.is_heard

    def unsettle(self) -> None:
        """Says that this process is about to write to the store."""
        self._settled = None

    def _is_among(self, names: Container[str], attempt: str) -> bool:
        """Whether the file of an attempt's commit is one of these."""
        return self._files.locator.of(attempt).is_among(names)

    def _lineage_of(self, confirmed: Version, listing: Mapping[str, Listed]) -> Iterable[Entry]:
        """The lineage of the confirmed version, newest first, at least down to what the registry knows."""

        def note(opened: Opened) -> None:
            if opened.location.is_among(listing):
                self._footprints.note(opened.manifest.attempt, Footprint.of(opened))

        assert confirmed.attempt is not None
        known = self._footprints.lineage(confirmed.attempt, self._registry.newest)
        if known is not None:
            return known
        opened = self._versions.open(confirmed.attempt, confirmed)
        note(opened)
        newest = opened.manifest
        return chain([(newest.attempt, newest.version)], self._versions.walk(newest, note))

    def _followed(
        self,
        newest: Iterable[Entry],
        confirmed: int,
        listing: Mapping[str, Listed],
        now: int,
        progressed: Progressed,
    ) -> RetainedLineage | None:
        """The lineage down to the first version that has no readers any more; None where it breaks off too early."""
        seen_before = 0

        def seen(entries: Sequence[Entry]) -> RetainedLineage:
            return RetainedLineage(
                entries, confirmed, listing, self._retention, now, self._first_unneeded, self._files.locator
            )

        def far_enough(entries: Sequence[Entry]) -> bool:
            nonlocal seen_before
            progressed()
            # looking at all of a lineage whenever it grows by one would cost its square
            if entries[-1][1] > confirmed - self._retention.min_versions or len(entries) < 2 * seen_before:
                return False
            seen_before = len(entries)
            return seen(entries).ends

        entries, complete = self._registry.follow(newest, far_enough)
        lineage = seen(entries)
        if not complete and not lineage.passes_retention and self._has_older(entries[-1][1], listing):
            return None
        self._first_unneeded = lineage.first_unneeded
        self._registry.read(lineage.entries, lineage.retained, listing.keys(), progressed)
        return lineage

    @staticmethod
    def _has_older(version: int, listing: Mapping[str, Listed]) -> bool:
        """Whether commits of older versions are there, but for the only one of the directory (`_with_a_directory`).
        Where none is, those behind were collected: more is retained since a restart than before."""
        commits = [name for name in listing if attempt_of(name)]
        own = [name for name in commits if not is_part(name)]
        return any(number_of(name) < version for name in commits if [name] != own)

    def _unlisted(self, newest: int, listing: Mapping[str, Listed]) -> Sequence[str]:
        """The files of the newest version that are not listed: those that nothing needs otherwise may lead to its
        state."""
        used = self._registry.last_used.items()
        return sorted(name for name, version in used if version == newest and name not in listing and not is_part(name))

    def _verdicts(
        self,
        lineage: RetainedLineage,
        confirmed: int,
        listing: Mapping[str, Listed],
        now: int,
        waiting: Collection[str],
        progressed: Progressed,
    ) -> tuple[list[Verdict], set[str]]:
        """What becomes of each file: one pass over the files by themselves, one for what kept commits refer to.

        With the names of all that retained versions and kept commits refer to, whether or not it is listed.
        """
        verdicts = {}
        for name, entry in sorted(listing.items()):
            verdict = self._verdict(StoreFile.of(entry), lineage, confirmed, now)
            if verdict.action == DELETE and name in waiting:
                verdict = replace(verdict, action=WAIT, reason="the next commit is to refer to it")
            verdicts[name] = verdict
        # of the lineage's own versions the registry knows what they need, and until when
        known = self._registry.last_used.keys()
        kept = {
            str(attempt): (name, verdict)
            for name, verdict in verdicts.items()
            if verdict.action != DELETE and name not in known and (attempt := attempt_of(name))
        }
        self._footprints.learn(kept, progressed)
        used = self._registry.last_used.items()
        needed = {name for name, version in used if version >= lineage.oldest_retained}
        for commit, (name, verdict) in kept.items():
            for other in self._footprints.names(commit):
                needed.add(other)
                if other != name and other in verdicts and verdicts[other].action != KEEP:
                    verdicts[other] = _because(verdicts[other], verdict, name)
        return list(verdicts.values()), needed

    def _verdict(self, file: StoreFile, lineage: RetainedLineage, confirmed: int, now: int) -> Verdict:
        last_used = self._registry.last_used.get(file.name)
        own_age = now - file.entry.modified_ms

        def verdict(action: str, age_ms: int, reason: str) -> Verdict:
            return Verdict(file.name, file.kind, file.entry.size, age_ms, action, reason)

        if last_used is not None and last_used >= lineage.oldest_retained:
            return verdict(KEEP, own_age, f"version {last_used} needs it")
        if file.kind == FOREIGN:
            return verdict(KEEP, own_age, "not a file of lamina")
        if file.number > confirmed:
            return verdict(KEEP, own_age, f"newer than version {confirmed}, the newest known to be confirmed")
        age = now - lineage.left.get(last_used, file.entry.modified_ms) if last_used is not None else own_age
        if file.kind == TEMPORARY:
            reason = "a publication that was cut off"
        elif last_used is not None:
            reason = f"no retained version needs it; version {last_used} was the last to"
        else:
            reason = "no retained version needs it, nor did one of those before them"
        # a storage that tells no times (0) gives no reason to think that anything is old
        young = age < least_age_ms(file.kind, self._retention.min_age_ms) or file.entry.modified_ms <= 0
        return verdict(WAIT if young else DELETE, age, reason)

    def _without_pinned(
        self, verdicts: Sequence[Verdict], pinned: Mapping[str, str], progressed: Progressed
    ) -> list[Verdict]:
        """`verdicts`, and what pinned attempts refer to is kept.

        Args:
            pinned: why an attempt is.
        """
        # a listing may once leave out what is there, and a part is not listed where its object's index cannot be read
        self._footprints.learn(pinned, progressed)
        needed = {name: why for attempt, why in pinned.items() for name in self._footprints.names(attempt)}
        return [
            replace(verdict, action=KEEP, reason=needed[verdict.path])
            if verdict.path in needed and verdict.action != KEEP
            else verdict
            for verdict in verdicts
        ]


def _with_a_directory(verdicts: list[Verdict]) -> list[Verdict]:
    """Spark's state reader takes the partitions from the directories that are there, and object stores have none
    without a file: so one stays, the oldest commit, where the store would have nothing but parts of log objects."""
    own = [one for one in verdicts if not is_part(one.path) and one.kind != TEMPORARY]
    if any(one.action != DELETE for one in own):
        return verdicts
    commits = [one for one in own if one.kind == COMMIT]
    stays = min(commits, key=lambda one: (number_of(one.path), one.path), default=None)
    reason = "the directory, from which Spark's state reader knows of the store, has no other file"
    return [replace(one, action=KEEP, reason=reason) if one is stays else one for one in verdicts]


def _with_its_object(verdict: Verdict) -> Verdict:
    """A commit in a log object goes with the object."""
    if verdict.action != DELETE or not is_part(verdict.path):
        return verdict
    return replace(verdict, action=WAIT, reason=f"{verdict.reason}; its log object goes when no store needs it")


def _of_log(found: Needless, now: int) -> Verdict:
    """The verdict on a file of the log that goes."""
    return Verdict(found.name, LOG, found.size, now - found.modified_ms, DELETE, "no store needs it")


def by_storage(files: Iterable[tuple[Storage, str]]) -> Mapping[Storage, Sequence[str]]:
    """Paths by the storage that they are deleted with, in their order."""
    found: dict[Storage, list[str]] = {}
    for storage, path in files:
        found.setdefault(storage, []).append(path)
    return found


def _because(verdict: Verdict, commit: Verdict, name: str) -> Verdict:
    """The verdict on a file that a commit refers to which itself stays."""
    reason = f"{name} refers to it ({commit.reason})"
    return replace(verdict, action=commit.action, reason=reason)


def _epochs(listing: Mapping[str, Listed]) -> set[int]:
    return {attempt.epoch for attempt in map(attempt_of, listing) if attempt is not None}
