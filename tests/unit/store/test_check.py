"""The counts of rows that fsck takes: each retained version's, in every mode, for little more than one merge."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lamina.components import SystemClock
from lamina.format.entries import APPEND, DELETE, PUT
from lamina.format.manifest import Count
from lamina.storage import Storage
from lamina.store import CommitRequest, Version
from lamina.store.check.checker import StoreChecker
from lamina.store.check.checker import row_counts as counts
from lamina.store.check.report import COUNTS, StoreCheck
from lamina.store.versioned_store import VersionedStore
from lamina.testing.expect import fails_with
from tests.unit.store.meeting import Meeting
from tests.unit.store.writing import FAMILY, Change, Query, damage, entries, file_name

EMPTY = Version(0)
RETAINED = range(5, 25)

MODES: dict[str, Mapping[str, Any]] = {
    "background": {},
    "a long chain": {"compaction__maxChain": 5},
    "full, every 3": {"compaction__mode": "full", "compaction__fullInterval": 3},
    "full, every 1": {"compaction__mode": "full", "compaction__fullInterval": 1},
    "rolling": {"compaction__mode": "rolling", "compaction__rollingParts": 3},
}


def lie(monkeypatch: pytest.MonkeyPatch, versions: Sequence[int]) -> None:
    """The manifests of `versions` say one row too many."""
    commit = VersionedStore.commit

    def lying(store: VersionedStore, request: Any, sections: Any) -> Any:
        if request.version in versions:
            wrong = {family: Count(count.rows + 1, count.bytes) for family, count in request.counts.items()}
            request = replace(request, counts=wrong)
        return commit(store, request, sections)

    monkeypatch.setattr(VersionedStore, "commit", lying)


@pytest.mark.parametrize("format_version", [1, 2])
def test_what_is_far_away_is_read_side_by_side(format_version: int) -> None:
    """Manifests, files that are verified, and the sections whose rows are counted."""
    query = Query(format_version=format_version)
    versions = query.run_batches(query.open(), EMPTY, 24)
    storage = Meeting(query.faults)
    storage.expected = 8
    # without ids the newest manifest says which the others are
    storage.alone = 1 if format_version == 1 else 0
    most = []

    def next_step(_: int) -> None:
        most.append(max(storage.most.values()))
        storage.most.clear()

    named = {version.version: version.attempt if format_version > 1 else None for version in versions}
    state = Storage(query.storage.url, backend=storage)
    found = StoreChecker(state, query.open().identity, named, clock=query.clock, plan=next_step).check()
    assert (found.whole, found.problems) == (tuple(range(1, 25)), ())
    next_step(0)
    assert len(most) == 3 and min(most) >= 8


def changed(number: int) -> dict[bytes, Change]:
    """Keys of which more come than go with each version, so that one version's count is not another's."""
    came = {b"%d-%d" % (number, key): (PUT, b"1") for key in range(9)}
    went = {b"%d-%d" % (number - 3, key): (DELETE, b"") for key in range(5)}
    return {**came, **went, b"list": (APPEND, b"(%d)" % number)}


def written(query: Query, store: VersionedStore) -> dict[int, Version]:
    """24 versions, of which some changed nothing, one was forced to be a snapshot and one began with nothing."""
    versions = {0: EMPTY}
    for number in range(1, RETAINED.stop):
        base = versions[number - 1]
        if number in (8, 9) and query.format_version == 2:
            versions[number] = Version(number, base.attempt)
        elif number == 12:
            versions[number] = query.commit(store, base, {b"forced": (PUT, b"1")}, force_snapshot=True)
        elif number == 20:
            versions[number] = query.commit(store, base, {b"new": (PUT, b"1")}, load_empty=True)
        else:
            versions[number] = query.commit(store, base, changed(number))
        store.confirm(versions[number])
        compacted = store.compact() if number % 5 == 0 else None
        if compacted is not None:
            store.adopt(compacted.made)
    return versions


def check(
    storage: Storage, store: VersionedStore, named: Mapping[int, str | None], read: Any = lambda _: None
) -> StoreCheck:
    return StoreChecker(storage, store.identity, named, clock=SystemClock(), read=read).check()


def named(query: Query, versions: Mapping[int, Version]) -> dict[int, str | None]:
    """The versions in Spark's commit log."""
    return {number: versions[number].attempt if query.format_version == 2 else None for number in RETAINED}


