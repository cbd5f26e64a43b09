"""Retention and collection: which files of a store are needed, and which may go.

Rules (DESIGN section 8):

1. Retained are the last confirmed version N and the `min_versions` versions before it, along the lineage of N. Of each
   retained version the newest file at or below it is kept, with all that its manifest refers to.
2. Nothing numbered above N is deleted: what this process knows may be old news.
3. Nothing is deleted where a newer run of the query is known, or where the lineage cannot be followed.
4. A file that was referred to goes when the first manifest without it that makes it unneeded has been there for the
   minimum age; a file that never was, when it has itself been there that long. Ages come from the storage's own
   times.
5. A file that is none of ours stays.
6. What a commit refers to stays as long as the commit stays by rule 2 or by its age: a version may be committed in
   Spark's log long before anybody builds on it, and a reader may have opened it.

Rule 4 in detail: the version made by a lineage's manifest M leaves the retained set when the manifest of version n +
min_versions is published, n being the version after M's in the lineage. Readers that opened it before have the
minimum age to finish.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format.paths import CommitName, parse_name
from lamina.storage import Listed, is_temporary
from lamina.store.files import StoreFiles
from lamina.store.model import Collected, Deletion, Version
from lamina.store.versions import Versions, file_name, is_empty

_NOTHING_NEEDS = "no retained version needs it"
_NEVER_REFERRED = "no version of the lineage ever referred to it"
_CUT_OFF = "a publication that was cut off"


class Collector:
    """Collections of one store. Remembers what manifests refer to, which never changes."""

    def __init__(self, files: StoreFiles, versions: Versions, min_versions: int, min_age_ms: int, clock: Clock) -> None:
        self._files = files
        self._versions = versions
        self._min_versions = min_versions
        self._min_age_ms = min_age_ms
        self._clock = clock
        self._footprints: dict[str, tuple[str, ...]] = {}
        self._first_unneeded: dict[str, int] = {}

    def collect(self, confirmed: Version, *, stale: bool, epoch: int | None, dry_run: bool) -> Collected:
        """Deletes what nothing needs any more; with `dry_run` only says what it would.

        Args:
            confirmed: the newest version that a streaming open built on, with its attempt.
            stale: whether a newer run of the query is known.
            epoch: the epoch of this run, None for readers.
        """
        nothing = Collected((), 0, 0, dry_run)
        if epoch is None and not dry_run:
            raise LaminaError.from_kind("store.state", f"{self._files.identity} was opened for reading only")
        if stale or confirmed.attempt is None or is_empty(confirmed.attempt):
            return nothing
        listing = {entry.name: entry for entry in self._files.list()}
        if epoch is not None and _newest_epoch(listing) > epoch:
            return nothing
        newest = self._versions.open_present(confirmed.attempt, confirmed).manifest
        oldest = confirmed.version - self._min_versions
        older, complete = self._versions.lineage(newest, oldest)
        if not complete:
            return nothing
        entries = [(newest.attempt, newest.version), *older]
        # the lineage that a manifest lists goes on behind the retained versions: it tells what left them last
        seen = {attempt for attempt, _ in entries}
        entries += [entry for entry in newest.lineage if entry[0] not in seen]
        retained = [
            attempt for index, (attempt, _) in enumerate(entries) if index == 0 or entries[index - 1][1] > oldest
        ]
        needed = {name for attempt in retained for name in self._footprint(attempt)}
        left = self._left(entries, len(retained), listing)
        return self._sweep(confirmed.version, listing, needed, left, dry_run)

    def _left(self, entries: Sequence[tuple[str, int]], retained: int, listing: Mapping[str, Listed]) -> dict[str, int]:
        """When each file that only versions out of retention refer to left it, by name."""
        left: dict[str, int] = {}
        unneeded: dict[str, int] = {}
        for index in range(retained, len(entries)):
            attempt = entries[index][0]
            if file_name(attempt) not in listing:
                continue
            moment = self._published(entries, entries[index - 1][1] + self._min_versions, listing)
            if moment is None:
                # the versions since changed nothing and have no file that tells the time: count from when it was seen
                moment = self._first_unneeded.get(attempt, self._clock.now_ms())
                unneeded[attempt] = moment
            for name in self._footprint(attempt):
                left[name] = max(left.get(name, 0), moment)
        self._first_unneeded = unneeded
        return left

    def _published(self, entries: Sequence[tuple[str, int]], version: int, listing: Mapping[str, Listed]) -> int | None:
        """When the first manifest of the lineage at or above `version` was published."""
        moment = None
        for attempt, number in entries:
            if number < version:
                break
            entry = listing.get(file_name(attempt))
            moment = entry.modified_ms if entry else moment
        return moment

    def _sweep(
        self,
        confirmed: int,
        listing: Mapping[str, Listed],
        needed: set[str],
        left: Mapping[str, int],
        dry_run: bool,
    ) -> Collected:
        deleted: list[Deletion] = []
        kept = young = 0
        now = self._clock.now_ms()
        needed = needed | self._in_use(confirmed, listing, needed, left)
        for name, entry in sorted(listing.items()):
            parsed = parse_name(name)
            number = parsed.version if isinstance(parsed, CommitName) else parsed.end if parsed else 0
            if name in needed or number > confirmed or (parsed is None and not is_temporary(name)):
                kept += 1
                continue
            age = now - left.get(name, entry.modified_ms)
            if self._is_young(age, entry):
                young += 1
                continue
            reason = _CUT_OFF if parsed is None else _NOTHING_NEEDS if name in left else _NEVER_REFERRED
            deleted.append(Deletion(name, entry.size, age, reason))
        if not dry_run:
            self._files.delete([deletion.path for deletion in deleted])
            self._forget(deleted)
        return Collected(tuple(deleted), kept, young, dry_run)

    def _is_young(self, age_ms: int, entry: Listed) -> bool:
        # a storage that tells no times (0) gives no reason to think that anything is old
        return age_ms < self._min_age_ms or entry.modified_ms <= 0

    def _in_use(
        self, confirmed: int, listing: Mapping[str, Listed], needed: set[str], left: Mapping[str, int]
    ) -> set[str]:
        """What commits refer to that no retained version needs and that stay all the same (rule 6)."""
        names: set[str] = set()
        now = self._clock.now_ms()
        for name, entry in listing.items():
            parsed = parse_name(name)
            if not isinstance(parsed, CommitName):
                continue
            # a file that retained versions need as an increment counts as a version only while it has readers
            may_go = name not in needed or name in left
            age = now - left.get(name, entry.modified_ms)
            if parsed.version > confirmed or (may_go and self._is_young(age, entry)):
                try:
                    names.update(self._footprint(str(parsed.attempt)))
                except LaminaError as error:
                    # gone meanwhile, or damaged: nobody can build a version from it
                    if not error.kind.startswith("file."):
                        raise
        return names

    def _footprint(self, attempt: str) -> tuple[str, ...]:
        """The files in the store's directory that the version of an attempt needs, its own among them.

        Raises:
            LaminaError: `file.*`; a retained version that cannot be read stops a collection.
        """
        known = self._footprints.get(attempt)
        if known is None:
            opened = self._files.open_commit(attempt)
            names = {reference.path or "" for reference in opened.references() if reference.root is None}
            known = tuple(sys.intern(name) for name in sorted({opened.name, *names}))
            self._footprints[attempt] = known
        return known

    def _forget(self, deleted: Sequence[Deletion]) -> None:
        gone = {deletion.path for deletion in deleted}
        self._footprints = {
            attempt: names for attempt, names in self._footprints.items() if file_name(attempt) not in gone
        }


def _newest_epoch(listing: Mapping[str, Listed]) -> int:
    parsed = (parse_name(name) for name in listing)
    return max((name.attempt.epoch for name in parsed if isinstance(name, CommitName)), default=0)
