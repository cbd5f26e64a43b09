"""What the newest versions have beyond their last merge: the length of the changelog, with or without log objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lamina.format.manifest import INCREMENT
from lamina.store.admin.store_survey import StoreSurvey


@dataclass(frozen=True)
class Unmerged:
    """Increments that a restart replays: all since the last merge.

    Args:
        increments: how many; of several stores the sum.
        bytes: of these.
        in_log: how many of these are parts of log objects.
        most: increments of the store that has most.
    """

    increments: int
    bytes: int
    in_log: int
    most: int


def unmerged(stores: Iterable[StoreSurvey]) -> Unmerged:
    """Of the newest committed versions of the stores; those whose manifest was not read count as none."""
    found = [
        [reference for reference in store.details.chain if reference.kind == INCREMENT]
        for store in stores
        if store.details
    ]
    return Unmerged(
        sum(map(len, found)),
        sum(reference.length for references in found for reference in references),
        sum(reference.is_in_log for references in found for reference in references),
        max(map(len, found), default=0),
    )
