"""Pins: what another checkpoint needs is not collected, and where one cannot be read, nothing is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lamina.checkpoint import Pin, remove_pin, write_pin
from lamina.format.entries import PUT
from lamina.storage import Listed
from lamina.store import Version
from lamina.store.collection.known_others import RECENT_S, KnownOthers
from lamina.store.versioned_store import VersionedStore
from lamina.testing import ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store.aging import EMPTY, MIN_AGE_MS, batches, compact, deleted, file, lost_and_won, wait
from tests.unit.store.writing import Query, names


def pin(query: Query, *versions: Version, partition: int = 0, name: str = "clone") -> None:
    attempts = tuple(version.attempt or "" for version in versions)
    write_pin(query.storage, Pin(name, "another", "s3a://bucket/clone", 1, {(0, partition, "default"): attempts}))


def twelve(query: Query, store: VersionedStore) -> list[Version]:
    """Versions of which the last six stand on a segment of the first six."""
    versions = batches(query, store, EMPTY, 6)
    compact(query, store, versions[-1])
    return versions + batches(query, store, versions[-1], 6)


def test_a_version_that_is_pinned_restores_with_all_that_it_stands_on_until_its_pin_is_removed(query: Query) -> None:
    store = query.open()
    versions = twelve(query, store)
    pin(query, versions[3])
    wait(query, MIN_AGE_MS)
    collected = store.collect(versions[-1], dry_run=False)
    # version 4 stands on the increments before it, and versions 5 and 6 are in the segment
    assert deleted(collected) == {file(version) for version in versions[4:6]}
    assert {verdict.path for verdict in collected.verdicts if verdict.reason == "pin clone needs it"} == {
        file(version) for version in versions[:4]
    }
    for version in (versions[3], *versions[6:]):
        query.assert_restores(query.open(), version)
    remove_pin(query.storage, "clone")
    wait(query, 2 * MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:4]}


def test_what_a_pinned_version_needs_stays_also_where_a_listing_leaves_the_version_out(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = query.open()
    versions = twelve(query, store)
    pin(query, versions[3])
    wait(query, MIN_AGE_MS)
    listing = query.storage.list

    def incomplete(directory: str) -> Sequence[Listed]:
        return [entry for entry in listing(directory) if entry.name != file(versions[3])]

    monkeypatch.setattr(query.storage, "list", incomplete)
    gone = deleted(store.collect(versions[-1], dry_run=False))
    assert gone == {file(version) for version in versions[4:6]}
    query.assert_restores(query.open(), versions[3])


def test_an_attempt_that_does_not_count_is_held_by_a_pin_too(query: Query) -> None:
    store = query.open()
    lost, won = lost_and_won(query, store)
    versions = batches(query, store, won, 6)
    pin(query, lost)
    wait(query, 2 * MIN_AGE_MS)
    assert file(lost) not in deleted(store.collect(versions[-1], dry_run=False))
    query.assert_restores(query.open(), lost)
    remove_pin(query.storage, "clone")
    assert file(lost) in deleted(store.collect(versions[-1], dry_run=False))


def test_a_pin_of_another_store_holds_nothing_here(query: Query) -> None:
    store = query.open()
    versions = twelve(query, store)
    pin(query, versions[3], partition=1)
    wait(query, MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:6]}


@pytest.mark.parametrize("content", [b"", b'{"format":1}', b'{"format":2}'])
def test_nothing_is_deleted_where_a_pin_cannot_be_read(query: Query, content: bytes) -> None:
    store = query.open()
    versions = twelve(query, store)
    query.storage.publish("_lamina/pins/broken", [content])
    wait(query, MIN_AGE_MS)
    before = names(query.storage)
    with fails_with("file.damaged", "file.version") as caught:
        store.collect(versions[-1], dry_run=False)
    assert "pins/broken" in caught.error.message
    assert names(query.storage) == before


def test_what_a_pinned_attempt_refers_to_is_not_guessed_where_its_manifest_is_damaged(query: Query) -> None:
    store = query.open()
    versions = twelve(query, store)
    pin(query, versions[3])
    query.storage.publish(f"0/0/{file(versions[3])}", [b"damaged"])
    wait(query, MIN_AGE_MS)
    before = names(query.storage)
    with fails_with("file.damaged"):
        query.open().collect(versions[-1], dry_run=False)
    assert names(query.storage) == before


def test_stores_of_a_checkpoint_look_at_its_pins_once_and_again_before_they_may_be_too_old(query: Query) -> None:
    assert isinstance(query.clock, ManualClock)
    store = query.open()
    version = query.commit(store, EMPTY, {b"k": (PUT, b"v")})
    others = KnownOthers(store._checkpoint, query.clock)
    for min_age_ms, lasts_s in ((1, 10), (40_000, 20), (MIN_AGE_MS, RECENT_S)):
        found = others.pins(min_age_ms)
        pin(query, version, name=f"of-{min_age_ms}")
        query.clock.advance(int(lasts_s * 1000) - 1)
        query.faults.calls.clear()
        assert others.pins(min_age_ms) == found
        assert query.faults.calls == []
        query.clock.advance(2)
        assert len(others.pins(min_age_ms)) == len(found) + 1
