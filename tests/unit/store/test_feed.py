"""The change feed: net changes per version along a lineage, whatever compaction does."""

from __future__ import annotations

from typing import Any

from lamina.format.entries import APPEND, DELETE, PUT
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.versioned_store import VersionedStore
from lamina.testing.expect import fails_with
from tests.unit.store.meeting import Meeting
from tests.unit.store.writing import SEEDS, Query, file_name

EMPTY = Version(0)


def changes(store: VersionedStore, start: int, end: Version, family: int | None = None) -> list[tuple[Any, ...]]:
    return [
        row
        for batch in store.feed(start, end, family).batches
        for row in zip(*(batch.column(name).to_pylist() for name in ("version", "op", "key", "value")), strict=True)
    ]


def chain(query: Query, store: VersionedStore) -> list[Version]:
    first = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    second = query.commit(store, first, {b"a": (DELETE, b""), b"l": (APPEND, b"x")})
    third = query.commit(store, second, {b"b": (PUT, b"3")})
    return [first, second, third]


def test_versions_are_ascending_and_both_bounds_are_included() -> None:
    query = Query()
    store = query.open()
    versions = chain(query, store)
    assert changes(store, 1, versions[2]) == [
        (1, PUT, b"a", b"1"),
        (2, DELETE, b"a", b""),
        (2, APPEND, b"l", b"x"),
        (3, PUT, b"b", b"3"),
    ]
    assert [row[0] for row in changes(store, 2, versions[2])] == [2, 2, 3]
    assert [row[0] for row in changes(store, 3, versions[2])] == [3]
    assert [row[0] for row in changes(store, 1, versions[0])] == [1]


def test_the_feed_of_a_version_that_changed_nothing_is_empty() -> None:
    query = Query()
    store = query.open()
    versions = chain(query, store)
    skipped = Version(7, versions[2].attempt)
    assert changes(store, 4, skipped) == []
    assert [row[0] for row in changes(store, 3, skipped)] == [3]
    after = query.commit(store, skipped, {b"c": (PUT, b"8")})
    assert [row[0] for row in changes(store, 3, after)] == [3, 8]
    assert changes(store, 1, EMPTY) == []


def test_the_feed_follows_the_lineage_and_not_its_siblings() -> None:
    query = Query()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    query.commit(store, base, {b"sibling": (PUT, b"x")})
    other = query.commit(store, base, {b"b": (PUT, b"2")})
    assert [row[2] for row in changes(store, 1, other)] == [b"a", b"b"]


def test_compaction_and_snapshots_do_not_change_the_feed() -> None:
    query = Query(compaction__maxChain=4)
    store = query.open()
    version = EMPTY
    for number in range(10):
        version = query.commit(store, version, {b"k": (PUT, b"%d" % number)})
        store.confirm(version)
        compacted = store.compact()
        if compacted is not None:
            store.adopt(compacted.made)
    assert changes(query.open(), 1, version) == [(n, PUT, b"k", b"%d" % (n - 1)) for n in range(1, 11)]


def test_one_column_family_can_be_asked_for() -> None:
    query = Query()
    store = query.open()
    versions = chain(query, store)
    assert changes(store, 1, versions[2], 0) == changes(store, 1, versions[2])
    assert changes(store, 1, versions[2], 1) == []


def test_changes_that_were_collected_are_an_error_and_not_a_gap() -> None:
    query = Query()
    store = query.open()
    versions = chain(query, store)
    assert versions[1].attempt is not None
    query.storage.delete_many([f"0/0/{file_name(versions[1].attempt)}"])
    with fails_with("state.not-retained"):
        changes(query.open(), 1, versions[2])
    assert [row[0] for row in changes(query.open(), 3, versions[2])] == [3]


def test_of_a_remote_storage_manifests_and_sections_are_read_side_by_side() -> None:
    inner = Storage(f"memory://feed/{next(SEEDS)}")
    backend = Meeting(inner._backend)
    query = Query(Storage(inner.url, backend=backend))
    versions = query.run_batches(query.open(), EMPTY, 14)
    reader = query.open()
    expected = changes(reader, 1, versions[-1])
    backend.most.clear()
    # the newest manifest, which comes before all others, it knows
    backend.expected = 8
    assert changes(reader, 1, versions[-1]) == expected
    assert [row[0] for row in expected] == sorted(row[0] for row in expected)
    assert set(range(1, 15)) == {row[0] for row in expected}
    assert backend.most["read_tail"] >= 8
    assert backend.most["read"] >= 8


def test_a_version_that_is_collected_while_it_is_read_is_named() -> None:
    query = Query(min_versions=2)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 2)
    feed = store.feed(1, versions[-1], None)
    later = query.run_batches(store, versions[-1], 4)
    assert later
    query.storage.delete_many([f"0/0/{file_name(versions[1].attempt or '')}"])
    with fails_with("state.not-retained") as caught:
        list(feed.batches)
    assert "version 2 left retention" in caught.error.message
