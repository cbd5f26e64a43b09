"""Which attempt of a version counts where Spark's log has numbers only (checkpoint format v1).

For version N the attempt counts that an attempt of a later version, the nearest that is there, has in its lineage, if
that one is of the same or a later run than every attempt of N: it was confirmed when the version after it was opened,
whatever a zombie published since. Where the file of the attempt that counts is gone, none counts: N is not retained any
more, or lost, and a zombie that published meanwhile does not take its place.

Where no later version says which, the greatest (epoch, task attempt) counts among those that no other attempt of N saw
when it was opened (`siblings`): a later execution of the same version replaces what it saw.

An attempt of a later version from an older run than an attempt of N says nothing: the query was rewound, and the newer
run executed N again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lamina.errors import LaminaError
from lamina.format.attempt_id import AttemptId
from lamina.format.manifest import CommitManifest


def arbitrate(
    by_version: Mapping[int, Sequence[AttemptId]], version: int, manifest_of: Callable[[str], CommitManifest]
) -> str | None:
    """The attempt of `version` that counts; None where none is there that does.

    Args:
        by_version: the attempts whose commits are there.
        manifest_of: reads a manifest; not called where the version has one attempt and none is newer.
    """
    groups = _groups(by_version, version)
    if not groups:
        return None
    try:
        return _counting(groups, manifest_of)
    except LaminaError as error:
        # a query may be restarted from the version before the one that is damaged
        alone = groups[0][1]
        if len(alone) > 1 or error.kind not in ("file.damaged", "file.identity", "file.version"):
            raise
        return str(alone[0])


def _groups(by_version: Mapping[int, Sequence[AttemptId]], version: int) -> list[tuple[int, Sequence[AttemptId]]]:
    """The attempts of `version` and of the versions above it, up to the first of which there is one only.

    Without the attempts of runs older than those of the versions below; empty where `version` has none.
    """
    groups: list[tuple[int, Sequence[AttemptId]]] = []
    epoch = 0
    for number in sorted(number for number in by_version if number >= version) if version in by_version else ():
        group = [attempt for attempt in by_version[number] if attempt.epoch >= epoch]
        if group:
            groups.append((number, group))
            epoch = max(attempt.epoch for attempt in group)
            if len(group) == 1 and number > version:
                break
    return groups


def _counting(
    groups: Sequence[tuple[int, Sequence[AttemptId]]], manifest_of: Callable[[str], CommitManifest]
) -> str | None:
    """The attempt of the first group that counts, from the last one, whose descendant is certain, back to it."""
    counting: str | None = None
    newer: CommitManifest | None = None
    for number, group in reversed(groups):
        if counting is not None:
            newer = manifest_of(counting)
        named = _stands_on(newer, number) if newer is not None else None
        if named is None:
            counting = _greatest(group, manifest_of)
        else:
            counting = named if any(str(candidate) == named for candidate in group) else None
    return counting


def _stands_on(manifest: CommitManifest, version: int) -> str | None:
    """The attempt of an older version that a version stands on, where its manifest says it."""
    base = manifest.base
    if base is not None and base.version == version:
        return base.attempt
    return next((attempt for attempt, number in manifest.lineage if number == version), None)


def _greatest(group: Sequence[AttemptId], manifest_of: Callable[[str], CommitManifest]) -> str:
    """The greatest (epoch, task attempt) that is not superseded."""
    if len(group) == 1:
        return str(group[0])
    candidates = [manifest_of(str(candidate)) for candidate in group]
    seen = {sibling for candidate in candidates for sibling in candidate.run.siblings}
    standing = [candidate for candidate in candidates if candidate.attempt not in seen] or list(candidates)
    newest = max(standing, key=lambda manifest: (manifest.run.epoch, manifest.run.task_attempt, manifest.attempt))
    return newest.attempt


def tip(by_version: Mapping[int, Sequence[AttemptId]]) -> int:
    """The newest version of the newest run; 0 where nothing was written."""
    return max(
        ((attempt.epoch, version) for version, group in by_version.items() for attempt in group), default=(0, 0)
    )[1]
