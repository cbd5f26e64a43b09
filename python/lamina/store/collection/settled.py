"""When a store need not be looked at again: nothing was committed since its last collection, and nothing grows old."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.store.collection.classes import least_age_ms, number_of
from lamina.store.collection.lineage import RetainedLineage
from lamina.store.collection.retention import Retention
from lamina.store.model import WAIT, Collected, Version


@dataclass(frozen=True)
class Settled:
    """Until when a collection would do what the last one did.

    What others leave in the directory without a commit that counts, a zombie for example, is seen by the first
    collection after the store's next change, and so is a pin that was removed.

    Args:
        confirmed: the version that it went by.
        below: the first version with the same attempt that lets something leave; None where none does.
        until_ms: when the first file has waited for as long as it has to; None where none waits.
    """

    confirmed: Version
    below: int | None
    until_ms: int | None

    @classmethod
    def of(
        cls, confirmed: Version, lineage: RetainedLineage, collected: Collected, retention: Retention, now: int
    ) -> Settled:
        """That of a collection. Where a version is retained by its age alone, it holds for no version."""
        leaves = [
            number for number in (number_of(one.path) for one in collected.verdicts) if number > confirmed.version
        ]
        if lineage.retained > 1:
            # the oldest one that is retained leaves by the number of the one after it
            leaves.append(lineage.entries[lineage.retained - 2][1] + retention.min_versions)
        waits = [
            now - one.age_ms + least_age_ms(one.kind, retention.min_age_ms)
            for one in collected.verdicts
            if one.action == WAIT
        ]
        return cls(confirmed, min(leaves, default=None), min(waits, default=None))

    def holds(self, confirmed: Version, now_ms: int) -> bool:
        """Whether it is still so for a store whose newest confirmed version is this one."""
        return (
            confirmed.attempt == self.confirmed.attempt
            and confirmed.version >= self.confirmed.version
            and (self.below is None or confirmed.version < self.below)
            and (self.until_ms is None or now_ms < self.until_ms)
        )
