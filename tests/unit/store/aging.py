"""Stores whose files have the age that a test's clock gives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lamina.format.entries import PUT
from lamina.storage import Listed, Storage
from lamina.store import Collected, Version
from lamina.store.versioned_store import VersionedStore
from lamina.testing import FaultyBackend, ManualClock
from tests.unit.store.writing import Query, file_name

EMPTY = Version(0)
MIN_AGE_MS = 600_000
START_MS = 1_790_000_000_000


class Aged(FaultyBackend):
    """Local files whose time of publication is the test's clock."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(Storage(str(root))._backend)
        self.clock = clock
        self.times: dict[str, int] = {}
        self.behind_ms = 0
        self.after_listing: Callable[[], None] | None = None

    def publish(self, path: str, chunks: object) -> int:
        size = super().publish(path, chunks)  # type: ignore[arg-type]
        self.times[path] = self.clock.now_ms() - self.behind_ms
        return size

    def list(self, directory: str) -> list[Listed]:
        listed = [
            Listed(entry.name, entry.size, self.times.get(f"{directory}/{entry.name}", START_MS))
            for entry in super().list(directory)
        ]
        action, self.after_listing = self.after_listing, None
        if action is not None:
            action()
        return listed


def wait(query: Query, milliseconds: int) -> None:
    assert isinstance(query.clock, ManualClock)
    query.clock.advance(milliseconds)


def batches(query: Query, store: VersionedStore, base: Version, count: int, every_ms: int = 1000) -> list[Version]:
    versions = []
    for _ in range(count):
        wait(query, every_ms)
        versions += query.run_batches(store, base, 1)
        base = versions[-1]
    return versions


def compact(query: Query, store: VersionedStore, version: Version) -> str:
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    store.adopt(compacted.made)
    return str(compacted.made.name)


def file(version: Version) -> str:
    assert version.attempt is not None
    return file_name(version.attempt)


def deleted(collected: Collected) -> set[str]:
    return {deletion.path for deletion in collected.deleted}


def lost_and_won(query: Query, store: VersionedStore) -> tuple[Version, Version]:
    """Two attempts of version 2, the first of which does not count, as old as files of no use may become."""
    base = batches(query, store, EMPTY, 1)[-1]
    lost = query.commit(store, base, {b"lost": (PUT, b"1")})
    won = query.commit(store, base, {b"won": (PUT, b"1")})
    wait(query, MIN_AGE_MS)
    return lost, won


def snapshots(query: Query, store: VersionedStore, count: int, base: Version = EMPTY) -> list[Version]:
    """Versions that need no file but their own."""
    versions = []
    for _ in range(count):
        wait(query, 1000)
        base = query.commit(store, base, {b"k": (PUT, b"x")}, force_snapshot=True)
        versions.append(base)
    return versions
