"""Which attempt a version is, and its manifest: by the id in Spark's log, or by arbitration where it has none.

Manifests never change, so a few are kept in memory; whether their files are still there is asked where it matters.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from lamina.errors import LaminaError
from lamina.format.attempt_id import EMPTY, AttemptId
from lamina.format.manifest import CommitManifest
from lamina.storage import Listed
from lamina.storage.in_flight import in_flight
from lamina.store.files.locator import attempt_of
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.model import Version, VersionInfo
from lamina.store.versions import arbitration

_Batch = TypeVar("_Batch")

_MANIFESTS_KEPT = 4
"""The base of the next commit, its siblings, and what a reader just asked for."""

_READ_AHEAD = 16


def is_empty(attempt: str | None) -> bool:
    """Whether nothing was ever written for this attempt (None: version 0 without an id)."""
    return attempt is None or AttemptId.parse(attempt).kind == EMPTY


class Versions:
    """The versions of one store. Thread-safe."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._manifests: OrderedDict[str, Opened] = OrderedDict()

    def locate(self, version: Version) -> str | None:
        """The attempt of `version` that counts; None for version 0. An id given is only parsed, not looked for.

        Raises:
            LaminaError: `attempt-id.unknown`; `state.not-retained` or `file.missing` where no id was given and no
                attempt is there.
        """
        if version.attempt is not None:
            if AttemptId.parse(version.attempt).version > version.version:
                raise LaminaError.from_kind(
                    "state.base", f"attempt {version.attempt} cannot be version {version.version}: it is newer"
                )
            return version.attempt
        if version.version == 0:
            return None
        return self.arbitrate(self._files.attempts(), version)

    def arbitrate(self, by_version: Mapping[int, Sequence[AttemptId]], version: Version) -> str:
        """The attempt of `version` that counts among those listed (checkpoint format v1).

        One that does not count may be collected between the listing and the look at its manifest: then the store is
        listed again.
        """
        while True:
            try:
                attempt = arbitration.arbitrate(by_version, version.version, lambda name: self.open(name).manifest)
                break
            except LaminaError as error:
                listed = self._files.attempts()
                if error.kind != "file.missing" or listed == by_version:
                    raise
                by_version = listed
        if attempt is None:
            raise self._absent(version, f"the file of version {version.version}", by_version)
        return attempt

    def open(self, attempt: str, version: Version | None = None) -> Opened:
        """The manifest of an attempt that wrote a file."""
        with self._lock:
            opened = self._manifests.get(attempt)
            if opened is not None:
                self._manifests.move_to_end(attempt)
                return opened
        try:
            opened = self._files.open_commit(attempt)
        except LaminaError as error:
            if error.kind != "file.missing" or version is None:
                raise
            raise self.absent(version, attempt) from error
        self.remember(opened)
        return opened

    def open_present(self, attempt: str, version: Version) -> Opened:
        """As `open`, after a look that the file is still there."""
        opened = self.open(attempt, version)
        if not self._files.has_commit(attempt):
            self.forget(attempt)
            raise self.absent(version, attempt)
        return opened

    def remembered(self, attempt: str) -> Opened | None:
        """The manifest if it is in memory."""
        with self._lock:
            return self._manifests.get(attempt)

    def remember(self, opened: Opened) -> None:
        """Keeps a manifest in memory."""
        with self._lock:
            self._manifests[opened.manifest.attempt] = opened
            while len(self._manifests) > _MANIFESTS_KEPT:
                self._manifests.popitem(last=False)

    def infos(self, listing: Iterable[Listed] | None = None) -> list[VersionInfo]:
        """The commits whose files are there, oldest first; `listing`: of the store, where there is one already."""
        found = [
            VersionInfo(attempt.version, str(attempt), attempt.epoch, entry.size, entry.modified_ms)
            for entry in (self._files.list() if listing is None else listing)
            if (attempt := attempt_of(entry.name)) is not None
        ]
        return sorted(found, key=lambda info: (info.version, info.epoch, info.attempt))

    def forget(self, attempt: str) -> None:
        """Drops a manifest from memory."""
        with self._lock:
            self._manifests.pop(attempt, None)

    def forget_all(self) -> None:
        """Drops all manifests from memory."""
        with self._lock:
            self._manifests.clear()

    def down(self, newest: Opened) -> Generator[Opened]:
        """The manifest given, and those that it stands on, newest first; to be closed by who stops early.

        One that stands on nothing is the last, also where its lineage names what it took the place of. Where each is a
        request, sixteen are read ahead. None but the one given is remembered.

        Raises:
            LaminaError: `file.missing` where one was collected, `file.damaged`, when its turn comes.
        """
        yield newest
        while (base := newest.manifest.base) is not None:
            lineage = [attempt for attempt, _ in newest.manifest.lineage]
            names = lineage if lineage[:1] == [base.attempt] else [base.attempt]
            ahead = in_flight(self._files.storage, self._read, names, _READ_AHEAD)
            try:
                for name, found in zip(names, ahead, strict=True):
                    base = newest.manifest.base
                    if base is None or base.attempt != name:
                        break
                    newest = found()
                    yield newest
            finally:
                ahead.close()

    def _read(self, attempt: str) -> Opened:
        return self.remembered(attempt) or self._files.open_commit(attempt)

    def walk(
        self, newest: CommitManifest, opened: Callable[[Opened], None] = lambda _: None
    ) -> Iterator[tuple[str, int]]:
        """The attempts and versions that `newest` stands on, newest first.

        A manifest lists a bounded part; where that ends, the oldest manifest listed goes on.

        Args:
            opened: called with each manifest that goes on.
        Raises:
            LaminaError: `file.missing` where that one was collected, `file.damaged`.
        """
        manifest = newest
        while manifest.lineage:
            yield from manifest.lineage
            older = self.open(manifest.lineage[-1][0])
            opened(older)
            manifest = older.manifest

    def lineage(self, newest: CommitManifest, until: int) -> tuple[list[tuple[str, int]], bool]:
        """The attempts that `newest` stands on, newest first, up to the first one at or below version `until`.

        Also gives whether that one, or the beginning, was reached.
        """
        found: list[tuple[str, int]] = []
        try:
            for entry in self.walk(newest):
                found.append(entry)
                if entry[1] <= until:
                    break
        except LaminaError as error:
            if error.kind not in ("file.missing", "file.damaged"):
                raise
            return found, False
        return found, True

    def absent(self, version: Version, attempt: str) -> LaminaError:
        """The error that the file of a version's attempt is not there: collected, or lost."""
        return self._absent(version, self._files.place_of_commit(attempt), self._files.attempts())

    def _absent(self, version: Version, what: str, by_version: Mapping[int, Sequence[AttemptId]]) -> LaminaError:
        written = version.version if version.attempt is None else AttemptId.parse(version.attempt).version
        newer = [number for number in by_version if number > written]
        if newer and (not any(number < written for number in by_version) or self._has_left(written, by_version)):
            return LaminaError.from_kind(
                "state.not-retained",
                f"{what} is not there: {version} is not retained any more; the oldest file left is of version "
                f"{min(newer)}",
            )
        return LaminaError.from_kind("file.missing", f"{what} is not there; {version} needs it")

    def watched(self, version: Callable[[], int], batches: Iterator[_Batch]) -> Iterator[_Batch]:
        """`batches` of a version; where its files were collected while they were read, the error says so.

        Args:
            version: tells which, where reading failed.
        Raises:
            LaminaError: `state.not-retained` where it would be `file.missing`.
        """
        try:
            yield from batches
        except LaminaError as error:
            read = version()
            if error.kind != "file.missing" or not self._has_left(read, self._files.attempts()):
                raise
            first = error.__cause__ if isinstance(error.__cause__, LaminaError) else error
            raise LaminaError.from_kind(
                "state.not-retained",
                f"{first.message}: version {read} left retention, and its files were collected while they were "
                "still read. Reading may take retention.minAgeMs longer than a version is retained: read a newer "
                "version, or raise retention.minAgeMs or spark.sql.streaming.minBatchesToRetain for the future",
            ) from error

    def _has_left(self, version: int, by_version: Mapping[int, Sequence[AttemptId]]) -> bool:
        """Whether a version left retention, by what the newest commit says is retained; False where nothing tells.

        It is retained as long as the version after it in the lineage is newer than the number of versions says.
        """
        if not by_version:
            return False
        newest = max(by_version[arbitration.tip(by_version)], key=lambda attempt: attempt.epoch)
        try:
            manifest = self.open(str(newest)).manifest
            retention = manifest.retention or {}
            if retention.get("min_version_age_ms") and version in by_version:
                return False  # its age may retain it
            oldest = manifest.version - retention.get("min_versions", manifest.version)
            after = manifest.version + 1
            for number in chain([manifest.version], (number for _, number in self.walk(manifest))):
                if number <= version or after <= oldest:
                    break
                after = number
        except LaminaError:
            return False
        return after <= oldest