@pytest.mark.parametrize("format_version", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_the_counts_of_whole_versions_are_right(mode: str, format_version: int) -> None:
    query = Query(format_version=format_version, min_versions=len(RETAINED) - 1, **MODES[mode])
    store = query.open()
    versions = written(query, store)
    found = check(query.storage, store, named(query, versions))
    assert found.problems == ()
    assert found.whole == tuple(RETAINED)
    assert found.rows == len(query.states[versions[RETAINED[-1]].attempt])


@pytest.mark.parametrize("wrong", [[5], [7], [12], [16], [20], [22], [24], [5, 14, 23, 24]], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_a_manifest_that_counts_wrongly_is_found_in_any_retained_version(
    mode: str, wrong: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lie(monkeypatch, wrong)
    query = Query(min_versions=len(RETAINED) - 1, **MODES[mode])
    store = query.open()
    versions = written(query, store)
    found = check(query.storage, store, named(query, versions))
    assert {problem.kind for problem in found.problems} == {COUNTS}
    # the versions after 7 that changed nothing are the same file
    assert found.damaged == tuple(number for number in RETAINED if number in wrong or (7 in wrong and number in (8, 9)))
    assert len(found.problems) == len(wrong)


@pytest.mark.parametrize("damaged", [13, 18, 22, 24])
@pytest.mark.parametrize("mode", MODES)
def test_whole_versions_are_counted_beside_broken_ones(
    mode: str, damaged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads that a version is whole restarts from it."""
    wrong = [7, 14, 23]
    lie(monkeypatch, wrong)
    query = Query(min_versions=len(RETAINED) - 1, **MODES[mode])
    store = query.open()
    versions = written(query, store)
    attempts = named(query, versions)
    damage(query.storage, f"0/0/{file_name(versions[damaged].attempt or '')}", 40)
    found = check(query.storage, store, attempts)
    broken = {version for one in found.problems if one.kind != COUNTS for version in one.versions}
    assert damaged in broken
    counted = {version for one in found.problems if one.kind == COUNTS for version in one.versions}
    assert counted == {*wrong, 8, 9} - broken
    newest = RETAINED[-1]
    assert found.rows == (None if newest in broken else len(query.states[versions[newest].attempt]))


def test_a_small_file_is_verified_in_one_request() -> None:
    query = Query()
    store = query.open()
    version = query.run_batches(store, Version(0), 1)[-1]
    calls, read = len(query.faults.calls), list[int]()
    name = file_name(version.attempt or "")
    store._files.verify(name, read.append)
    assert [operation for operation, _ in query.faults.calls[calls:]] == ["read_tail"]
    manifest = store.manifest(version)
    assert manifest is not None
    assert read == [section.length for section in manifest.sections]
    damage(query.storage, f"0/0/{name}", manifest.sections[0].offset + 9)
    with fails_with("file.damaged", name):
        store._files.verify(name, read.append)


def test_a_version_whose_attempt_nobody_knows_is_broken_alone() -> None:
    query = Query()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 3)
    log = {version.version: version.attempt for version in versions}
    for unknown in ("rocksdb-id", f"L1.2.1.g.group.{'0f' * 16}"):
        found = check(query.storage, store, {**log, 2: unknown})
        assert [(problem.kind, problem.versions) for problem in found.problems] == [("attempt-id.unknown", (2,))]
        assert unknown in found.problems[0].message
        assert found.whole == (1, 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_flipped_byte_of_any_file_that_a_version_needs_is_found(mode: str) -> None:
    """Increments, snapshots, rewrites and segments, at their ends and in between."""
    query = Query(min_versions=len(RETAINED) - 1, **MODES[mode])
    store = query.open()
    attempts = named(query, written(query, store))
    unneeded = sum(number for number, _ in check(query.storage, store, attempts).orphans.values())
    files = [entry for entry in query.storage.list("0/0") if entry.name.endswith((".lam", ".seg"))]
    assert mode != "background" or any(entry.name.endswith(".seg") for entry in files)
    drawn = random.Random(1)
    for entry in files:
        path = f"0/0/{entry.name}"
        content = bytes(query.storage.read(path))
        found = []
        for position in (0, entry.size - 1, *(drawn.randrange(entry.size) for _ in range(3))):
            damage(query.storage, path, position)
            found.append(check(query.storage, store, attempts))
            query.storage.publish(path, content)
        if any(one.problems for one in found):
            # which byte of a header or footer says the format nobody can check
            assert all(one.damaged or {problem.kind for problem in one.problems} == {"file.version"} for one in found)
            assert all(any(entry.name in problem.message for problem in one.problems) for one in found)
        else:
            unneeded -= 1
    assert unneeded == 0, "only what no version needs may be damaged without notice"
    assert check(query.storage, store, attempts).problems == ()


@pytest.mark.parametrize("damaged", [False, True])
def test_as_many_bytes_are_read_as_were_planned(damaged: bool) -> None:
    """A bar ends at its end."""
    query = Query()
    store = query.open()
    attempts = {version.version: version.attempt for version in query.run_batches(store, EMPTY, 8)}
    if damaged:
        damage(query.storage, f"0/0/{file_name(attempts[3] or '')}", 40)
    planned: list[int] = []
    read: list[int] = []
    for contents in (False, True):
        planned.clear()
        read.clear()
        checker = StoreChecker(
            query.storage,
            store.identity,
            attempts,
            clock=query.clock,
            read=read.append,
            plan=planned.append,
            contents=contents,
        )
        found = checker.check()
        assert bool(found.damaged) == (damaged and contents)
        assert sum(read) == sum(planned) > 0


def test_rows_of_a_column_family_that_was_dropped_are_not_counted() -> None:
    query = Query()
    store = query.open()
    first = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    begun = query.begin(store, first)
    kept = replace(FAMILY, id=1, name="kept")
    request = CommitRequest(begun.attempt, 2, first, {1: Count(1, 2)}, (kept,), 2, 1)
    store.commit(request, {"increment": [entries([(1, PUT, b"b", b"2")])]})
    found = check(query.storage, store, {1: first.attempt, 2: begun.attempt})
    assert found.problems == ()
    assert found.rows == 1


def test_counting_all_versions_reads_each_file_at_most_twice_more() -> None:
    query = Query()
    store = query.open()
    rows = random.Random(1)
    version = query.commit(store, EMPTY, {rows.randbytes(16): (PUT, rows.randbytes(100)) for _ in range(5_000)})
    attempts: dict[int, str | None] = {1: version.attempt}
    for _ in range(30):
        version = query.commit(store, version, {rows.randbytes(16): (PUT, rows.randbytes(100)) for _ in range(50)})
        attempts[version.version] = version.attempt
    read: list[int] = []
    query.faults.calls.clear()
    found = check(query.storage, store, attempts, read.append)
    assert found.problems == ()
    assert found.rows == 6_500
    assert sum(read) <= 3 * found.bytes
    first = [path for operation, path in query.faults.calls if operation != "list" and "/1_" in path]
    assert len(first) < 15


def test_files_that_are_collected_while_rows_are_counted_are_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(compaction__maxChain=100, min_versions=20)
    store = query.open()
    versions = [EMPTY]
    for number in range(1, 31):
        versions.append(query.run_batches(store, versions[-1], 1)[0])
        store.confirm(versions[-1])
        compacted = store.compact()
        if compacted is not None:
            store.adopt(compacted.made)
        if number == 20:
            lie(monkeypatch, [25])
    named = {version.version: version.attempt for version in versions[1:]}
    manifests = {number: store.manifest(versions[number]) for number in named}
    needed = {
        reference.path or file_name(str(named[number]))
        for number, manifest in manifests.items()
        if number >= 10 and manifest is not None
        for reference in manifest.references
    }
    still = set(named)
    counted = counts.counted

    def collected_first(*arguments: Any) -> Any:
        if len(still) == len(named):
            still.difference_update(range(1, 10))
            gone = [entry.name for entry in query.storage.list("0/0") if entry.name not in needed]
            query.storage.delete_many([f"0/0/{name}" for name in gone])
        return counted(*arguments)

    monkeypatch.setattr(counts, "counted", collected_first)
    progress: Counter[str] = Counter()
    check = StoreChecker(
        query.storage, store.identity, named, clock=query.clock, still_named=lambda: still,
        read=lambda count: progress.update(read=count), plan=lambda count: progress.update(planned=count),
    ).check()  # fmt: skip
    assert check.collected == tuple(range(1, 10))
    assert [(problem.kind, problem.versions) for problem in check.problems] == [(COUNTS, (25,))]
    assert check.whole == tuple(number for number in range(10, 31) if number != 25)
    assert check.rows == len(query.states[str(named[30])])
    assert progress["read"] == progress["planned"] > 0
