"""Checkpoint format v1: which attempt of a version counts."""

from __future__ import annotations

import dataclasses

import pytest

from lamina.format.attempt_id import AttemptId
from lamina.format.entries import PUT
from lamina.format.manifest import Base, CommitManifest, Run
from lamina.store import CommitRequest, Version
from lamina.store.versioned_store import VersionedStore
from lamina.store.versions import arbitration
from lamina.testing.expect import fails_with
from tests.unit.store.writing import FAMILY, Query, damage, entries, file_name

EMPTY = Version(0)


def first_format(query: Query | None = None, run: str = "run") -> Query:
    """A run over a new checkpoint, or over that of another run, under format v1."""
    if query is None:
        return Query(format_version=1, run=run)
    fresh = Query(query.storage, format_version=1, run=run)
    fresh.states = query.states
    return fresh


def put(query: Query, store: VersionedStore, base: Version, value: bytes, task: int = 0) -> Version:
    """One attempt after `base`, of which Spark knows the number only."""
    begun = query.begin(store, Version(base.version), task_attempt=task or next(query.tasks))
    version = query.commit(store, Version(base.version), {b"k": (PUT, value)}, begun=begun, task_attempt=task)
    assert begun.base_attempt == (base.attempt if base.version else None)
    return version


def counts(query: Query, version: Version) -> bool:
    return query.open().resolve(Version(version.version)) == version.attempt


def test_a_version_is_found_by_its_number() -> None:
    query = first_format()
    store = query.open()
    version = EMPTY
    for number in range(5):
        version = put(query, store, version, b"%d" % number)
    for number in range(1, 6):
        query.assert_restores(query.open(), Version(number))


def test_a_retry_of_a_task_replaces_what_its_first_attempt_wrote() -> None:
    query = first_format()
    store = query.open()
    base = put(query, store, EMPTY, b"base")
    put(query, store, base, b"first", task=10)
    retry = put(query, store, base, b"retry", task=11)
    assert counts(query, retry)


def test_the_second_action_of_a_batch_counts_and_the_next_version_stands_on_it() -> None:
    query = first_format()
    store = query.open()
    base = put(query, store, EMPTY, b"base", task=1)
    for number in range(3):
        put(query, store, base, b"first action %d" % number, task=10 + 2 * number)
        base = put(query, store, base, b"second action %d" % number, task=11 + 2 * number)
        assert counts(query, base)


def test_a_zombie_that_publishes_after_the_next_version_does_not_count() -> None:
    query = first_format()
    live, zombie = query.open(), query.open()
    base = put(query, live, EMPTY, b"base", task=1)
    begun = query.begin(zombie, Version(1), task_attempt=99)
    second = put(query, live, base, b"second", task=2)
    third = put(query, live, second, b"third", task=3)
    query.commit(zombie, Version(1), {b"k": (PUT, b"zombie")}, begun=begun, task_attempt=99)
    assert counts(query, second)
    assert counts(query, third)
    fourth = put(query, query.open(), third, b"fourth", task=4)
    query.assert_restores(query.open(), Version(fourth.version))


def test_a_zombie_that_saw_the_version_before_it_was_built_on_does_not_count_either() -> None:
    query = first_format()
    live, zombie = query.open(), query.open()
    base = put(query, live, EMPTY, b"base", task=1)
    second = put(query, live, base, b"second", task=2)
    begun = query.begin(zombie, Version(1), task_attempt=99)
    put(query, live, second, b"third", task=3)
    query.commit(zombie, Version(1), {b"k": (PUT, b"zombie")}, begun=begun, task_attempt=99)
    assert counts(query, second)


def without(query: Query, *versions: Version) -> None:
    """Their files are collected, or lost."""
    query.storage.delete_many([f"0/0/{file_name(version.attempt)}" for version in versions if version.attempt])


