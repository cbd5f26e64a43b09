"""When log objects go: by what all stores that have commits in them need."""

from __future__ import annotations

import time

import pytest

from lamina.checkpoint import Pin, QueryRun, write_pin
from lamina.format import paths
from lamina.format.entries import PUT
from lamina.store.collection.classes import number_of
from lamina.store.files.locator import is_part
from lamina.store.files.log_needs import Needs, to_bytes
from lamina.store.files.log_parts import TOLD_AFTER_S, LogObjects
from lamina.testing import Effect, Fault
from lamina.testing.expect import fails_with
from tests.unit.store.aging import MIN_AGE_MS
from tests.unit.store.grouped import Grouped, collected, materialized, said
from tests.unit.store.writing import Query, rows_of


def test_an_object_goes_when_no_retained_version_of_any_store_needs_it() -> None:
    grouped = Grouped(Query(min_versions=2))
    stores, versions = grouped.begun(2)

    def batches(count: int) -> None:
        nonlocal versions
        for _ in range(count):
            versions = grouped.batch(stores, versions, versions[0].version)

    def collect() -> list[str]:
        for store, version in zip(stores, versions, strict=True):
            collected(grouped, store, version)
        # versions count their time from the first collection that knew them to be left
        grouped.query.clock.advance(MIN_AGE_MS + 60_000)
        for store, version in zip(stores, versions, strict=True):
            collected(grouped, store, version)
        return grouped.objects()

    batches(6)
    first = grouped.objects()
    assert collect() == first
    materialized(stores[0], versions[0])
    batches(4)
    # the other store's chains begin with them
    assert set(first) < set(collect())
    materialized(stores[1], versions[1])
    batches(4)
    left = collect()
    assert not set(first) & set(left)
    for partition, version in enumerate(versions):
        again = Grouped(grouped.query).open(partition)
        assert rows_of(again.load(version, have=None, read_only=True)) == grouped.query.states[version.attempt]


def test_an_object_goes_whose_stores_are_collected_by_several_processes() -> None:
    query = Query(min_versions=2)
    first = Grouped(query)
    stores, versions = first.begun(2)
    for number in range(6):
        versions = first.batch(stores, versions, number)
    shared = set(first.objects())
    # the second store moves to another process
    homes = [first, Grouped(query)]
    stores = [home.open(partition) for partition, home in enumerate(homes)]

    def go_on(count: int) -> None:
        for _ in range(count):
            for place, home in enumerate(homes):
                [versions[place]] = home.batch([stores[place]], [versions[place]], versions[place].version)

    def collect() -> None:
        for home, store, version in zip(homes, stores, versions, strict=True):
            collected(home, store, version)

    go_on(1)
    for store, version in zip(stores, versions, strict=True):
        materialized(store, version)
    go_on(4)
    collect()
    query.clock.advance(MIN_AGE_MS + 60_000)
    collect()
    # each knows of its own store
    assert shared <= set(first.objects())
    assert not said(first)
    query.clock.advance(1000 * TOLD_AFTER_S)
    # one tells, the other hears of it
    collect()
    query.clock.advance(60_000)
    go_on(1)
    collect()
    assert not shared & set(first.objects())
    for partition, version in enumerate(versions):
        again = Grouped(query).open(partition)
        assert rows_of(again.load(version, have=None, read_only=True)) == query.states[version.attempt]


@pytest.mark.parametrize("told", [b"", b"[]", b'{"format": 1}', b"\xff"])
def test_a_file_that_says_nothing_lets_no_object_go(grouped: Grouped, told: bytes) -> None:
    stores, versions = grouped.begun(2)
    versions = grouped.batch(stores, versions, 0)
    (log,) = grouped.objects()
    grouped.query.storage.publish(paths.log_needs_path("a" * 32), iter([told]))
    grouped.query.clock.advance(MIN_AGE_MS + 60_000)
    for store, version in zip(stores, versions, strict=True):
        collected(grouped, store, version)
    assert log in grouped.objects()
    for partition, version in enumerate(versions):
        again = Grouped(grouped.query).open(partition)
        assert rows_of(again.load(version, have=None, read_only=True)) == grouped.query.states[version.attempt]


