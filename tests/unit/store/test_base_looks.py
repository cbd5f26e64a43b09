"""Round trips of a batch on a remote storage: nobody waits for the look for the base's file."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from lamina.format.entries import PUT
from lamina.store import Version
from lamina.testing import Fault
from lamina.testing.expect import fails_with
from tests.unit.store.writing import Query, file_name

EMPTY = Version(0)


def remote() -> Query:
    query = Query()
    query.faults.remote = True
    query.storage._remote = True
    return query


def test_a_batch_whose_table_is_there_takes_one_publication_and_a_look_beside_it() -> None:
    query = remote()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"0")})
    for number in range(5):
        query.faults.calls.clear()
        begun = query.begin(store, base)
        base = query.commit(store, base, {b"a": (PUT, b"%d" % number)}, begun=begun, before=query.states[base.attempt])
        assert sorted(operation for operation, _ in query.faults.calls) == ["publish", "size"]
    query.assert_restores(query.open(), base)


def test_an_attempt_begins_before_the_storage_has_said_that_its_base_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    query = remote()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    asked, answered = threading.Event(), threading.Event()
    has_commit = store._attempts._looks._has_commit

    def late(attempt: str) -> bool:
        asked.set()
        assert answered.wait(60)
        return has_commit(attempt)

    monkeypatch.setattr(store._attempts._looks, "_has_commit", late)
    begun = query.begin(store, base)
    assert asked.wait(60)
    before = query.states[base.attempt]
    finished: list[Version] = []
    commit = threading.Thread(
        target=lambda: finished.append(query.commit(store, base, {b"a": (PUT, b"2")}, begun=begun, before=before))
    )
    commit.start()
    assert not finished
    answered.set()
    commit.join()
    query.assert_restores(query.open(), finished[0])


def test_a_base_that_was_lost_while_nothing_changed_is_known_to_the_next_attempt() -> None:
    """Of the first one there is no commit that could have waited for the answer."""
    query = remote()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    query.storage.delete_many([f"0/0/{file_name(base.attempt or '')}"])
    assert not query.begin(store, base).lost
    look = store._attempts._looks._newest
    assert look is not None and not look.found()
    again = query.begin(store, base)
    assert again.lost and again.snapshot


def test_attempts_on_one_base_share_the_look_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    query = remote()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    answered = threading.Event()
    looks: list[str] = []

    def late(attempt: str) -> bool:
        looks.append(attempt)
        return answered.wait(60)

    monkeypatch.setattr(store._attempts._looks, "_has_commit", late)
    begun = [query.begin(store, base) for _ in range(5)][-1]
    answered.set()
    before = query.states[base.attempt]
    query.commit(store, base, {b"a": (PUT, b"2")}, begun=begun, before=before)
    assert len(looks) == 1


def test_a_base_that_was_lost_fails_the_commit_and_the_next_attempt_writes_everything() -> None:
    query = remote()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    assert base.attempt is not None
    name = file_name(base.attempt)
    query.storage.delete_many([f"0/0/{name}"])
    before = query.states[base.attempt]
    with fails_with("state.base") as caught:
        query.commit(store, base, {b"b": (PUT, b"2")}, begun=query.begin(store, base), before=before)
    assert name in caught.error.message
    begun = query.begin(store, base)
    assert begun.lost and begun.snapshot
    query.assert_restores(query.open(), query.commit(store, base, {b"b": (PUT, b"2")}, begun=begun, before=before))


def test_a_snapshot_stands_on_nothing_and_so_on_no_base_that_was_lost() -> None:
    query = remote()
    query.settings = replace(query.settings, compaction_mode="full", compaction_full_interval=1)
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    assert base.attempt is not None
    query.storage.delete_many([f"0/0/{file_name(base.attempt)}"])
    begun = query.begin(store, base)
    assert begun.snapshot
    before = query.states[base.attempt]
    query.assert_restores(query.open(), query.commit(store, base, {b"b": (PUT, b"2")}, begun=begun, before=before))


def test_a_look_that_fails_fails_the_commit() -> None:
    query = remote()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    query.faults.inject(Fault("size", times=100))
    before = query.states[base.attempt]
    with fails_with("storage.failed"):
        query.commit(store, base, {b"b": (PUT, b"2")}, begun=query.begin(store, base), before=before)
    query.faults.heal()
    query.assert_restores(query.open(), query.commit(store, base, {b"b": (PUT, b"2")}))


def test_a_caller_without_the_rows_hears_at_once_that_its_base_is_lost() -> None:
    query = remote()
    store = query.open()
    base = query.commit(store, EMPTY, {b"a": (PUT, b"1")})
    assert base.attempt is not None
    query.storage.delete_many([f"0/0/{file_name(base.attempt)}"])
    with fails_with("file.missing"):
        query.begin(store, base, have=False)
