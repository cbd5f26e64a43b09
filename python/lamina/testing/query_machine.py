"""One query over one store against a dictionary: batches, second attempts, zombies, faults, restarts, rewinds.

The machine plays Spark: it opens versions, runs attempts on executors, records in its log which attempt counts, loses
executors, restarts and rewinds the query. Executors are `Store`s, each over its own `FaultyBackend`, so that
one of them can crash at any storage call while the objects stay.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from lamina.errors import LaminaError
from lamina.format.entries import APPEND, DELETE, PUT
from lamina.format.manifest import INCREMENT, REWRITE, SNAPSHOT
from lamina.settings import Settings
from lamina.storage import Storage
from lamina.store import (
    CheckpointState,
    CommitRequest,
    Store,
    StoreConf,
    StoreId,
    Version,
)
from lamina.store.direct.rows import in_part, newest_first, part_of
from lamina.store.factory import make_store
from lamina.testing.components import ManualClock, SequenceIds
from lamina.testing.faults import Crashed, Effect, Fault, FaultyBackend, Moment
from lamina.testing.machine_parts import (
    CALLS,
    KEYS,
    MIN_AGE_MS,
    MIN_VERSIONS,
    MOMENTS,
    OPENINGS,
    READS,
    START_MS,
    VALUES,
    Attempt,
    Batch,
    Executor,
)
from lamina.testing.memory import MemoryBackend
from lamina.testing.rows import (
    FAMILIES,
    LENGTH,
    LISTS_FAMILY,
    VALUES_FAMILY,
    Changes,
    Rows,
    applied,
    batch_of,
    counts,
)


class QueryMachine(RuleBasedStateMachine):
    """Events of one query over one store. `modes` are the settings under test, one of them for each example."""

    modes: tuple[Mapping[str, Any], ...] = (
        {},
        {"compaction_max_chain": 3},
        {"compaction_mode": "full", "compaction_full_interval": 3},
        {"compaction_mode": "rolling", "compaction_rolling_parts": 2},
        {"compaction_mode": "rolling", "compaction_rolling_parts": 3, "compaction_max_chain": 3},
        {"backend": "rocksdb", "rocksdb_materialize_every": 1},
        {"backend": "rocksdb", "rocksdb_materialize_every": 2, "compaction_max_chain": 3},
    )

    @initialize(mode=st.integers(0, 100), format_version=st.sampled_from([1, 2]), fault=st.none() | OPENINGS | OPENINGS)
    def start(self, mode: int, format_version: int, fault: Fault | None) -> None:
        self._set(mode)
        self.format_version = format_version
        self.clock = ManualClock(START_MS)
        self.ids = SequenceIds(1)
        self.objects = MemoryBackend(self.clock)
        self.runs = 0
        self.tasks = itertools.count(1)
        self.readers = itertools.count(1_000_000)
        # Spark's commit log: the attempt of each version, oldest first, and the rows of each attempt that was published
        self.log: list[Version] = []
        self.states: dict[str | None, Rows] = {None: {}}
        self.changes: Changes = {}
        # attempts of the next version that were acknowledged, in their order
        self.acknowledged: list[Attempt] = []
        self.last_begun = 0
        self.zombies: list[Executor] = []
        self.pending: list[Attempt] = []
        # versions up to here may have been collected: a rewind behind it is Spark's to refuse
        self.collected = 0
        self.checked: frozenset[str] | None = None
        self.verified: set[str] = set()
        self.executors: list[Executor] = []
        self._new_run(fault)

    # The query

    @property
    def committed(self) -> Version:
        return self.log[-1] if self.log else Version(0)

    def known(self, version: Version) -> Version:
        """The version as Spark names it: with its attempt under format v2, by its number under v1."""
        return version if self.format_version == 2 else Version(version.version)

    def rows_of(self, version: Version) -> Rows:
        return self.states[version.attempt]

    def _new_run(self, fault: Fault | None = None) -> None:
        """The query starts anew; the executors of the run before it may still be there."""
        self.zombies = [*self.executors, *self.zombies][:3]
        self.runs += 1
        self.executors = []
        self.acknowledged = []
        self.changes = {}
        # behind one that opened the store while this one was slow to
        self.executors.append(self._new_executor(fault))
        if len(self.executors) < 2:
            self.executors.append(self._new_executor())
        assert len({executor.store.identity for executor in self.executors}) == 1, "they opened two checkpoints"

    def _set(self, mode: int) -> None:
        self.settings = Settings(retention_min_age_ms=MIN_AGE_MS, **self.modes[mode % len(self.modes)])

    def _new_executor(self, fault: Fault | None = None) -> Executor:
        """An executor that has opened the store: the next one that Spark starts where `fault` was too much for it."""
        backend = FaultyBackend(self.objects, shuffle=self.runs, wait=lambda delay_ms: self._slowly(backend, delay_ms))
        if fault is not None:
            backend.inject(fault)
        try:
            store = self._open(backend, f"run-{self.runs}", read_only=False)
        except (Crashed, LaminaError) as error:
            if fault is None or (isinstance(error, LaminaError) and error.kind != "storage.failed"):
                raise
            note(f"not opened: {error}")
            return self._new_executor()
        backend.heal()
        return Executor(backend, store, self.runs)

    def _slowly(self, backend: FaultyBackend, milliseconds: int) -> None:
        """A call of an executor's storage, its last one, takes long."""
        self.clock.advance(milliseconds)

    def _open(self, backend: FaultyBackend, run: str, *, read_only: bool) -> Store:
        storage = Storage("machine:/state", backend=backend)
        state = CheckpointState.open(storage, run_id=run, read_only=read_only, clock=self.clock, ids=self.ids)
        return make_store(
            state,
            StoreId(storage.url, 0, 0, "default"),
            StoreConf(self.settings, self.format_version, "none", MIN_VERSIONS),
            clock=self.clock,
            ids=self.ids,
        )

    def _lose(self, executor: Executor) -> None:
        """The executor is dead; Spark starts another one."""
        self.pending = [attempt for attempt in self.pending if attempt.executor is not executor]
        if executor in self.executors:
            self.executors[self.executors.index(executor)] = self._new_executor()
        self.zombies = [zombie for zombie in self.zombies if zombie is not executor]

    def _surviving(self, executor: Executor, step: Callable[[], object], *kinds: str) -> bool:
        """Whether `step` succeeded; its executor may crash, its storage fail, and errors of `kinds` be raised."""
        try:
            step()
        except Crashed:
            self._lose(executor)
            return False
        except LaminaError as error:
            if error.kind not in ("storage.failed", *kinds):
                raise
            note(f"not done: {error}")
            executor.backend.heal()
            return False
        executor.backend.heal()
        return True

    # A batch

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.changes[VALUES_FAMILY, key] = (PUT, value)

    @rule(key=KEYS, element=VALUES)
    def append(self, key: bytes, element: bytes) -> None:
        added = LENGTH.pack(len(element)) + element
        op, value = self.changes.get((LISTS_FAMILY, key), (APPEND, b""))
        self.changes[LISTS_FAMILY, key] = (PUT, added) if op == DELETE else (op, value + added)

    @rule(key=KEYS, family=st.sampled_from([VALUES_FAMILY, LISTS_FAMILY]))
    def remove(self, key: bytes, family: int) -> None:
        self.changes[family, key] = (DELETE, b"")

    @rule(number=st.integers(0, 1))
    def abort(self, number: int) -> None:
        """The task fails after it began: nothing of it is published, and the log means the attempt before it."""
        last_begun = self.last_begun
        self._surviving(self.executors[number], lambda: self._begin(self.executors[number], snapshot=False))
        self.last_begun = last_begun
        self.changes = {}

    @rule(number=st.integers(0, 1))
    def open(self, number: int) -> None:
        """An executor brings its table to the committed version, from what it has where that is a way."""
        self._bring(self.executors[number])

    @rule(number=st.integers(0, 1), fault=READS)
    def open_with_a_fault(self, number: int, fault: Fault) -> None:
        """The right rows, or an error; a read that gives less than there is is noticed."""
        executor = self.executors[number]
        executor.backend.inject(fault)
        self._surviving(executor, lambda: self._bring(executor), "file.damaged", "file.missing", "state.not-retained")

    def _bring(self, executor: Executor) -> None:
        load = executor.store.load(self.known(self.committed), have=self.known(executor.have), read_only=False)
        rows = executor.rows if load.start == "have" else {}
        if load.start == "have":
            for batch in load.batches:
                columns = [batch.column(index).to_pylist() for index in range(4)]
                for family, op, key, value in zip(*columns, strict=True):
                    rows = applied(rows, {(family, key): (op, value)})
        else:
            rows = newest_first(load.batches)
        assert rows == self.rows_of(self.committed), f"opened {self.committed} from {load.start}"
        executor.have, executor.rows = self.committed, rows

    def _begin(self, executor: Executor, *, snapshot: bool) -> Attempt:
        number = next(self.tasks)
        begun = executor.store.begin(
            self.known(self.committed), task_attempt=number, load_empty=False, force_snapshot=snapshot, have=True
        )
        self.last_begun = number
        base = self.rows_of(self.committed)
        rows = applied(base, self.changes)
        return Attempt(executor, self.committed, begun, dict(self.changes), rows, number, snapshot)

    def _commit(self, attempt: Attempt) -> None:
        base = attempt.begun.base_attempt
        written = attempt.changes or attempt.forced or attempt.begun.lost
        if self.format_version == 2 and base is not None and not written:
            # nothing changed: the version has the id of its base, and no file, whatever `begin` asked for
            attempt.begun = replace(attempt.begun, attempt=base)
            self.states[attempt.begun.attempt] = attempt.rows
            return
        sections = {INCREMENT: [batch_of((*position, *change) for position, change in attempt.changes.items())]}
        rows = {INCREMENT: len(attempt.changes)}
        if attempt.begun.snapshot:
            sections[SNAPSHOT] = [batch_of((*position, PUT, value) for position, value in attempt.rows.items())]
            rows[SNAPSHOT] = len(attempt.rows)
        part = part_of(attempt.begun)
        if part is not None:
            rewritten = in_part(attempt.rows, part)
            sections[REWRITE] = [batch_of((*position, PUT, value) for position, value in rewritten.items())]
            rows[REWRITE] = len(rewritten)
        request = CommitRequest(
            attempt.begun.attempt,
            attempt.base.version + 1,
            self.known(attempt.base),
            counts(attempt.rows),
            FAMILIES,
            len(FAMILIES),
            attempt.number,
            rows,
            part,
        )
        self._publish(attempt, request, sections)

    def _publish(
        self, attempt: Attempt, request: CommitRequest, sections: Mapping[str, Iterable[pa.RecordBatch]]
    ) -> None:
        # what is published from here on may be found by anybody
        self.states[attempt.begun.attempt] = attempt.rows
        attempt.executor.store.commit(request, sections)

    @rule(number=st.integers(0, 1), snapshot=st.booleans())
    def attempt(self, number: int, snapshot: bool) -> None:
        """A task runs; there may have been others of the same version before."""
        self.clock.advance(1000)
        self._run_attempt(self.executors[number], snapshot=snapshot)

    def _run_attempt(self, executor: Executor, *, snapshot: bool = False) -> bool:
        made: list[Attempt] = []

        def step() -> None:
            made.append(self._begin(executor, snapshot=snapshot))
            self._commit(made[0])

        done = self._surviving(executor, step, "state.base")
        if done:
            self.acknowledged.append(made[0])
        return done

    @rule(number=st.integers(0, 1), operation=st.sampled_from(["*", "publish"]), moment=MOMENTS, call=CALLS)
    def attempt_on_a_failing_storage(self, number: int, operation: str, moment: Moment, call: int) -> None:
        self.clock.advance(1000)
        executor = self.executors[number]
        executor.backend.inject(Fault(operation, moment=moment, skip=call if operation == "*" else 0))
        done = self._run_attempt(executor)
        assert done or operation == "*" or moment is not Moment.AFTER, (
            "a commit whose answer was lost was not looked up"
        )

    @rule(number=st.integers(0, 1), operation=st.sampled_from(["*", "publish"]), moment=MOMENTS, call=CALLS)
    def attempt_that_crashes(self, number: int, operation: str, moment: Moment, call: int) -> None:
        self.clock.advance(1000)
        executor = self.executors[number]
        skip = call if operation == "*" else 0
        executor.backend.inject(Fault(operation, effect=Effect.CRASH, moment=moment, skip=skip))
        self._run_attempt(executor)

    @precondition(lambda self: self.acknowledged)
    @rule(which=st.integers(0, 5))
    def commit_batch(self, which: int) -> None:
        """Spark writes its log. Without ids it can only mean the attempt that was begun last (docs/spec/files.md)."""
        chosen = self.acknowledged[which % len(self.acknowledged)]
        if self.format_version == 1:
            chosen = self.acknowledged[-1]
            if chosen.number != self.last_begun:
                return
        version = chosen.version
        self.log.append(version)
        executor = chosen.executor
        if executor in self.executors:
            executor.have, executor.rows = version, chosen.rows
        self.acknowledged = []
        self.changes = {}

    def _batch(self, batch: Batch) -> None:
        ((family, key), op, value), number = batch
        if op == DELETE:
            self.remove(key, family)
        elif family == LISTS_FAMILY:
            self.append(key, value)
        else:
            self.put(key, value)
        self.attempt(number, False)
        if self.acknowledged:
            self.commit_batch(len(self.acknowledged) - 1)

    @precondition(lambda self: len(self.pending) < 3)
    @rule(number=st.integers(0, 1))
    def begin_and_fall_asleep(self, number: int) -> None:
        """A task that wakes up some day, as a zombie."""
        executor = self.executors[number]
        begun: list[Attempt] = []
        if self._surviving(executor, lambda: begun.append(self._begin(executor, snapshot=False))):
            self.pending.append(begun[0])

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 5), key=KEYS)
    def wake_up_and_commit(self, which: int, key: bytes) -> None:
        """The zombie publishes: refused by its run under format v1, or never the one that counts."""
        zombie = self.pending.pop(which % len(self.pending))
        rows = applied(zombie.rows, {(VALUES_FAMILY, key): (PUT, b"zombie")})
        zombie = Attempt(
            zombie.executor,
            zombie.base,
            zombie.begun,
            {**zombie.changes, (VALUES_FAMILY, key): (PUT, b"zombie")},
            rows,
            zombie.number,
        )
        is_old = zombie.executor.run != self.runs
        newest = zombie.number == self.last_begun
        done = self._surviving(zombie.executor, lambda: self._commit(zombie), "state.superseded", "state.base")
        if self.format_version == 1 and is_old:
            assert not done, "a writer of an older run published"
        if done and not is_old and newest and zombie.base == self.committed:
            # nobody came after it: it is a task like any other, and its answer arrived
            self.acknowledged.append(zombie)

    # The query's life

    @rule()
    def restart(self) -> None:
        self._new_run()

    @rule(fault=OPENINGS)
    def restart_with_a_fault(self, fault: Fault) -> None:
        """An executor fails, dies or takes long over who runs the query; what it left is what others find."""
        self._new_run(fault)

    @rule(mode=st.integers(0, 100))
    def restart_in_another_mode(self, mode: int) -> None:
        self._set(mode)
        self._new_run()

    @rule(minutes=st.sampled_from([-60, -1, 1, 60]))
    def clock_jumps(self, minutes: int) -> None:
        self.clock.advance(minutes * 60_000)

    @rule(number=st.integers(0, 1))
    def lose_an_executor(self, number: int) -> None:
        self._lose(self.executors[number])

    @precondition(lambda self: self.log)
    @rule(back=st.integers(1, MIN_VERSIONS))
    def rewind(self, back: int) -> None:
        """Spark's log is cut, and a new run executes the versions again from there."""
        back = min(back, len(self.log) - 1, self.committed.version - self.collected)
        if back > 0:
            del self.log[len(self.log) - back :]
            self._new_run()
            # the rewind counts once something is committed on it
            self._run_attempt(self.executors[0])
            self.commit_batch(0)