def test_what_a_collection_only_looked_at_is_deleted_by_the_next_one() -> None:
    grouped = Grouped(Query(min_versions=2))
    (store,), versions = grouped.begun()
    for number in range(4):
        versions = grouped.batch([store], versions, number)
    materialized(store, versions[0])
    for number in range(4):
        versions = grouped.batch([store], versions, number)
    collected(grouped, store, versions[0])
    grouped.query.clock.advance(MIN_AGE_MS + 60_000)
    before = grouped.objects()
    looked = store.collect(versions[0], dry_run=True)
    assert len(looked.deleted) >= 4, looked
    assert grouped.objects() == before
    # and one whose deletion fails, too
    grouped.query.faults.inject(Fault("delete_many", times=10))
    with fails_with("storage.failed"):
        store.collect(versions[0], dry_run=False)
    grouped.query.faults.heal()
    # what was to go is said again after another look
    grouped.query.clock.advance(60_000)
    collected(grouped, store, versions[0])
    assert len(grouped.objects()) <= len(before) - 4


def test_a_commit_in_an_object_that_was_not_listed_yet_is_not_forgotten() -> None:
    """A collection may know the objects of some seconds ago."""
    grouped = Grouped(Query(min_versions=50))
    (store,), versions = grouped.begun()
    versions = grouped.batch([store], versions, 0)
    collected(grouped, store, versions[0])
    in_object = grouped.batch([store], versions, 1)
    own = grouped.open(groups=False)
    after = grouped.batch([own], in_object, 2)
    collected(grouped, store, after[0])
    snapshot = grouped.query.begin(own, after[0], force_snapshot=True)
    newest = grouped.query.commit(own, after[0], {b"k": (PUT, b"v")}, begun=snapshot)
    for _ in range(2):
        grouped.query.clock.advance(MIN_AGE_MS + 60_000)
        collected(grouped, store, newest)
    for version in (in_object[0], after[0], newest):
        load = Grouped(grouped.query).open().load(version, have=None, read_only=True)
        assert rows_of(load) == grouped.query.states[version.attempt]


def test_a_collection_that_looked_a_moment_ago_knows_the_newest_commit(grouped: Grouped) -> None:
    (store,), (version,) = grouped.begun()
    for number in range(3):
        (version,) = grouped.batch([store], [version], number)
        collected(grouped, store, version)


def test_an_object_that_cannot_be_read_stays_and_stops_collections_of_older_commits() -> None:
    grouped = Grouped(Query(min_versions=2))
    stores, versions = grouped.begun()
    versions = grouped.batch(stores, versions, 0)
    broken = "f" * 32
    grouped.query.storage.publish(paths.log_path(broken), b"no log object")
    stopped = stores[0].collect(versions[0], dry_run=False)
    assert stopped.stopped is not None
    assert f"{broken}.log cannot be read" in stopped.stopped
    grouped.query.clock.advance(MIN_AGE_MS + 60_000)
    time.sleep(0.01)  # the storage's own times
    versions = grouped.batch(stores, versions, 1)
    # what the store has committed since is newer than anything in it
    collected(grouped, stores[0], versions[0])
    assert f"{broken}.log" in grouped.objects()


def test_a_pinned_commit_in_an_object_that_cannot_be_read_stops_the_collection() -> None:
    grouped = Grouped(Query(min_versions=1))
    (store,), versions = grouped.begun()
    versions = grouped.batch([store], versions, 0)
    (pinned,) = versions
    assert pinned.attempt is not None
    (log,) = grouped.objects()
    for number in range(4):
        versions = grouped.batch([store], versions, number)
    materialized(store, versions[0])
    for number in range(4):
        versions = grouped.batch([store], versions, number)
    write_pin(grouped.query.storage, Pin("clone", "other", "memory://other", 0, {(0, 0, "default"): (pinned.attempt,)}))
    grouped.query.storage.publish(f"{paths.LOG}/{log}", b"no log object")
    grouped.query.clock.advance(MIN_AGE_MS + 60_000)
    time.sleep(0.01)  # the storage's own times
    versions = grouped.batch([store], versions, 9)
    other = Grouped(grouped.query)
    with fails_with("file.damaged") as caught:
        assert other.open().collect(versions[0], dry_run=False).stopped is None
    assert log in caught.error.message


