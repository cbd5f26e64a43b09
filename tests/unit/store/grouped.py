"""Stores that commit into groups, and what their processes do: for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.format import paths
from lamina.format.attempt_id import FILE, AttemptId
from lamina.format.entries import PUT
from lamina.settings import NONE
from lamina.store import CheckpointState, Committed, StoreConf, StoreId, Version
from lamina.store.changelog.groups import Groups, Policy
from lamina.store.factory import make_store
from lamina.store.files.locator import is_part
from lamina.store.files.log_parts import LogObjects
from lamina.store.memory.budget import unbounded
from lamina.store.model import Accepted
from lamina.store.versioned_store import VersionedStore
from lamina.testing.log_objects import publisher
from tests.unit.store.aging import EMPTY
from tests.unit.store.writing import Change, Query, applied


class Grouped:
    """A query whose stores commit into groups, which are published when the test says so.

    Args:
        path: as the setting `changelog.path`; the query's storage has to name it among its roots.
    """

    def __init__(self, query: Query, path: str = NONE) -> None:
        self.query = query
        self.state = CheckpointState.open(
            query.storage, run_id=query.run, read_only=False, clock=query.clock, ids=query.ids
        )
        self.logs = LogObjects(query.storage, query.clock, query.ids, tells=True)
        self.publishing: list[Callable[[], None]] = []
        place = self.logs.places.take(path, self.state.uuid or "", query.ids)
        publish = publisher(place, self.state.uuid, query.clock, self.logs.add_written)
        policy = Policy(1.0, 1.0, 1.0, 1 << 20)
        self.groups = Groups(policy, publish, self.publishing.append, query.clock, query.ids)

    def open(self, partition: int = 0, *, groups: bool = True) -> VersionedStore:
        return make_store(
            self.state,
            StoreId(self.query.storage.url, 0, partition, "default"),
            StoreConf(self.query.settings, 2, "4.3.0", self.query.min_versions),
            clock=self.query.clock,
            ids=self.query.ids,
            groups=self.groups if groups else None,
            logs=self.logs,
        )

    def begun(self, count: int = 1) -> tuple[list[VersionedStore], list[Version]]:
        """Stores at their first version, which is a file: Spark's state reader takes partitions from directories."""
        stores = [self.open(partition) for partition in range(count)]
        versions = []
        for store in stores:
            accepted = self.accept(store, EMPTY, {b"first": (PUT, b"row")})
            accepted.publish()
            assert AttemptId.parse(accepted.attempt).kind == FILE
            versions.append(Version(1, accepted.attempt))
        return stores, versions

    def accept(self, store: VersionedStore, base: Version, changes: dict[bytes, Change]) -> Accepted:
        """The commit of an attempt, which waits in a group."""
        accepted = self.query.accept(store, base, changes)
        self.query.states[accepted.attempt] = applied(self.query.states[base.attempt], changes)
        return accepted

    def seal(self) -> None:
        self.groups.seal()
        while self.publishing:
            self.publishing.pop()()

    def batch(self, stores: Sequence[VersionedStore], bases: Sequence[Version], number: int) -> list[Version]:
        """One version of each store, in one object."""
        accepted = [
            self.accept(
                store,
                base,
                {b"k%d" % (number % 5): (PUT, b"%d-%d" % (number, place)), b"new%d" % number: (PUT, b"x")},
            )
            for place, (store, base) in enumerate(zip(stores, bases, strict=True))
        ]
        self.seal()
        for one in accepted:
            assert isinstance(one.publish(), Committed)
        return [Version(base.version + 1, one.attempt) for base, one in zip(bases, accepted, strict=True)]

    def objects(self) -> list[str]:
        return [entry.name for entry in self.query.storage.list(paths.LOG)]


def collected(grouped: Grouped, store: VersionedStore, version: Version) -> None:
    """A collection by the process that knows what others have given up."""
    found = store.collect(version, dry_run=False)
    assert found.stopped is None, found.stopped


def materialized(store: VersionedStore, version: Version, *, at_once: bool = False) -> int:
    """What the maintenance process does, and the engine with what it made; how many bytes were to be merged."""
    store.confirm(version)
    merge = store.plan_compaction(at_once=at_once)
    assert merge is not None
    store.adopt(merge.run(None, unbounded()).made)
    return merge.bytes


def parts(store: VersionedStore, version: Version) -> int:
    """How many commits in log objects the version consists of."""
    manifest = store.manifest(version)
    assert manifest is not None
    return len([one for one in manifest.references if one.path is None or is_part(one.path)])


def said(grouped: Grouped) -> list[str]:
    """The files in which processes tell what stores need."""
    return [name for name in grouped.objects() if name.endswith(".needs")]
