"""Where commits are: an id says it, and an id that this release does not know is refused by each who has to find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lamina.checkpoint import Pin, write_pin
from lamina.format.manifest import StoreIdentity
from lamina.store import Version
from lamina.store.files.locator import Locator, attempt_of
from lamina.store.versioned_store import VersionedStore
from lamina.testing.expect import fails_with
from tests.unit.store.writing import Query, names

EMPTY = Version(0)
RANDOM = "9f3c0a5be1d24c6f8a7b6c5d4e3f2a1b"
OWN = f"L1.42.3.o.-.{RANDOM}"
GROUPED = f"L1.2.1.g.group.{RANDOM}"
UNKNOWN = [GROUPED, f"L9.2.1.o.-.{RANDOM}", "rocksdb-id"]


def test_a_commit_is_the_object_of_its_id_in_the_directory_of_its_store() -> None:
    named = Locator(StoreIdentity("c", 1, 7, "left")).of(OWN)
    assert (named.path, named.name) == (f"1/7/left/42_{OWN}.lam", f"42_{OWN}.lam")
    assert Locator(StoreIdentity("c", 1, 7, "default")).of(OWN).path == f"1/7/42_{OWN}.lam"


def test_the_name_of_a_commits_object_says_which_attempt_it_is() -> None:
    assert str(attempt_of(Locator(StoreIdentity("c", 0, 0, "default")).of(OWN).name)) == OWN
    for name in (f"0-42_{RANDOM}.seg", f"41_{OWN}.lam", f"2_{GROUPED}.lam", f".42_{OWN}.lam.1-1.tmp", "42.delta"):
        assert attempt_of(name) is None, name


QUESTIONS: dict[str, Callable[[VersionedStore, Version], Any]] = {
    "resolve": lambda store, version: store.resolve(version),
    "load": lambda store, version: store.load(version, have=None, read_only=True),
    "manifest": lambda store, version: store.manifest(version),
    "lineage": lambda store, version: store.lineage(version),
    "begin": lambda store, version: store.begin(
        version, task_attempt=1, load_empty=False, force_snapshot=False, have=True
    ),
    "collect": lambda store, version: store.collect(version, dry_run=False),
    "feed": lambda store, version: store.feed(1, version, None),
    "replay": lambda store, version: store.replay(EMPTY, version),
}


@pytest.mark.parametrize("attempt", UNKNOWN)
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_id_whose_commit_this_release_cannot_find_is_refused_by_name(question: str, attempt: str) -> None:
    query = Query()
    store = query.open()
    query.run_batches(store, EMPTY, 2)
    with fails_with("attempt-id.unknown") as caught:
        QUESTIONS[question](store, Version(2, attempt))
    assert attempt in caught.error.message


def test_nothing_is_collected_where_a_pin_names_an_attempt_that_this_release_cannot_find() -> None:
    query = Query(min_versions=0, retention__minAgeMs=0)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 3)
    before = names(query.storage)
    write_pin(query.storage, Pin("clone", "another", "s3a://bucket/clone", 1, {(0, 0, "default"): (GROUPED,)}))
    with fails_with("attempt-id.unknown"):
        store.collect(versions[-1], dry_run=False)
    assert names(query.storage) == before


def test_a_pin_of_a_store_that_was_empty_holds_nothing() -> None:
    query = Query(min_versions=0, retention__minAgeMs=0)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 3)
    never_written = f"L1.0.1.e.-.{RANDOM}"
    write_pin(query.storage, Pin("clone", "another", "s3a://bucket/clone", 1, {(0, 0, "default"): (never_written,)}))
    assert store.collect(versions[-1], dry_run=True).stopped is None
