"""Which attempt of a version counts where Spark's log has numbers only (checkpoint format v1).

For version N the attempt counts that an attempt of N + 1 was built on, if that one is of the same or a later run than
every attempt of N: it was confirmed when N + 1 was opened, whatever a zombie published since. Otherwise the greatest
(epoch, task attempt) counts among those that no other attempt of N saw when it was opened (`siblings`): a later
execution of the same version replaces what it saw.

An attempt of N + 1 from an older run than an attempt of N says nothing: the query was rewound, and the newer run
executed N again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lamina.format.attempt_id import AttemptId
from lamina.format.manifest import CommitManifest
from lamina.format.paths import CommitName, parse_name
from lamina.storage import Listed


def attempts(listing: Iterable[Listed]) -> dict[int, list[AttemptId]]:
    """The attempts of a listing by version."""
    found: dict[int, list[AttemptId]] = {}
    for entry in listing:
        name = parse_name(entry.name)
        if isinstance(name, CommitName):
            found.setdefault(name.version, []).append(name.attempt)
    return found


def arbitrate(
    by_version: Mapping[int, Sequence[AttemptId]], version: int, manifest_of: Callable[[str], CommitManifest]
) -> str | None:
    """The attempt of `version` that counts; None where there is none.

    Args:
        by_version: what `attempts` found.
        manifest_of: reads a manifest; called only where more than one attempt is in question.
    """
    # each group is of one version, without the attempts of runs older than those of the versions before it
    groups: list[Sequence[AttemptId]] = []
    epoch = 0
    while True:
        group: Sequence[AttemptId] = [
            attempt for attempt in by_version.get(version + len(groups), ()) if attempt.epoch >= epoch
        ]
        if len(group) <= 1:
            break
        groups.append(group)
        epoch = max(attempt.epoch for attempt in group)
    # from the newest group, whose descendant is certain, back to the version asked for
    counting = str(group[0]) if group else None
    for group in reversed(groups):
        base = manifest_of(counting).base if counting is not None else None
        if base is not None and any(str(candidate) == base.attempt for candidate in group):
            counting = base.attempt
        else:
            counting = _greatest([manifest_of(str(candidate)) for candidate in group])
    return counting


def _greatest(candidates: Sequence[CommitManifest]) -> str:
    """The greatest (epoch, task attempt) that is not superseded."""
    seen = {sibling for candidate in candidates for sibling in candidate.run.siblings}
    standing = [candidate for candidate in candidates if candidate.attempt not in seen] or list(candidates)
    newest = max(standing, key=lambda manifest: (manifest.run.epoch, manifest.run.task_attempt, manifest.attempt))
    return newest.attempt


def tip(by_version: Mapping[int, Sequence[AttemptId]]) -> int:
    """The newest version of the newest run; 0 where nothing was written."""
    return max(
        ((attempt.epoch, version) for version, group in by_version.items() for attempt in group), default=(0, 0)
    )[1]