def test_what_was_needless_in_one_run_may_be_needed_in_the_next_which_went_back() -> None:
    query = Query(min_versions=2)
    first = Grouped(query)
    stores, versions = first.begun(2)
    for number in range(6):
        versions = first.batch(stores, versions, number)
    old, shared = versions, set(first.objects())
    for store, version in zip(stores, versions, strict=True):
        materialized(store, version)
    # the second store moves to a process that collects nothing
    other = Grouped(query)
    moved = other.open(1)
    for number in range(6, 10):
        [versions[0]] = first.batch([stores[0]], [versions[0]], number)
        [versions[1]] = other.batch([moved], [versions[1]], number)
    collected(first, stores[0], versions[0])
    query.clock.advance(1000 * TOLD_AFTER_S + 60_000)
    collected(first, stores[0], versions[0])
    query.clock.advance(1000 * TOLD_AFTER_S + 60_000)
    collected(first, stores[0], versions[0])
    told = said(first)
    assert told
    assert shared < set(first.objects())

    rewound = Query(query.storage, run="rewound", min_versions=2, clock=query.clock)
    rewound.states = query.states
    again = Grouped(rewound)
    store = again.open(1)
    begun = rewound.begin(store, old[1], force_snapshot=True)
    version = rewound.commit(store, old[1], {b"again": (PUT, b"1")}, begun=begun)
    for number in range(4):
        [version] = again.batch([store], [version], number)
    for _ in range(3):
        collected(again, store, version)
        query.clock.advance(MIN_AGE_MS + 60_000)
    # nobody has collected the first store in this run
    assert shared <= set(first.objects())
    assert not set(told) & set(said(again))
    load = Grouped(rewound).open(0).load(old[0], have=None, read_only=True)
    assert rows_of(load) == rewound.states[old[0].attempt]


def test_an_object_that_could_not_be_read_once_goes_like_any_other(grouped: Grouped) -> None:
    grouped = Grouped(Query(min_versions=2))
    (store,), versions = grouped.begun()
    for number in range(4):
        versions = grouped.batch([store], versions, number)
    unread = grouped.objects()[0]
    grouped.query.faults.inject(Fault("read_tail", f"{paths.LOG}/{unread}", effect=Effect.TRUNCATE))
    other = Grouped(grouped.query)
    store = other.open()
    assert store.collect(versions[0], dry_run=False).stopped is not None
    materialized(store, versions[0])
    for number in range(4):
        versions = other.batch([store], versions, number)
    for _ in range(2):
        collected(other, store, versions[0])
        grouped.query.clock.advance(MIN_AGE_MS + 60_000)
    collected(other, store, versions[0])
    assert unread not in grouped.objects()


@pytest.mark.parametrize("mode", ["full", "rolling"])
def test_a_store_whose_commits_are_all_in_objects_keeps_a_file_in_its_directory(mode: str) -> None:
    """Spark's state reader would not know of its partition on an object store."""
    settings = {"compaction__mode": mode, "compaction__fullInterval": 3, "compaction__rollingParts": 2}
    grouped = Grouped(Query(min_versions=2, **settings))
    (store,), (version,) = grouped.begun()
    name = grouped.query.storage.list("0/0")[0].name
    for number in range(8):
        (version,) = grouped.batch([store], [version], number)
    assert {entry.name for entry in grouped.query.storage.list("0/0")} == {name}
    for _ in range(3):
        collected(grouped, store, version)
        grouped.query.clock.advance(10 * MIN_AGE_MS)
    assert {entry.name for entry in grouped.query.storage.list("0/0")} == {name}
    assert len(grouped.objects()) < 8
    (kept,) = (one for one in store.collect(version, dry_run=True).verdicts if one.path == name)
    assert "Spark's state reader" in kept.reason
    # where there is a newer file it goes like any other
    commit = grouped.query.commit(store, version, {b"own": (PUT, b"1")}, before={})
    for number in range(3):
        (commit,) = grouped.batch([store], [commit], number)
    for _ in range(3):
        collected(grouped, store, commit)
        grouped.query.clock.advance(10 * MIN_AGE_MS)
    assert name not in {entry.name for entry in grouped.query.storage.list("0/0")}


