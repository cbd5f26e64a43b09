"""Retention and collection: which files of a store are needed, and which may go.

Rules (DESIGN section 8):

1. Retained are the last confirmed version N, the `min_versions` versions before it, and every version that was the
   newest one within the last `min_version_age_ms`, along the lineage of N. Of each retained version the newest file at
   or below it is kept, with all that its manifest refers to.
2. Nothing numbered above N is deleted: what this process knows may be old news.
3. Nothing is deleted where a newer run of the query is known, or where the lineage cannot be followed.
4. A file that was referred to goes when the first manifest without it that makes it unneeded has been there for the
   minimum age; a file that never was, when it has itself been there that long. Ages come from the storage's own
   times.
5. A file that is none of ours stays. The first store of each checkpoint also collects what cut-off publications left in
   `_lamina` (`leftovers`).
6. What a commit refers to stays as long as the commit stays by rule 2 or by its age: a version may be committed in
   Spark's log long before anybody builds on it, and a reader may have opened it. Where such a commit cannot be read,
   nothing is deleted.

Rule 4 in detail: the version made by a lineage's manifest M leaves the retained set when the manifest of version n +
min_versions is published, n being the version after M's in the lineage, and not before n has been there for
`min_version_age_ms`. Readers that opened it before have the minimum age to finish, however many versions follow in
that time: the lineage is followed down to the first version that left longer ago than that.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format.manifest import CommitManifest
from lamina.format.paths import CommitName, SegmentName, parse_name
from lamina.settings import Settings
from lamina.storage import Listed, is_temporary
from lamina.store.checkpoint_state import Standing
from lamina.store.files import StoreFiles
from lamina.store.leftovers import collects_shared, shared_temporaries
from lamina.store.model import DELETE, KEEP, WAIT, Collected, Verdict, Version
from lamina.store.registry import Entry, Progressed, Registry, footprint
from lamina.store.versions import Versions, file_name, is_empty

COMMIT, SEGMENT, TEMPORARY, FOREIGN = "commit", "segment", "temporary", "foreign"
"""Classes of files."""


@dataclass(frozen=True)
class Retention:
    """How long what is kept.

    Args:
        min_versions: versions before the newest confirmed one.
        min_version_age_ms: versions that were the newest one within this time.
        min_age_ms: how long a file stays after nothing needs it any more.
    """

    min_versions: int
    min_version_age_ms: int
    min_age_ms: int

    @classmethod
    def of(cls, settings: Settings, min_versions: int) -> Retention:
        """The retention of a store with these settings and Spark's `minVersionsToRetain`."""
        return cls(min_versions, settings.retention_min_version_age_ms, settings.retention_min_age_ms)

    def at_least(self, min_versions: int) -> Retention:
        """The same with no fewer versions."""
        return replace(self, min_versions=max(self.min_versions, min_versions))

    def to_json(self) -> dict[str, int]:
        """As manifests record it, for tools."""
        return {
            "min_versions": self.min_versions,
            "min_version_age_ms": self.min_version_age_ms,
            "min_age_ms": self.min_age_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> Retention:
        return cls(int(value["min_versions"]), int(value["min_version_age_ms"]), int(value["min_age_ms"]))

    @classmethod
    def recorded(cls, newest: CommitManifest) -> Retention:
        """What the manifest of the newest version records."""
        return cls.from_json(newest.retention) if newest.retention else cls.of(Settings(), 0)

    def retains(self, after: int, published_ms: int, newest: int, now_ms: int) -> bool:
        """Whether it retains the version that version `after`, published at that time, followed in the lineage."""
        aged = self.min_version_age_ms and published_ms + self.min_version_age_ms > now_ms
        return after > newest - self.min_versions or bool(aged)


class Collector:
    """Collections of one store. Remembers what manifests refer to, which never changes."""

    def __init__(self, files: StoreFiles, versions: Versions, retention: Retention, clock: Clock) -> None:
        self._files = files
        self._versions = versions
        self._retention = retention
        self._clock = clock
        self._registry = Registry(files, versions)
        self._others: dict[str, list[str]] = {}
        self._first_unneeded: dict[str, int] = {}

    def collect(
        self,
        confirmed: Version,
        standing: Standing | None,
        *,
        dry_run: bool,
        waiting: Collection[str] = (),
        progressed: Progressed = lambda: None,
    ) -> Collected:
        """Deletes what nothing needs any more; with `dry_run` only says what it would.

        Args:
            confirmed: the newest version that a streaming open built on, with its attempt.
            standing: of this run among the others; None for readers.
            waiting: names of finished segments that the next commit is to refer to.
            progressed: called after each version of the lineage that was followed, and each manifest that was read.
        Raises:
            LaminaError: `store.state` for readers, `file.*` where a retained version cannot be read, `storage.*`.
        """
        if standing is None and not dry_run:
            raise LaminaError.from_kind("store.state", f"{self._files.identity} was opened for reading only")
        if confirmed.attempt is None or is_empty(confirmed.attempt):
            return Collected((), dry_run, "the store is empty")
        if standing is not None and standing.newer is not None:
            return Collected((), dry_run, f"a newer run of the query is known: {standing.newer}")
        # before the listing: what is published or adopted while this goes on must not look older than it is
        now = self._clock.now_ms()
        listing = {entry.name: entry for entry in self._files.list()}
        if standing is not None:
            epoch = max(_epochs(listing) - standing.epochs, default=0)
            if epoch > standing.run.epoch:
                reason = f"a newer run of the query has written to the store, with epoch {epoch}"
                return Collected((), dry_run, reason)
        newest = self._versions.open_present(confirmed.attempt, confirmed).manifest
        lineage = self._followed(newest, confirmed.version, listing, now, progressed)
        if lineage is None:
            return Collected((), dry_run, "the lineage of the retained versions cannot be followed")
        verdicts = self._verdicts(lineage, confirmed.version, listing, now, waiting, progressed)
        storage, shares = self._files.storage, collects_shared(self._files.identity)
        shared = shared_temporaries(storage, self._retention.min_age_ms, now) if shares else []
        if not dry_run:
            # a deletion that fails is repeated by the next collection
            self._files.delete([verdict.path for verdict in verdicts if verdict.action == DELETE])
            storage.delete_many([verdict.path for verdict in shared if verdict.action == DELETE])
        gone = {verdict.path for verdict in verdicts if verdict.action == DELETE and not dry_run}
        present = {name: entry for name, entry in listing.items() if name not in gone}
        self._registry.keep(present, len(lineage.entries))
        self._others = {name: names for name, names in self._others.items() if name in present}
        return Collected((*verdicts, *shared), dry_run)

    def _followed(
        self, newest: CommitManifest, confirmed: int, listing: Mapping[str, Listed], now: int, progressed: Progressed
    ) -> _Lineage | None:
        """The lineage down to the first version that has no readers any more; None where it breaks off too early."""
        seen_before = 0

        def seen(entries: Sequence[Entry]) -> _Lineage:
            return _Lineage(entries, confirmed, listing, self._retention, now, self._first_unneeded)

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
        if not complete and not lineage.passes_retention:
            return None
        self._first_unneeded = lineage.first_unneeded
        self._registry.read(lineage.entries, lineage.retained, listing.keys(), progressed)
        return lineage

    def _verdicts(
        self,
        lineage: _Lineage,
        confirmed: int,
        listing: Mapping[str, Listed],
        now: int,
        waiting: Collection[str],
        progressed: Progressed,
    ) -> list[Verdict]:
        """What becomes of each file: one pass over the files by themselves, one for what kept commits refer to."""
        verdicts = {}
        for name, entry in sorted(listing.items()):
            verdict = self._verdict(_File.of(entry), lineage, confirmed, now)
            if verdict.action == DELETE and name in waiting:
                verdict = replace(verdict, action=WAIT, reason="the next commit is to refer to it")
            verdicts[name] = verdict
        for name, verdict in list(verdicts.items()):
            # of the lineage's own versions the registry knows what they need, and until when
            if verdict.kind == COMMIT and verdict.action != DELETE and name not in self._registry.last_used:
                needed = self._needed_by(name)
                progressed()
                for other in needed:
                    if other != name and other in verdicts and verdicts[other].action != KEEP:
                        verdicts[other] = _because(verdicts[other], verdict, name)
        return list(verdicts.values())

    def _verdict(self, file: _File, lineage: _Lineage, confirmed: int, now: int) -> Verdict:
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
        young = age < self._retention.min_age_ms or file.entry.modified_ms <= 0
        return verdict(WAIT if young else DELETE, age, reason)

    def _needed_by(self, name: str) -> list[str]:
        """What a commit off the lineage, which itself is kept or waits, refers to."""
        if name not in self._others:
            parsed = parse_name(name)
            assert isinstance(parsed, CommitName)
            try:
                self._others[name] = footprint(self._files, str(parsed.attempt))
            except LaminaError as error:
                # whoever opened it before it broke may read anything that it referred to
                if error.kind != "file.missing":
                    raise
                return []
        return self._others[name]


class _Lineage:
    """A lineage, newest first, with what its versions' publication times say about retention.

    `retained` is how many of the entries are; `left` says when each of the others left, by version; `ends` whether the
    last one left longer ago than the minimum age, and so whatever is behind it; `passes_retention` whether all that
    are retained are among the entries.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        confirmed: int,
        listing: Mapping[str, Listed],
        retention: Retention,
        now: int,
        first_unneeded: Mapping[str, int],
    ) -> None:
        self._numbers = [version for _, version in reversed(entries)]
        self._times = list(reversed(_times(entries, listing)))
        self.first_unneeded: dict[str, int] = {}
        self.left: dict[int, int] = {}
        self.retained = len(entries)
        self.ends = False
        age = retention.min_version_age_ms
        last = entries[-1][1]
        self.passes_retention = not retention.retains(last, self._published(last) or now, confirmed, now)
        for index in range(1, len(entries)):
            attempt, version = entries[index]
            after = entries[index - 1][1]
            followed_ms = self._published(after) or now
            if retention.retains(after, followed_ms, confirmed, now):
                continue
            self.retained = min(self.retained, index)
            self.passes_retention = True
            moment = self._published(after + retention.min_versions)
            if moment is None:
                # the versions since changed nothing and have no file that tells the time: count from when it was seen
                moment = self.first_unneeded[attempt] = first_unneeded.get(attempt, now)
            self.left[version] = max(moment, followed_ms + age) if age else moment
            if self.left[version] <= now - retention.min_age_ms:
                self.ends = True
                entries = entries[: index + 1]
                break
        self.entries = entries
        self.oldest_retained = entries[self.retained - 1][1]

    def _published(self, version: int) -> int | None:
        """When the first manifest of the lineage at or above `version` was published; None where there is none."""
        index = bisect.bisect_left(self._numbers, version)
        return self._times[index] if index < len(self._numbers) else None


def _times(entries: Sequence[Entry], listing: Mapping[str, Listed]) -> list[int | None]:
    """When each version's manifest was published; for one that is gone, when the next newer one was."""
    times: list[int | None] = []
    for attempt, _ in entries:
        entry = listing.get(file_name(attempt))
        times.append(entry.modified_ms if entry else times[-1] if times else None)
    return times


@dataclass(frozen=True)
class _File:
    """A file of a listing: its class, and the version that it leads to."""

    entry: Listed
    kind: str
    number: int

    @property
    def name(self) -> str:
        return self.entry.name

    @classmethod
    def of(cls, entry: Listed) -> _File:
        parsed = parse_name(entry.name)
        number = parsed.version if isinstance(parsed, CommitName) else parsed.end if parsed else 0
        return cls(entry, kind_of(entry.name), number)


def kind_of(name: str) -> str:
    """The class of a file by its name."""
    kinds = {CommitName: COMMIT, SegmentName: SEGMENT}
    return kinds.get(type(parse_name(name)), TEMPORARY if is_temporary(name) else FOREIGN)


def _because(verdict: Verdict, commit: Verdict, name: str) -> Verdict:
    """The verdict on a file that a commit refers to which itself stays."""
    reason = f"{name} refers to it ({commit.reason})"
    return replace(verdict, action=commit.action, reason=reason)


def _epochs(listing: Mapping[str, Listed]) -> set[int]:
    parsed = (parse_name(name) for name in listing)
    return {name.attempt.epoch for name in parsed if isinstance(name, CommitName)}