@pytest.mark.parametrize("kept", [[], [3], [4], [3, 4]], ids=str)
def test_a_zombie_does_not_count_although_the_file_of_the_attempt_that_counted_is_gone(kept: list[int]) -> None:
    """The versions after it, as far as they are there, say which attempt they stand on."""
    query = first_format()
    live, zombie = query.open(), query.open()
    versions = [put(query, live, EMPTY, b"base", task=1)]
    begun = query.begin(zombie, Version(1), task_attempt=99, force_snapshot=True)
    for number in range(2, 6):
        versions.append(query.commit(live, Version(number - 1), {b"k": (PUT, b"x")}, force_snapshot=True))
    query.commit(zombie, Version(1), {b"k": (PUT, b"zombie")}, begun=begun)
    assert counts(query, versions[1])
    without(query, *(version for version in versions[:4] if version.version not in kept))
    with fails_with("state.not-retained"):
        query.open().resolve(Version(2))
    for number in (*kept, 5):
        query.assert_restores(query.open(), Version(number))


def test_of_two_zombies_one_after_the_other_none_counts() -> None:
    query = Query(format_version=1, min_versions=1)
    live, first, second = query.open(), query.open(), query.open()
    versions = [put(query, live, EMPTY, b"base", task=1)]
    begun_first = query.begin(first, Version(1), task_attempt=98, force_snapshot=True)
    versions.append(put(query, live, versions[-1], b"2", task=2))
    begun_second = query.begin(second, Version(2), task_attempt=99, force_snapshot=True)
    for number in range(3, 6):
        versions.append(put(query, live, versions[-1], b"%d" % number, task=number))
    query.commit(first, Version(1), {b"k": (PUT, b"zombie")}, begun=begun_first)
    query.commit(second, Version(2), {b"k": (PUT, b"zombie")}, begun=begun_second)
    without(query, *versions[:3])
    for number in (2, 3):
        with fails_with("state.not-retained"):
            query.open().resolve(Version(number))
    assert counts(query, versions[3])


def test_a_lone_attempt_counts_where_the_version_after_it_is_damaged() -> None:
    """A query is restarted from the version before the damage."""
    query = first_format()
    store = query.open()
    versions = [put(query, store, EMPTY, b"1")]
    versions.append(put(query, store, versions[-1], b"2"))
    path = f"0/0/{file_name(versions[1].attempt or '')}"
    damage(query.storage, path, query.storage.size(path) - 70)
    query.assert_restores(query.open(), Version(1))


def test_what_a_forced_snapshot_stands_on_counts() -> None:
    query = first_format()
    live, zombie = query.open(), query.open()
    base = put(query, live, EMPTY, b"base", task=1)
    begun = query.begin(zombie, Version(1), task_attempt=99)
    second = put(query, live, base, b"second", task=2)
    query.commit(live, Version(2), {b"k": (PUT, b"third")}, force_snapshot=True)
    query.commit(zombie, Version(1), {b"k": (PUT, b"zombie")}, begun=begun, task_attempt=99)
    assert counts(query, second)


def test_a_writer_of_an_older_run_refuses_to_publish() -> None:
    older = first_format(run="older")
    store = older.open()
    base = put(older, store, EMPTY, b"base")
    newer = first_format(older, run="newer")
    put(newer, newer.open(), base, b"newer")
    with fails_with("state.superseded") as caught:
        put(older, store, base, b"older")
    assert "newer" in caught.error.message


def test_a_commit_that_waited_while_a_newer_run_began_is_not_published() -> None:
    older = first_format(run="older")
    store = older.open()
    begun = older.begin(store, EMPTY)
    request = CommitRequest(begun.attempt, 1, EMPTY, {}, (FAMILY,), 1, 1)
    waiting = store.accept(request, {"increment": [entries([(0, PUT, b"k", b"older")])]}, most_held=1 << 20)
    newer = first_format(older, run="newer")
    put(newer, newer.open(), EMPTY, b"newer")
    with fails_with("state.superseded"):
        waiting.publish()


def test_of_two_runs_at_once_only_the_newer_one_goes_on() -> None:
    older = first_format(run="older")
    store = older.open()
    base = put(older, store, EMPTY, b"base")
    begun = older.begin(store, Version(1))
    newer = first_format(older, run="newer")
    live = put(newer, newer.open(), base, b"newer")
    with fails_with("state.superseded"):
        older.commit(store, Version(1), {b"k": (PUT, b"older")}, begun=begun)
    assert counts(newer, live)