def test_what_a_collection_says_of_parts_and_objects() -> None:
    """A part goes with its object: no part is counted as deleted, each object once."""
    grouped = Grouped(Query(min_versions=2))
    stores, versions = grouped.begun(2)
    for number in range(4):
        versions = grouped.batch(stores, versions, number)
    for store, version in zip(stores, versions, strict=True):
        materialized(store, version)
    for number in range(4):
        versions = grouped.batch(stores, versions, number)
    for store, version in zip(stores, versions, strict=True):
        collected(grouped, store, version)
    grouped.query.clock.advance(MIN_AGE_MS + 60_000)
    before = {entry.name: entry.size for entry in grouped.query.storage.list(paths.LOG)}
    found = [store.collect(version, dry_run=False) for store, version in zip(stores, versions, strict=True)]
    gone = {name: size for name, size in before.items() if name not in grouped.objects()}
    assert len(gone) >= 3
    assert not [one for one in found[0].deleted if one.kind != "commit"]
    logs = {one.path: one.size for one in found[1].deleted if one.kind == "log"}
    assert logs == {f"{paths.LOG}/{name}": size for name, size in gone.items()}
    assert not [one for both in found for one in both.deleted if is_part(one.path)]
    assert found[1].metrics()["delete_log_bytes"] == sum(gone.values())
    # nor is one said again by who only asks, before there was another look
    asked = stores[1].collect(versions[1], dry_run=True)
    assert not [one for one in asked.deleted if one.kind == "log"]


def test_a_process_whose_stores_have_settled_hears_and_is_heard_all_the_same() -> None:
    grouped = Grouped(Query(min_versions=2))
    stores, versions = grouped.begun()
    for number in range(4):
        versions = grouped.batch(stores, versions, number)
    collected(grouped, stores[0], versions[0])
    assert stores[0].is_settled(versions[0])
    grouped.query.clock.advance(1000 * TOLD_AFTER_S)
    assert not stores[0].is_settled(versions[0])
    collected(grouped, stores[0], versions[0])
    assert stores[0].is_settled(versions[0])


def test_a_file_of_needs_that_the_storage_did_not_give_is_read_again() -> None:
    query = Query(min_versions=2)
    homes = [Grouped(query), Grouped(query)]
    stores, versions = homes[0].begun(2)
    for number in range(4):
        versions = homes[0].batch(stores, versions, number)
    shared = set(homes[0].objects())
    stores[1] = homes[1].open(1)
    for store, version in zip(stores, versions, strict=True):
        materialized(store, version)
    for number in range(4):
        for place, home in enumerate(homes):
            [versions[place]] = home.batch([stores[place]], [versions[place]], number)
    for _ in range(2):
        collected(homes[0], stores[0], versions[0])
        query.clock.advance(1000 * TOLD_AFTER_S + 60_000)
    collected(homes[0], stores[0], versions[0])
    (told,) = said(homes[0])
    query.faults.inject(Fault("read", told, times=1))
    query.faults.inject(Fault("read_tail", told, times=1))
    for _ in range(2):
        collected(homes[1], stores[1], versions[1])
        query.clock.advance(60_000)
    assert not shared & set(homes[0].objects())
    # and the file itself goes when this process says all that it said
    stores[0] = homes[1].open(0)
    versions = homes[1].batch(stores, versions, 9)
    for store, version in zip(stores, versions, strict=True):
        collected(homes[1], store, version)
    query.clock.advance(60_000)
    collected(homes[1], stores[1], versions[1])
    assert told not in said(homes[1])


