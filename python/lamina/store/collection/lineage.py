"""A lineage with what its versions' publication times say about retention."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from lamina.storage import Listed
from lamina.store.collection.footprints import Entry
from lamina.store.collection.retention import Retention
from lamina.store.files.locator import Locator


class RetainedLineage:
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
        locator: Locator,
    ) -> None:
        self._numbers = [version for _, version in reversed(entries)]
        self._times = list(reversed(_times(entries, listing, locator)))
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


def _times(entries: Sequence[Entry], listing: Mapping[str, Listed], locator: Locator) -> list[int | None]:
    """When each version's manifest was published; for one that is gone, when the next newer one was."""
    times: list[int | None] = []
    for attempt, _ in entries:
        entry = locator.of(attempt).listed(listing)
        times.append(entry.modified_ms if entry else times[-1] if times else None)
    return times
