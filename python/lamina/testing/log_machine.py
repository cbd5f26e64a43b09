"""The state machine with the changelog, switched off and on: commits are parts of log objects, or files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format import log_object, paths
from lamina.format.attempt_id import GROUP, AttemptId
from lamina.format.log_object import LogIndex
from lamina.settings import Settings
from lamina.storage import NotDurable, Storage, is_temporary
from lamina.store import CheckpointState, Collected, CommitRequest, Store, StoreConf, StoreId
from lamina.store.changelog.changelog import Changelog, retries_of
from lamina.store.changelog.uploads import Uploads
from lamina.store.factory import make_store
from lamina.store.files.locator import attempt_of, is_part, name_of
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.log_places import LogPlace
from lamina.testing.faults import Crashed, Fault, FaultyBackend
from lamina.testing.machine_parts import CHANGES, MIN_VERSIONS, OPENINGS, Attempt
from lamina.testing.rows import Position
from lamina.testing.state_machine import StoreMachine

_MOST_HELD = 1 << 20


class _Inline(Uploads):
    """Uploads that the machine makes when it comes to it, each with one attempt."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        super().__init__(retries_of(settings), 1, clock)
        self._now = clock.monotonic
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def ask(self, call: Callable[[], bool]) -> bool:
        return call()

    def upload(
        self, what: str, size: int, publish: Callable[[], object], *, ends: float | None = None, **_: object
    ) -> None:
        publish()
        if ends is not None and self._now() > ends:
            # what is published later all the same is named by nobody
            raise LaminaError("storage.failed", f"{what} took too long") from NotDurable()


class LogMachine(StoreMachine):
    """A query over one store, with the changelog until a restart switches it off."""

    modes = tuple(
        {"changelog_enabled": True, "changelog_materialize_parts": 3, **mode}
        for mode in (
            {},
            {"compaction_max_chain": 3},
            {"compaction_mode": "rolling", "compaction_rolling_parts": 2},
            {"backend": "rocksdb", "rocksdb_materialize_every": 2},
        )
    )

    @initialize(mode=st.integers(0, 100), fault=st.none() | OPENINGS)
    def start(self, mode: int, fault: Fault | None) -> None:
        self.uploads: dict[int, list[Callable[[], None]]] = {}
        self.parts: dict[str, set[str]] = {}
        super().start(mode, 2, fault)

    @rule(changes=st.lists(CHANGES, min_size=1, max_size=2), number=st.integers(0, 1), maintain=st.integers(0, 2))
    def restart_with_the_changelog_switched(
        self, changes: list[tuple[Position, int, bytes]], number: int, maintain: int
    ) -> None:
        """Off or on, with some batches, which stand on what is in the log, or in files."""
        self.settings = replace(self.settings, changelog_enabled=not self.settings.changelog_enabled)
        self._new_run()
        self.batches(changes, number, maintain)

    def _open(self, backend: FaultyBackend, run: str, *, read_only: bool) -> Store:
        storage = Storage("machine:/state", backend=backend)
        state = CheckpointState.open(storage, run_id=run, read_only=read_only, clock=self.clock, ids=self.ids)
        uploads = _Inline(self.settings, self.clock)
        groups = Changelog(LogPlace(storage), state.uuid or "", self.settings, self.clock, self.ids, uploads).groups
        store = make_store(
            state,
            StoreId(storage.url, 0, 0, "default"),
            StoreConf(self.settings, self.format_version, "none", MIN_VERSIONS),
            clock=self.clock,
            ids=self.ids,
            groups=groups if self.settings.changelog_enabled and not read_only else None,
            logs=LogObjects(storage, self.clock, self.ids),
        )
        self.uploads[id(store)] = uploads.waiting
        return store

    def _publish(
        self, attempt: Attempt, request: CommitRequest, sections: Mapping[str, Iterable[pa.RecordBatch]]
    ) -> None:
        store = attempt.executor.store
        # what has no place in a group may be published before it is accepted
        self.states[attempt.begun.attempt] = attempt.rows
        accepted = store.accept(replace(request, alone=True), sections, most_held=_MOST_HELD)
        attempt.begun = replace(attempt.begun, attempt=accepted.attempt)
        self.states[accepted.attempt] = attempt.rows
        waiting = self.uploads[id(store)]
        while waiting:
            waiting.pop()()
        if attempt.executor.backend.crashed:
            raise Crashed
        accepted.publish()

    # Parts are listed as if they were files of the store

    def _objects(self) -> dict[str, LogIndex]:
        found = {}
        for path in list(self.objects.objects):
            if (log := paths.log_of(path)) is not None:
                found[path] = log_object.verify(self.objects.read(path), log, path)
                self.parts[path] = {name_of(part.attempt) for part in found[path].parts}
        return found

    def _stays(self, name: str, needed: set[str]) -> bool:
        # a store needs versions: another attempt of one that it needs stays with it
        versions = {attempt.version for attempt in map(attempt_of, filter(is_part, needed)) if attempt is not None}
        own = attempt_of(name)
        if name in needed or (own is not None and is_part(name) and own.version in versions):
            return True
        # nor does the directory go, from which Spark's state reader knows of the store
        return [other for other in super()._names() if not is_temporary(other)] == [name]

    def _gone(self, collected: Collected) -> set[str]:
        found = super()._gone(collected)
        return {name for path in found for name in self.parts.get(path, {path})}

    def _names(self) -> list[str]:
        parts = [name_of(part.attempt) for index in self._objects().values() for part in index.parts]
        return [*super()._names(), *parts]

    def _read(self, name: str) -> pa.Buffer:
        if not is_part(name):
            return super()._read(name)
        attempt = attempt_of(name)
        assert attempt is not None and attempt.kind == GROUP
        for path, index in self._objects().items():
            for part in index.parts:
                if AttemptId.parse(part.attempt) == attempt:
                    return self.objects.read(path).slice(part.offset, part.length)
        raise AssertionError(f"{name} is in no object")