def test_a_later_run_executes_a_version_again_and_counts() -> None:
    older = first_format(run="older")
    base = put(older, older.open(), EMPTY, b"base", task=1)
    put(older, older.open(), base, b"older", task=1000)
    newer = first_format(older, run="newer")
    again = put(newer, newer.open(), base, b"newer", task=2)
    assert counts(newer, again)


def test_after_a_rewind_what_the_older_run_built_on_its_own_attempt_says_nothing() -> None:
    older = first_format(run="older")
    store = older.open()
    versions = [EMPTY]
    for number in range(4):
        versions.append(put(older, store, versions[-1], b"older %d" % number))
    newer = first_format(older, run="newer")
    again = put(newer, newer.open(), versions[2], b"newer 3")
    assert counts(newer, again)
    onward = put(newer, newer.open(), again, b"newer 4")
    assert counts(newer, again)
    assert counts(newer, onward)


def test_a_store_that_moved_between_executors_stands_on_what_counts() -> None:
    query = first_format()
    here, there = query.open(), query.open()
    base = put(query, here, EMPTY, b"1", task=1)
    second = put(query, there, base, b"2", task=2)
    third = put(query, here, second, b"3", task=3)
    fourth = put(query, there, third, b"4", task=4)
    manifest = here.manifest(Version(4))
    assert manifest is not None
    assert [attempt for attempt, _ in manifest.lineage] == [third.attempt, second.attempt, base.attempt]
    assert counts(query, fourth)


def test_a_version_that_changed_nothing_is_written_all_the_same() -> None:
    query = first_format()
    store = query.open()
    base = put(query, store, EMPTY, b"base")
    same = query.commit(store, Version(1), {})
    assert counts(query, same)
    query.assert_restores(query.open(), Version(2))
    assert base.attempt != same.attempt


def test_the_attempts_that_were_there_when_a_version_was_opened_are_recorded() -> None:
    query = first_format()
    store = query.open()
    first = put(query, store, EMPTY, b"first", task=1)
    second = put(query, store, EMPTY, b"second", task=2)
    manifest = store.manifest(second)
    assert manifest is not None
    assert manifest.run.siblings == (first.attempt,)
    assert manifest.run.task_attempt == 2


def test_an_attempt_that_saw_another_one_replaces_it_whatever_the_task_numbers_say() -> None:
    """Without a task there are no task attempt ids that tell the order."""
    query = first_format()
    store = query.open()
    put(query, store, EMPTY, b"first", task=9)
    second = put(query, store, EMPTY, b"second", task=8)
    third = put(query, store, EMPTY, b"third", task=7)
    assert not counts(query, second)
    assert counts(query, third)


def test_a_version_without_a_file_is_not_retained_or_missing() -> None:
    query = first_format()
    store = query.open()
    version = EMPTY
    for number in range(3):
        version = put(query, store, version, b"%d" % number)
    with fails_with("file.missing"):
        store.resolve(Version(9))
    query.storage.delete_many([f"0/0/{entry.name}" for entry in query.storage.list("0/0") if entry.name[0] in "12"])
    with fails_with("state.not-retained"):
        store.resolve(Version(1))


def test_ten_thousand_versions_with_two_attempts_each_are_told_apart() -> None:
    """Every version was executed twice, and which attempt counts follows from the last version down to the first."""
    query = first_format()
    put(query, query.open(), EMPTY, b"pattern")
    pattern = query.open().manifest(Version(1))
    assert pattern is not None
    built_on, other = (
        [AttemptId.for_file(number, 1, f"{kind}{number:031x}") for number in range(10_001)] for kind in "ab"
    )

    def manifest(attempt: str) -> CommitManifest:
        number = AttemptId.parse(attempt).version
        base = Base(number - 1, str(built_on[number - 1]))
        return dataclasses.replace(pattern, attempt=attempt, version=number, base=base, run=Run(1, "run", 0, ()))

    by_version = {number: [built_on[number], other[number]] for number in range(1, 10_001)}
    assert arbitration.arbitrate(by_version, 1, manifest) == str(built_on[1])
    assert arbitration.arbitrate(by_version, 10_000, manifest) == str(other[10_000])
