"""Which versions of a store are retained, as somebody finds out who is no run of the query.

Those are the versions in Spark's commit log, and those below them that the query retains by their number or their age
as the newest version's manifest records it. Of the latter one is not retained whose files are gone, if no other version
needs them and a newer run has started since it was written: an earlier run may have retained less, or have been further
on before the query was rewound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain

from lamina.checkpoint import read_runs
from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format.attempt_id import AttemptId
from lamina.format.manifest import CommitManifest
from lamina.storage import Listed
from lamina.store.collection.retention import Retention
from lamina.store.files.locator import is_part
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.versions.resolution import Versions


class Retained:
    """The retained versions of one store.

    `below` are those below the versions in Spark's log, newest first, with their attempts; `before` says which version
    came before one, where that is not the one with the number before.

    Args:
        named: the versions in Spark's commit log, with the attempt that it names (None under checkpoint format v1).
        still_named: the versions that the log names now.
    """

    def __init__(
        self,
        files: StoreFiles,
        versions: Versions,
        named: Mapping[int, str | None],
        still_named: Callable[[], Collection[int]],
        clock: Clock,
    ) -> None:
        self.named = named
        self.below: dict[int, str] = {}
        self.before: dict[int, int] = {}
        self._files = files
        self._versions = versions
        self._still_named = still_named
        self._clock = clock
        self._retention: Retention | None = None
        self._followed: dict[int, tuple[int, int]] = {}
        self._now = clock.now_ms()

    @property
    def versions(self) -> set[int]:
        """All of them."""
        return self.named.keys() | self.below.keys()

    def follow(self, newest: CommitManifest, listing: Mapping[str, Listed]) -> None:
        """Finds the versions below those in Spark's log along the lineage of `newest`.

        The lineage ends where a manifest that it goes on with cannot be read; that version is still found.

        Raises:
            LaminaError: `storage.*` of the checkpoint's storage; a place of log objects may be out of reach.
        """
        retention = self._retention = Retention.recorded(newest)
        confirmed, oldest = max(self.named), min(self.named)
        # a version that changed nothing is the attempt of the one before it
        numbers: dict[str | None, list[int]] = {}
        for number, name in self.named.items():
            numbers.setdefault(name, []).append(number)
        after, published = confirmed + 1, self._now
        attempt = newest.attempt
        try:
            for attempt, version in chain([(newest.attempt, newest.version)], self._versions.walk(newest)):
                if not retention.retains(after, published, confirmed, self._now):
                    break
                for number in (version, *numbers.get(attempt, ())):
                    self._followed[number] = (after, published)
                if version < oldest and attempt not in numbers:
                    self.before[min(self.below, default=oldest)] = version
                    self.below[version] = attempt
                entry = self._files.locator.of(attempt).listed(listing)
                # a storage that tells no times (0) gives no reason to think that anything is old
                after, published = version, (entry.modified_ms or self._now) if entry else published
        except LaminaError as error:
            if not error.kind.startswith("file.") and not is_part(self._files.locator.of(attempt).name):
                raise

    def forget_collected(self, opened: Mapping[int, Opened], present: Collection[str]) -> set[int]:
        """The versions of `below` that are not retained any more, since their files are gone; forgets them.

        Args:
            opened: the manifests that could be read.
            present: the names in the store's directory.
        """
        needed = {version: {self._files.locator.of(attempt).name} for version, attempt in self.below.items()}
        for version, found in opened.items():
            needed.setdefault(version, set()).update(found.footprint())
        runs = read_runs(self._files.storage)
        newest = runs[-1].epoch if runs else 0
        older = {version for version, attempt in self.below.items() if AttemptId.parse(attempt).epoch < newest}
        others = {name for version, names in needed.items() if version not in older for name in names}
        gone = {
            version
            for version in older
            for name in needed[version]
            if name not in present and name not in others and self._is_gone(name)
        }
        for version in gone:
            del self.below[version]
        return gone

    def _is_gone(self, name: str) -> bool:
        """Whether a file is known not to be there; of a place that is out of reach nobody knows."""
        try:
            return not self._files.exists(name)
        except LaminaError:
            if is_part(name):
                return False
            raise

    def now(self) -> set[int]:
        """Those that are retained now."""
        named, now, retention = set(self._still_named()), self._clock.now_ms(), self._retention
        if retention is None:
            return named
        newest = max(named, default=0)
        return named | {
            version
            for version, (after, published) in self._followed.items()
            if retention.retains(after, published, newest, now)
        }
