"""What publications into `_lamina` left that were cut off: temporary files beside the identity, the claims, the pins
and log objects, also of those that lie elsewhere.

Nothing else is collected there. A claim stays for as long as the checkpoint: it alone tells a store which a late
process opens that its run is an old one. Without it that run would claim an epoch anew, above all others, and what it
writes would count.
"""

from __future__ import annotations

from collections.abc import Iterable

from lamina.format import paths
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage, is_temporary
from lamina.store.files.log_parts import Needless
from lamina.store.model import DELETE, WAIT, Verdict

SHARED_TEMPORARY = "shared_temporary"
"""The class of these files, which belong to no store."""


def collects_shared(identity: StoreIdentity) -> bool:
    """Whether it is this store that collects them: one of each checkpoint does."""
    return (identity.operator, identity.partition) == (0, 0) and identity.name in paths.FIRST_STORES


def shared_temporaries(storage: Storage, min_age_ms: int, now_ms: int) -> list[Verdict]:
    """What becomes of each; their paths are relative to `storage`, whose root is the directory `state`."""
    verdicts = []
    for directory in (paths.directory_and_name(paths.CHECKPOINT)[0], paths.RUNS, paths.PINS, paths.LOG):
        for entry in storage.list(directory):
            if is_temporary(entry.name):
                path = paths.join(directory, entry.name)
                verdicts.append(_verdict(path, entry.size, entry.modified_ms, min_age_ms, now_ms))
    return verdicts


def temporaries_elsewhere(found: Iterable[Needless], min_age_ms: int, now_ms: int) -> list[tuple[Verdict, Needless]]:
    """The same of those that lie in places of log objects."""
    return [(_verdict(one.name, one.size, one.modified_ms, min_age_ms, now_ms), one) for one in found]


def _verdict(path: str, size: int, modified_ms: int, min_age_ms: int, now_ms: int) -> Verdict:
    age = now_ms - modified_ms
    # a storage that tells no times (0) gives no reason to think that anything is old
    young = age < min_age_ms or modified_ms <= 0
    return Verdict(path, SHARED_TEMPORARY, size, age, WAIT if young else DELETE, "a publication that was cut off")
