"""What the newest versions have beyond what was merged or written whole: changes, with or without log objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.format.manifest import INCREMENT
from lamina.store.admin.store_survey import StoreSurvey
from lamina.store.versions import chain


@dataclass(frozen=True)
class Unmerged:
    """Increments that a restart replays on top of segments, snapshots or tables.

    Args:
        increments: how many; of several stores the sum.
        bytes: of these, as they are stored.
        in_log: how many of these are parts of log objects of this checkpoint.
        most: increments of the store that has most.
        unknown: stores with a committed version whose manifest could not be read; nothing of them is counted.
    """

    increments: int
    bytes: int
    in_log: int
    most: int
    unknown: int


def unmerged(stores: Sequence[StoreSurvey]) -> Unmerged:
    """Of the newest committed versions of the stores."""
    chains = [store.details.chain for store in stores if store.details]
    found = [chain.increments(references) for references in chains]
    return Unmerged(
        sum(count for count, _ in found),
        sum(size for _, size in found),
        sum(one.kind == INCREMENT and one.is_in_log for references in chains for one in references),
        max((count for count, _ in found), default=0),
        sum(bool(store.problems) and not store.details for store in stores),
    )
