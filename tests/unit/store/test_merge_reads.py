"""Merges read small parts side by side where each takes a request to another machine."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.format.manifest import Reference
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.files.store_files import StoreFiles
from lamina.store.materialization import sources
from lamina.store.materialization.materializer import Merge
from lamina.store.memory.budget import MemoryBudget
from lamina.testing.expect import fails_with
from tests.unit.store.meeting import Meeting
from tests.unit.store.writing import SEEDS, Query, file_name

EMPTY = Version(0)
PARTS = 12
BACKENDS: dict[str, dict[str, Any]] = {
    "heap": {"compaction__maxChain": 900},
    "rocksdb": {"backend": "rocksdb", "rocksdb__materializeEvery": PARTS},
}


@pytest.fixture(params=BACKENDS)
def query(request: pytest.FixtureRequest) -> Query:
    inner = Storage(f"memory://merge-reads/{next(SEEDS)}")
    return Query(Storage(inner.url, backend=Meeting(inner._backend)), **BACKENDS[request.param])


def meeting(query: Query) -> Meeting:
    assert isinstance(query.faults, Meeting)
    return query.faults


def cold_merge(query: Query, version: Version) -> Merge:
    """As of a maintenance process that has just been started."""
    store = query.open()
    store.confirm(version)
    merge = store.plan_compaction(at_once=True)
    assert merge is not None
    meeting(query).most.clear()
    return merge


def test_increments_are_read_side_by_side_and_make_the_same_rows(query: Query) -> None:
    version = query.run_batches(query.open(), EMPTY, PARTS)[-1]
    merge, budget = cold_merge(query, version), MemoryBudget()
    meeting(query).expected = 8
    made = merge.run(None, budget.share()).made
    assert meeting(query).most["read"] >= 8
    assert budget.stats()["held_bytes"] == 0
    store = query.open()
    store.adopt(made)
    after = query.commit(store, version, {})
    manifest = store.manifest(after)
    assert manifest is not None
    assert {reference.path for reference in made.references()} <= {one.path for one in manifest.references}
    query.assert_restores(query.open(), after)


def test_where_memory_is_short_one_is_read_after_the_other(query: Query) -> None:
    version = query.run_batches(query.open(), EMPTY, PARTS)[-1]
    merge, budget = cold_merge(query, version), MemoryBudget(1 << 30)
    others = budget.share()
    others.take(budget.max_bytes or 0)
    share = budget.share()
    share.wait_no_more()
    merge.run(None, share)
    assert meeting(query).most["read"] == 1
    others.close()
    assert budget.stats()["held_bytes"] == 0


def test_a_lost_part_among_those_that_are_read_ahead_is_named_and_nothing_is_held(query: Query) -> None:
    versions = query.run_batches(query.open(), EMPTY, PARTS)
    merge, budget = cold_merge(query, versions[-1]), MemoryBudget()
    lost = file_name(versions[PARTS // 2].attempt or "")
    query.storage.delete_many([f"0/0/{lost}"])
    with fails_with("file.missing", lost):
        merge.run(None, budget.share())
    assert budget.stats()["held_bytes"] == 0


def test_no_more_is_read_ahead_than_was_taken_room_for(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_AHEAD", 3)
    version = query.run_batches(query.open(), EMPTY, PARTS)[-1]
    merge, budget = cold_merge(query, version), MemoryBudget()
    held: list[int] = []
    read, share = StoreFiles.read, budget.share()

    def watched(files: StoreFiles, reference: Reference) -> Any:
        held.append(share.held)
        return read(files, reference)

    monkeypatch.setattr(StoreFiles, "read", watched)
    meeting(query).expected = 3
    merge.run(None, share)
    assert meeting(query).most["read"] == 3
    assert len(held) == PARTS
    assert min(held) > 0
