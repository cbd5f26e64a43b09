"""The conformance suite of stores whose commits go into log objects, as with the changelog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

from lamina.format import paths
from lamina.format.attempt_id import FILE, GROUP, AttemptId
from lamina.store.changelog.groups import Groups, Policy
from lamina.store.direct.store import DirectStore
from lamina.store.factory import make_store
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.log_places import LogPlace
from lamina.store.model import Begin, CommitRequest, Committed, StoreConf, Version
from lamina.store.protocol import Store
from lamina.store.versions.checkpoint_state import CheckpointState
from lamina.testing.log_objects import publisher
from tests.conformance.format_2 import InFormat2, StoreByAttempts

MOST_HELD = 1 << 20


class Grouping:
    """A store each of whose commits waits in a group of its own, which is published at once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def begin(self, base: Version, **arguments: Any) -> Begin:
        begun = self._store.begin(base, **arguments)
        # the first commit makes the store's directory
        self._kind = FILE if begun.base_attempt is None or begun.apart else GROUP
        return begun

    def commit(self, request: CommitRequest, sections: Mapping[str, Any]) -> Committed:
        accepted = self._store.accept(replace(request, alone=True), sections, most_held=MOST_HELD)
        assert AttemptId.parse(accepted.attempt).kind == self._kind
        self.committed = accepted.attempt
        return accepted.publish()


class CommitsInLog(DirectStore):
    """A store whose versions have the ids that their commits got in log objects."""

    def _opened(self, conf: StoreConf, *, read_only: bool) -> Store:
        storage, clock, ids = self._storage, self._clock, self._ids
        state = CheckpointState.open(storage, run_id=ids.uuid(), read_only=read_only, clock=clock, ids=ids)
        logs = LogObjects(storage, clock, ids)
        publish = publisher(LogPlace(storage), state.uuid, clock, logs.add_written)
        groups = Groups(Policy(1.0, 1.0, 1.0, MOST_HELD), publish, lambda sealed: sealed(), clock, ids)
        store = make_store(
            state, self._store_id, conf, clock=clock, ids=ids, groups=None if read_only else groups, logs=logs
        )
        return cast(Store, Grouping(store))

    def commit(self, *, snapshot: bool = False) -> Version:
        super().commit(snapshot=snapshot)
        self._version = replace(self._version, attempt=self._store.committed)  # type: ignore[attr-defined]
        return self._store.confirm(self._version)


class StoreInLog(StoreByAttempts, CommitsInLog):
    """Such a store of a query with a commit log."""


class InLog(InFormat2):
    """All of the suite, with few enough parts in a version that collections have log objects to delete."""

    kind = StoreInLog
    first_stays = True
    settings: ClassVar[dict[str, Any]] = {"changelog_enabled": True, "changelog_materialize_parts": 3}

    def files(self) -> dict[str, list[str]]:
        return {**super().files(), paths.LOG: sorted(entry.name for entry in self.storage.list(paths.LOG))}

    def test_commits_after_the_first_are_parts_of_log_objects(self) -> None:
        store = self.open()
        for number in range(4):
            store.put(b"k", b"%d" % number)
            store.commit()
        files = self.files()
        assert len(files[paths.store_directory(0, 0, "default")]) == 1
        assert len(files[paths.LOG]) == 3
        assert self.state(self.open(writable=False)) == {b"k": b"3"}

    def test_log_objects_go_when_no_kept_version_needs_them(self) -> None:
        store = self.open(min_versions=2)
        for number in range(20):
            store.put(b"%d" % (number % 5), b"%d" % number)
            store.commit()
            store.compact()
        before = self.files()[paths.LOG]
        self.clock.advance(self.age_of_storage_ms())
        store.collect()
        left = self.files()[paths.LOG]
        assert set(left) < set(before)
        assert len(left) < 10
        assert self.state(self.open(writable=False)) == self.state(store)
