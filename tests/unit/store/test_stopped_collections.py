"""What is not known for certain stops a collection."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from lamina.errors import LaminaError
from lamina.format.entries import PUT
from lamina.format.manifest import FILE, RUN
from lamina.storage import Storage
from lamina.testing import Fault, ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store.aging import EMPTY, MIN_AGE_MS, START_MS, Aged, batches, compact, deleted, file, snapshots, wait
from tests.unit.store.writing import Query, damage, names


def test_a_store_of_an_older_run_deletes_nothing(query: Query) -> None:
    """Its confirmed version may be one that the newer run, rewound, executed again."""
    older = query.open()
    versions = batches(query, older, EMPTY, 3)
    mine = batches(query, older, versions[-1], 6)
    newer = Query(query.storage, run="newer", min_versions=3, clock=query.clock)
    newer.states = query.states
    theirs = batches(newer, newer.open(), versions[-1], 3)
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(older.collect(mine[-1], dry_run=False)) == set()
    newer.assert_restores(newer.open(), theirs[-1])


def test_a_newer_run_that_has_written_nothing_yet_stops_the_older_one(query: Query) -> None:
    """It may have been rewound to a version that the older run does not retain."""
    older = query.open()
    versions = snapshots(query, older, 10)
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(older.collect(versions[-1], dry_run=True)) != set()
    Query(query.storage, run="newer", clock=query.clock).open()
    assert deleted(older.collect(versions[-1], dry_run=False)) == set()


def test_a_newer_run_is_known_by_its_files_too(query: Query) -> None:
    older = query.open()
    versions = batches(query, older, EMPTY, 6)
    newer = Query(query.storage, run="newer", min_versions=3, clock=query.clock)
    newer.states = query.states
    theirs = batches(newer, newer.open(), versions[2], 1)
    for entry in query.storage.list("_lamina/runs"):
        if entry.name.endswith("newer"):
            query.storage.delete_many([f"_lamina/runs/{entry.name}"])
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(older.collect(versions[-1], dry_run=False)) == set()
    assert file(theirs[-1]) in names(query.storage)


def test_files_of_every_epoch_that_the_run_or_an_older_one_claimed_stop_nothing(query: Query) -> None:
    """Two executors of a run may have claimed an epoch each; neither is a newer run than the other."""
    query.open()
    query.storage.delete_many(["_lamina/runs/1_run"])
    query.storage.publish("_lamina/runs/1_before", b"{}")
    second = query.open()
    versions = batches(query, second, EMPTY, 1)
    query.storage.publish("_lamina/runs/1_run", b"{}")
    first = query.open()
    lost = query.commit(second, versions[-1], {b"lost": (PUT, b"1")})
    won = query.commit(first, versions[-1], {b"won": (PUT, b"1")})
    assert [version.attempt.split(".")[2] for version in (lost, won) if version.attempt] == ["2", "1"]
    wait(query, MIN_AGE_MS)
    assert deleted(first.collect(won, dry_run=False)) == {file(lost)}
    lost = query.commit(second, versions[-1], {b"again": (PUT, b"1")})
    wait(query, MIN_AGE_MS)
    # a run after it in the order, of a smaller epoch than its second claim
    query.storage.publish("_lamina/runs/1_sequel", b"{}")
    newer = Query(query.storage, run="sequel", min_versions=3, clock=query.clock)
    assert deleted(newer.open().collect(won, dry_run=False)) == {file(lost)}


def test_a_lineage_that_breaks_off_among_versions_retained_by_age_stops_a_collection(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    storage = Storage(str(tmp_path), backend=Aged(tmp_path, clock))
    query = Query(storage, min_versions=3, clock=clock, retention__minVersionAgeMs=3_600_000)
    store = query.open()
    store._attempts._lineage_length = 1
    versions = batches(query, store, EMPTY, 12)
    lost = query.commit(store, versions[-2], {b"lost": (PUT, b"1")})
    query.storage.delete_many([f"0/0/{file(versions[6])}"])
    wait(query, 1_800_000)
    collected = query.open().collect(versions[-1], dry_run=False)
    assert collected.verdicts == ()
    assert "lineage" in str(collected.stopped)
    assert file(lost) in names(query.storage)


@pytest.mark.parametrize("raised", [{"min_versions": 1000}, {"retention__minVersionAgeMs": 10**8}])
def test_a_restart_that_retains_more_than_before_goes_on_collecting(query: Query, raised: dict[str, int]) -> None:
    """What the run before it has collected is not lost."""
    store = query.open()
    store._attempts._lineage_length = 2
    versions = snapshots(query, store, 12)
    wait(query, MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:8]}
    again = Query(query.storage, run="again", clock=query.clock, **{"min_versions": 3, **raised})  # type: ignore[arg-type]
    again.states = query.states
    store = again.open()
    store._attempts._lineage_length = 2
    lost, won = (again.commit(store, versions[-1], {b"k": (PUT, b"y")}, force_snapshot=True) for _ in range(2))
    version = snapshots(again, store, 1, won)[-1]
    wait(query, MIN_AGE_MS)
    collected = store.collect(version, dry_run=False)
    assert collected.stopped is None
    assert deleted(collected) == {file(lost)}
    # as before where one is lost that has an older one below it
    query.storage.delete_many([f"0/0/{file(versions[9])}"])
    collected = again.open().collect(version, dry_run=False)
    assert "lineage" in str(collected.stopped)


def test_a_lineage_that_was_rewound_is_followed_anew(query: Query) -> None:
    """What the registry knows of the versions that were given up must not decide about those that count again."""
    store = query.open()
    versions = batches(query, store, EMPTY, 4)
    segment = compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 8)
    collector = query.open()
    collector.collect(versions[-1], dry_run=True)
    branch = query.commit(store, versions[5], {b"again": (PUT, b"1")})
    branch = batches(query, store, branch, 1)[-1]
    wait(query, 100 * MIN_AGE_MS)
    gone = deleted(collector.collect(branch, dry_run=False))
    assert segment not in gone
    assert gone == {file(version) for version in versions[:4]}
    query.assert_restores(query.open(), branch)


def test_versions_that_were_collected_before_a_rewind_stop_no_collection(query: Query) -> None:
    store = query.open()
    versions = snapshots(query, store, 10)
    wait(query, MIN_AGE_MS)
    assert deleted(store.collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:6]}
    rewound = Query(query.storage, run="rewound", min_versions=3, clock=query.clock)
    rewound.states = query.states
    again = rewound.open()
    branch = rewound.commit(again, versions[7], {b"again": (PUT, b"1")}, force_snapshot=True)
    wait(query, MIN_AGE_MS)
    # of the retained versions 6 … 9 the sixth is gone; of what was given up 9 goes, and 10 is above what is confirmed
    assert deleted(again.collect(branch, dry_run=False)) == {file(versions[8])}
    for version in (versions[6], versions[7], branch):
        rewound.assert_restores(rewound.open(), version)
    after = rewound.commit(again, branch, {b"again": (PUT, b"2")}, force_snapshot=True)
    wait(query, MIN_AGE_MS)
    assert deleted(again.collect(after, dry_run=False)) == {file(versions[9])}


@pytest.mark.parametrize("retained", [1, 2, 3])
def test_a_manifest_that_is_not_there_and_has_an_older_one_below_it_stops_a_collection(
    query: Query, retained: int
) -> None:
    versions = snapshots(query, query.open(), 10)
    wait(query, 100 * MIN_AGE_MS)
    query.storage.delete_many([f"0/0/{file(versions[-1 - retained])}"])
    with fails_with("file.missing"):
        query.open().collect(versions[-1], dry_run=False)


def test_the_oldest_manifest_that_is_not_there_and_is_referred_to_stops_a_collection(query: Query) -> None:
    """It was lost: a collector keeps what retained versions refer to."""
    store = query.open()
    versions = snapshots(query, store, 7)
    versions += batches(query, store, versions[-1], 3)
    other = query.commit(store, versions[-2], {b"other": (PUT, b"1")})
    wait(query, MIN_AGE_MS - 1)
    assert deleted(query.open().collect(versions[-1], dry_run=False)) == {file(version) for version in versions[:5]}
    query.storage.delete_many([f"0/0/{file(version)}" for version in versions[5:7]])
    wait(query, 100 * MIN_AGE_MS)
    with fails_with("file.missing"):
        query.open().collect(versions[-1], dry_run=False)
    assert file(other) in names(query.storage)


def test_the_newest_version_alone_is_never_taken_for_collected(query: Query) -> None:
    store = query.open()
    version = snapshots(query, store, 1)[0]
    other = query.commit(store, EMPTY, {b"other": (PUT, b"1")})
    wait(query, 100 * MIN_AGE_MS)
    backend = query.storage._backend
    assert isinstance(backend, Aged)
    backend.after_listing = lambda: query.storage.delete_many([f"0/0/{file(version)}"])
    for _ in range(2):
        with fails_with("file.missing"):
            query.open().collect(version, dry_run=False)
    assert file(other) in names(query.storage)


def test_a_lineage_that_cannot_be_followed_stops_a_collection(query: Query) -> None:
    """Without the manifests between, nobody knows what the retained versions need."""
    store = query.open()
    store._attempts._lineage_length = 1
    versions = batches(query, store, EMPTY, 8)
    lost = query.commit(store, versions[-2], {b"lost": (PUT, b"1")})
    wait(query, 100 * MIN_AGE_MS)
    query.storage.delete_many([f"0/0/{file(versions[-2])}"])
    assert deleted(query.open().collect(versions[-1], dry_run=False)) == set()
    assert file(lost) in names(query.storage)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_where_a_file_of_the_newest_version_is_lost_nothing_that_may_lead_to_its_state_is_collected(
    backend: str,
) -> None:
    query = Query(min_versions=3, backend=backend, rocksdb__materializeEvery=4)
    store = query.open()
    versions = batches(query, store, EMPTY, 6)
    compact(query, store, versions[-1])
    versions += batches(query, store, versions[-1], 6)
    manifest = store.manifest(versions[-1])
    assert manifest is not None
    lost = next(one.path for one in manifest.references if one.kind in (RUN, FILE) and one.path is not None)
    wait(query, 100 * MIN_AGE_MS)
    before = names(query.storage)
    query.storage.delete_many([f"0/0/{lost}"])
    collected = query.open().collect(versions[-1], dry_run=False)
    assert lost in str(collected.stopped)
    assert collected.needs_repair
    assert {one.path for one in collected.lost} == {lost}
    assert names(query.storage) == before - {lost}
    query.assert_restores(query.open(), versions[-1])


def test_a_lineage_longer_than_its_manifest_lists_is_followed_on(query: Query) -> None:
    store = query.open()
    store._attempts._lineage_length = 1
    versions = batches(query, store, EMPTY, 8)
    wait(query, 100 * MIN_AGE_MS)
    assert deleted(query.open().collect(versions[-1], dry_run=False)) == set()
    for version in versions:
        query.assert_restores(query.open(), version)


def test_a_retained_version_that_is_damaged_stops_a_collection(query: Query) -> None:
    store = query.open()
    versions = batches(query, store, EMPTY, 8)
    path = f"0/0/{file(versions[-2])}"
    query.storage.publish(path, bytes(query.storage.read(path))[:-1])
    wait(query, 100 * MIN_AGE_MS)
    with fails_with("file.damaged"):
        query.open().collect(versions[-1], dry_run=False)


@pytest.mark.parametrize("how", ["the system cannot read it now", "it is damaged"])
def test_a_waiting_commit_that_cannot_be_read_stops_collections_until_it_is_old(query: Query, how: str) -> None:
    """Whoever opened it before may read what it refers to."""
    store, zombie = query.open(), query.open()
    versions = batches(query, store, EMPTY, 6)
    begun = query.begin(zombie, versions[-1])
    segment = compact(query, zombie, versions[-1])
    lost = query.commit(zombie, versions[-1], {b"lost": (PUT, b"1")}, begun=begun)
    wait(query, 100 * MIN_AGE_MS)
    base = versions[-1]
    for _ in range(6):
        base = query.commit(store, base, {b"k": (PUT, b"x")}, force_snapshot=True)
    backend = query.storage._backend
    assert isinstance(backend, Aged)
    backend.times[f"0/0/{file(lost)}"] = query.clock.now_ms()
    assert segment not in deleted(store.collect(base, dry_run=True))
    if how == "it is damaged":
        path = f"0/0/{file(lost)}"
        damage(query.storage, path, len(bytes(query.storage.read(path))) - 20)
    else:
        query.faults.inject(Fault("read_tail", file(lost), errno=errno.EIO))
    before = names(query.storage)
    with fails_with("file.damaged") as caught:
        query.open().collect(base, dry_run=False)
    assert file(lost) in caught.error.message
    assert names(query.storage) == before
    wait(query, MIN_AGE_MS)
    assert {file(lost), segment} <= deleted(query.open().collect(base, dry_run=False))


@pytest.mark.parametrize("kind", ["file.version", "file.damaged"])
def test_a_newer_commit_that_cannot_be_read_stops_the_collection(
    query: Query, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store, collector = query.open(), query.open()
    versions = batches(query, store, EMPTY, 8)
    compact(query, store, versions[-1])
    batches(query, store, versions[-1], 1)
    before = names(query.storage)
    wait(query, 3 * MIN_AGE_MS)

    def unreadable(files: object, attempt: str) -> list[str]:
        raise LaminaError.from_kind(kind, attempt)

    monkeypatch.setattr("lamina.store.collection.footprints.footprint", unreadable)
    with fails_with(kind):
        collector.collect(versions[-1], dry_run=False)
    assert names(query.storage) == before