def test_of_files_of_needs_by_processes_that_are_gone_those_stay_that_say_most(grouped: Grouped) -> None:
    """The stores of each lie on several others since, none of which collects all of them."""
    stores, versions = grouped.begun(3)
    for number in range(3):
        versions = grouped.batch(stores, versions, number)
    run = QueryRun(1, grouped.query.run)
    known = {name: store.identity for name, store in zip("abc", stores, strict=True)}

    def told(name: str, **confirmed: int) -> str:
        path = paths.log_needs_path(name * 32)
        needs = {known[key]: Needs.of(version, ()) for key, version in confirmed.items()}
        grouped.query.storage.publish(path, iter([to_bytes(run, needs)]))
        return path

    older, same, both = told("1", a=1, b=1), told("2", a=2), told("3", b=2, c=1)
    alone, again = told("4", a=2, c=1), told("5", b=2)
    logs = LogObjects(grouped.query.storage, grouped.query.clock)
    logs.tell_needs(run, known["a"], 0, [])
    logs.parts_of(known["a"])

    def over(*, dry_run: bool) -> list[str]:
        return [one.path for one in logs.needless(run, dry_run=dry_run) if paths.is_log_needs(one.path)]

    # of those that say the same the last one stays; each is said once to those who only ask, and once to who deletes
    assert sorted(over(dry_run=True)) == [older, same, both]
    assert over(dry_run=True) == []
    assert sorted(over(dry_run=False)) == [older, same, both]
    assert [over(dry_run=False), over(dry_run=False), over(dry_run=True)] == [[], [], []]
    assert {alone, again} <= {f"{paths.LOG}/{name}" for name in said(grouped)}


def test_versions_that_were_collected_before_a_rewind_stop_no_collection_where_their_parts_are_still_there() -> None:
    query = Query(min_versions=2)
    first = Grouped(query)
    stores, versions = first.begun(2)
    for number in range(9):
        if number in (1, 6):
            # a file, which goes by itself
            versions = [
                query.commit(store, version, {b"file": (PUT, b"1")}, force_snapshot=number == 6)
                for store, version in zip(stores, versions, strict=True)
            ]
        else:
            versions = first.batch(stores, versions, number)
    # the objects stay for the second store; what the first one's parts refer to goes
    for _ in range(3):
        collected(first, stores[0], versions[0])
        query.clock.advance(MIN_AGE_MS + 60_000)
    there = {entry.name for entry in stores[0]._files.list()}
    assert len([name for name in there if is_part(name) and number_of(name) < 8]) >= 4
    assert not [name for name in there if not is_part(name) and number_of(name) < 8]
    rewound = Query(query.storage, run="rewound", min_versions=8, clock=query.clock)
    rewound.states = query.states
    again = Grouped(rewound)
    store = again.open(0)
    (version,) = again.batch([store], [versions[0]], 0)
    collected(again, store, version)
    assert rows_of(again.open(0).load(version, have=None, read_only=True)) == rewound.states[version.attempt]
    # what the newest version itself needs is never taken for collected
    lost = next(entry.name for entry in query.storage.list("0/0") if number_of(entry.name) == 8)
    query.storage.delete_many([f"0/0/{lost}"])
    with fails_with("file.missing"):
        Grouped(rewound).open(0).collect(version, dry_run=False)


def test_what_no_store_needed_in_an_older_run_is_needless_to_a_newer_one_once_its_stores_say_so(
    grouped: Grouped,
) -> None:
    """The newer one may stand on an older batch."""
    stores, versions = grouped.begun(2)
    versions = grouped.batch(stores, versions, 0)
    logs = LogObjects(grouped.query.storage, grouped.query.clock)
    older, newer = QueryRun(1, "older"), QueryRun(2, "newer")
    logs.parts_of(stores[0].identity)

    def needless(run: QueryRun) -> list[str]:
        return [one.path.rpartition("/")[2] for one in logs.needless(run, dry_run=True)]

    for number, store in enumerate(stores):
        assert needless(older) == []
        logs.tell_needs(older, store.identity, versions[number].version, [])
    # nobody has asked before, so it is said now; and not to a newer run
    assert needless(newer) == []
    for store, version in zip(stores, versions, strict=True):
        assert needless(newer) == []
        logs.tell_needs(newer, store.identity, version.version, [])
    assert needless(newer) == [name for name in grouped.objects() if name.endswith(".log")]
