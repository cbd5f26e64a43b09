"""The registry of a store's files: which version of a lineage was the last to need which file.

A file that versions of a lineage share is needed from the version that was the first to refer to it up to the last one,
without a gap: what a commit leaves out of its references never comes back under the same name. So one number a file,
its last-used version, says all that retention asks, and following a lineage on costs one manifest a new version.

Kept in memory between collections, small: a name and a number a file, an id and a number a version. A lineage that is
not a continuation of the one followed before (the query was rewound) is followed anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing

from lamina.errors import LaminaError
from lamina.store.collection.footprints import Entry, Footprints, Progressed
from lamina.store.files.locator import Locator, is_part

log = logging.getLogger(__name__)

FarEnough = Callable[[Sequence[Entry]], bool]
"""Whether a lineage, newest first, was followed far enough down."""


class Registry:
    """The files of one store, by the versions of one lineage."""

    def __init__(self, footprints: Footprints, locator: Locator) -> None:
        self._footprints = footprints
        self._locator = locator
        self._entries: list[Entry] = []
        self._last_used: dict[str, int] = {}

    @property
    def last_used(self) -> Mapping[str, int]:
        """The last version of the lineage that needs a file, by the file's name."""
        return self._last_used

    @property
    def newest(self) -> Entry | None:
        """Of the lineage; None where none was followed."""
        return self._entries[0] if self._entries else None

    def follow(self, lineage: Iterable[Entry], far_enough: FarEnough) -> tuple[Sequence[Entry], bool]:
        """A lineage, newest first, and whether its end, or one far enough, was reached.

        Args:
            lineage: newest first, as far as it is not known here.
        """
        entries: list[Entry] = []
        try:
            for entry in lineage:
                if entry == self.newest:
                    entries += self._entries
                    break
                entries.append(entry)
                if far_enough(entries):
                    break
        except LaminaError as error:
            if error.kind != "file.missing":
                raise
            return entries, False
        return entries, True

    def read(self, entries: Sequence[Entry], retained: int, present: Collection[str], progressed: Progressed) -> None:
        """Learns what the versions of a lineage need; the first `retained` of them must be readable.

        A query that was rewound, or retains more than before, counts versions as retained that were collected. Those
        are the oldest ones, are not in the listing, and no version that is there needs their files; any other manifest
        that is not there was lost. A commit in a log object may be there for longer than what it refers to: then it
        counts as collected, too, unless it is the newest one.

        Args:
            present: the names of the files that the store's directory was seen to have.
            progressed: called after each manifest.
        Raises:
            LaminaError: `file.*` about a retained version, or a damaged one that has readers.
        """
        continued = next((index for index, entry in enumerate(entries) if entry in self._entries[:1]), None)
        last_used = dict(self._last_used) if continued is not None else {}
        collected: dict[str, LaminaError] = {}
        older_is_there = continued is not None
        unread = list(enumerate(entries if continued is None else entries[:continued]))[::-1]
        with closing(self._footprints.read([attempt for _, (attempt, _) in unread])) as reads:
            for (index, (attempt, version)), read in zip(unread, reads, strict=True):
                try:
                    names = read().names
                except LaminaError as error:
                    if error.kind != "file.missing":
                        raise
                    if index < retained:
                        location = self._locator.of(attempt)
                        if older_is_there or location.is_among(present):
                            raise
                        collected[location.name] = error
                    continue  # what has left retention is the first to go
                finally:
                    progressed()
                own = self._locator.of(attempt).name
                absent = next((collected[name] for name in names if name in collected), None)
                if absent is not None and is_part(own) and index > 0:
                    collected[own] = absent
                    log.warning("%s counts as collected: %s", own, absent.message)
                    continue
                older_is_there = older_is_there or not is_part(own)
                for name in names:
                    last_used[name] = version
        for name in collected.keys() & last_used.keys():
            raise collected[name]
        self._entries, self._last_used = list(entries), last_used

    def keep(self, present: Mapping[str, object], entries: int) -> None:
        """Forgets files that are not there any more, and the lineage behind its first `entries` versions.

        What its versions need is remembered, listed or not: a commit in a log object may be there before it is listed,
        and a listing may once leave out what is there. Forgotten, it would look like what nobody ever referred to.
        """
        self._entries = self._entries[:entries]
        oldest = self._entries[-1][1] if self._entries else 0
        self._last_used = {
            name: version for name, version in self._last_used.items() if name in present or version >= oldest
        }

    def forget(self, gone: Collection[str]) -> None:
        """Forgets files that were deleted."""
        self._last_used = {name: version for name, version in self._last_used.items() if name not in gone}
