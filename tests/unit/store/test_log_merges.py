"""When commits in log objects are merged: by their number, by their bytes, and when they have been there for long."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lamina.format.entries import PUT
from lamina.format.manifest import StoreIdentity
from lamina.store import Version
from lamina.store.files.locator import is_part
from lamina.store.materialization.materializer import spread_over
from lamina.store.memory.budget import unbounded
from lamina.store.versioned_store import VersionedStore
from tests.unit.store.grouped import Grouped
from tests.unit.store.writing import Query

BACKENDS: dict[str, dict[str, Any]] = {
    "heap": {"changelog__materializeParts": 1000, "compaction__maxChain": 900},
    "rocksdb": {"backend": "rocksdb", "rocksdb__materializeEvery": 900, "compaction__maxChain": 900},
}
INTERVAL_MS = 60_000


def grouped_on(backend: str, **settings: Any) -> Grouped:
    return Grouped(Query(min_versions=2, **{"changelog__enabled": True, **BACKENDS[backend], **settings}))


def parts(store: VersionedStore, version: Version) -> int:
    """How many commits in log objects the version consists of."""
    manifest = store.manifest(version)
    assert manifest is not None
    return len([one for one in manifest.references if one.path is None or is_part(one.path)])


def merged(store: VersionedStore, version: Version, *, at_once: bool) -> None:
    """What the maintenance process does, and the engine with what it made."""
    store.confirm(version)
    merge = store.plan_compaction(at_once=at_once)
    assert merge is not None
    store.adopt(merge.run(None, unbounded()).made)


@pytest.mark.parametrize("backend", BACKENDS)
def test_few_large_commits_are_merged(backend: str) -> None:
    grouped = grouped_on(backend, changelog__materializeBytes=20_000)
    (store,), (version,) = grouped.begun()
    for number, due in enumerate((False, False, True)):
        rows = {b"%d" % one: (PUT, os.urandom(100)) for one in range(80)}
        accepted = grouped.accept(store, version, rows)
        grouped.seal()
        accepted.publish()
        version = Version(version.version + 1, accepted.attempt)
        assert grouped.query.begin(store, version).compaction_due == due, number
    merged(store, version, at_once=False)
    (version,) = grouped.batch([store], [version], 0)
    assert parts(store, version) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_in_the_log_for_long_is_merged(backend: str) -> None:
    grouped = grouped_on(backend, changelog__materializeIntervalMs=INTERVAL_MS)
    (store,), (version,) = grouped.begun()
    for number in range(3):
        (version,) = grouped.batch([store], [version], number)
        begun = grouped.query.begin(store, version)
        assert (begun.materialization_due, begun.compaction_due) == (False, False)
        grouped.query.clock.advance(INTERVAL_MS // 4 - 1)
    # a quarter sooner at most, by store
    grouped.query.clock.advance(INTERVAL_MS // 4)
    assert grouped.query.begin(store, version).materialization_due
    merged(store, version, at_once=True)
    # until a commit refers to what was made it is not asked for again
    assert not grouped.query.begin(store, version).materialization_due
    (version,) = grouped.batch([store], [version], 3)
    assert parts(store, version) == 1
    grouped.query.clock.advance(INTERVAL_MS // 2)
    assert not grouped.query.begin(store, version).materialization_due
    grouped.query.clock.advance(INTERVAL_MS)
    assert grouped.query.begin(store, version).materialization_due


@pytest.mark.parametrize("settings", [{"changelog__materializeIntervalMs": 0}, {"changelog__enabled": False}])
def test_the_age_of_commits_may_be_left_out_of_account(settings: dict[str, Any]) -> None:
    grouped = grouped_on("heap", **settings)
    (store,), (version,) = grouped.begun()
    (version,) = grouped.batch([store], [version], 0)
    for _ in range(2):
        assert not grouped.query.begin(store, version).materialization_due
        grouped.query.clock.advance(1 << 40)


def test_bounds_of_stores_differ_by_up_to_a_quarter() -> None:
    stores = [StoreIdentity("checkpoint", 0, partition, "default") for partition in range(200)]
    found = [spread_over(32, store) for store in stores]
    assert set(found) == set(range(24, 33))
    # no crowd has the same one
    assert max(map(found.count, found)) < 50
    assert found == [spread_over(32, store) for store in stores]
    assert {spread_over(most, store) for most in (1, 2, 3) for store in stores} == {1, 2, 3}
    assert {spread_over(3, store) for store in stores} == {3}
