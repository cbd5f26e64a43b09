"""A store against a dictionary: a query, its executors and its storage, in any order of events and faults.

The machine plays Spark: it opens versions, runs attempts on executors, records in its log which attempt counts, loses
executors, restarts and rewinds the query. Executors are `HeapStore`s, each over its own `FaultyBackend`, so that one of
them can crash at any storage call while the objects stay. After each step the rules hold that `check_*` name.

Runs under pytest as `StoreMachine.TestCase`. For longer, or to replay what failed:

    python -m lamina.testing.state_machine --minutes 60
    python -m lamina.testing.state_machine --seed 17

Needs hypothesis.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lamina.components import SystemClock
from lamina.errors import LaminaError
from lamina.format.attempt_id import EMPTY, AttemptId
from lamina.format.container import verify
from lamina.format.entries import APPEND, DELETE, PUT
from lamina.format.manifest import INCREMENT, REWRITE, SNAPSHOT, CommitManifest
from lamina.format.paths import CommitName, SegmentName, parse_name
from lamina.settings import Settings
from lamina.storage import Storage, is_temporary
from lamina.store import Begin, CheckpointState, CommitRequest, HeapStore, StoreConf, StoreId, Version
from lamina.store.plain import in_part, newest_first, part_of
from lamina.testing.components import ManualClock, SequenceIds
from lamina.testing.faults import Crashed, Effect, Fault, FaultyBackend, Moment
from lamina.testing.memory import MemoryBackend
from lamina.testing.rows import (
    FAMILIES,
    LENGTH,
    LISTS_FAMILY,
    VALUES_FAMILY,
    Changes,
    Position,
    Rows,
    applied,
    batch_of,
    counts,
)

MIN_AGE_MS = 600_000
MIN_VERSIONS = 3
START_MS = 1_790_000_000_000
_DIRECTORY = "0/0"
_SLOW_MS = 700_000
"""A slow call takes longer than the minimum age."""

KEYS = st.sampled_from([b"", b"a", b"b", b"a\xff", b"\x00"])
LARGE = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(128))
"""Does not compress, so that a file with it is not merged with the small ones above it."""
VALUES = st.one_of(st.binary(max_size=4), st.just(LARGE))
CHANGES = st.tuples(
    st.tuples(st.sampled_from([VALUES_FAMILY, LISTS_FAMILY]), KEYS), st.sampled_from([PUT, PUT, PUT, DELETE]), VALUES
)
Batch = tuple[tuple[Position, int, bytes], int]
BATCHES = st.lists(st.tuples(CHANGES, st.integers(0, 1)), min_size=1, max_size=2)
"""Changes, each a batch of its own, and the numbers of the executors that commit them."""
MOMENTS = st.sampled_from(list(Moment))
CALLS = st.integers(0, 7)
"""At which of a step's storage calls something happens; an attempt makes at most so many."""
DELAYS = st.sampled_from([1_000, _SLOW_MS, _SLOW_MS])
MORE_CALLS = st.integers(0, 3) | st.integers(0, 15)
"""As `CALLS`, of restores, compactions and collections, which read a file for each version."""

READS = st.builds(
    lambda effect, call: Fault(effect=effect, skip=call), st.sampled_from([Effect.FAIL, Effect.CRASH]), MORE_CALLS
) | st.builds(
    lambda operation, call: Fault(operation, effect=Effect.TRUNCATE, skip=call),
    st.sampled_from(["read", "read_range", "read_tail"]),
    st.integers(0, 3),
)
"""Faults of a restore: of any call, or a read that gives less than there is."""

OPENINGS = st.builds(
    Fault,
    effect=st.sampled_from([Effect.FAIL, Effect.CRASH, Effect.DELAY, Effect.DELAY]),
    moment=MOMENTS,
    skip=st.integers(0, 5),
    delay_ms=st.just(_SLOW_MS),
)
"""What befalls the first executor of a run while it opens its store, in four calls, or six of a new checkpoint."""


@dataclass
class Attempt:
    """An attempt that was begun, and the rows that it makes of its base's."""

    executor: Executor
    base: Version
    begun: Begin
    changes: Changes
    rows: Rows
    number: int
    forced: bool = False

    @property
    def version(self) -> Version:
        return Version(self.base.version + 1, self.begun.attempt)


@dataclass
class Executor:
    """A process with the store open; `rows` is its table, of version `have`."""

    backend: FaultyBackend
    store: HeapStore
    run: int
    have: Version = field(default_factory=lambda: Version(0))
    rows: Rows = field(default_factory=dict)


class StoreMachine(RuleBasedStateMachine):
    """Events of one query over one store. `modes` are the settings under test, one of them for each example."""

    modes: tuple[Mapping[str, Any], ...] = (
        {},
        {"compaction_max_chain": 3},
        {"compaction_mode": "full", "compaction_full_interval": 3},
        {"compaction_mode": "rolling", "compaction_rolling_parts": 2},
        {"compaction_mode": "rolling", "compaction_rolling_parts": 3, "compaction_max_chain": 3},
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
        self.segments: list[Any] = []
        # versions up to here may have been collected: a rewind behind it is Spark's to refuse
        self.collected = 0
        self.checked: frozenset[str] | None = None
        self.verified: set[str] = set()
        self.executors: list[Executor] = []
        self.batches_meanwhile: list[Batch] = []
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
        backend = FaultyBackend(self.objects, shuffle=self.runs, wait=self._slowly)
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

    def _slowly(self, milliseconds: int) -> None:
        """A call takes long; meanwhile batches are committed, and then another executor collects."""
        batches, self.batches_meanwhile = self.batches_meanwhile, []
        for batch in batches:
            if self.segments:
                self.adopt(batch[1], 0)
            self._batch(batch)
        self.clock.advance(milliseconds)
        executor = self._new_executor()
        if not self.executors:
            self.executors.append(executor)
        if not self._collection_waits:
            executor.store.collect(self._confirmed_by(executor), dry_run=False)

    @contextlib.contextmanager
    def _slow(self, executor: Executor, call: int, delay_ms: int, batches: list[Batch]) -> Iterator[tuple[str, ...]]:
        """One call of the executor takes long, and `batches` are committed meanwhile; gives the errors that may come.

        Only where it takes longer than the minimum age may what it needs be collected.
        """
        self.batches_meanwhile = batches
        executor.backend.inject(Fault(effect=Effect.DELAY, skip=call, delay_ms=delay_ms))
        yield ("file.missing", "state.not-retained") if delay_ms > MIN_AGE_MS else ()
        self.batches_meanwhile = []

    def _open(self, backend: FaultyBackend, run: str, *, read_only: bool) -> HeapStore:
        storage = Storage("machine:/state", backend=backend)
        state = CheckpointState.open(storage, run_id=run, read_only=read_only, clock=self.clock, ids=self.ids)
        return HeapStore(
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
        # what is published from here on may be found by anybody
        self.states[attempt.begun.attempt] = attempt.rows
        request = CommitRequest(
            attempt.begun.attempt,
            attempt.base.version + 1,
            self.known(attempt.base),
            "0" * 32,
            counts(attempt.rows),
            FAMILIES,
            len(FAMILIES),
            attempt.number,
            rows,
            part,
        )
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

    @rule(number=st.integers(0, 1), operation=st.sampled_from(["*", "publish"]), call=CALLS, change=CHANGES)
    def attempt_with_a_slow_call(
        self, number: int, operation: str, call: int, change: tuple[Position, int, bytes]
    ) -> None:
        """Of a commit that is the first to name a segment, which a collector may take meanwhile."""
        self.compact(number)
        if self.segments:
            self.adopt(number, 0)
        skip = call if operation == "*" else 0
        self.executors[number].backend.inject(Fault(operation, effect=Effect.DELAY, skip=skip, delay_ms=_SLOW_MS))
        self._batch((change, number))

    @precondition(lambda self: self.acknowledged)
    @rule(which=st.integers(0, 5))
    def commitbatch_of(self, which: int) -> None:
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

    @rule(changes=st.lists(CHANGES, min_size=1, max_size=4), number=st.integers(0, 1), maintain=st.integers(0, 2))
    def batches(self, changes: list[tuple[Position, int, bytes]], number: int, maintain: int) -> None:
        """Some batches where nothing goes wrong, with compaction between them or without; most of a query's life."""
        for change in changes:
            self._batch((change, number))
            if maintain:
                self.compact(number)
                if maintain == 2:
                    self.collect(1 - number, 0)
                if self.segments:
                    self.adopt(number, 0)

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
            self.commitbatch_of(len(self.acknowledged) - 1)

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
            self.commitbatch_of(0)

    # Maintenance

    @rule(number=st.integers(0, 1))
    def compact(self, number: int) -> None:
        self._compact(self.executors[number])

    def _compact(self, executor: Executor, *kinds: str) -> None:
        def step() -> None:
            executor.store.confirm(self.known(self.committed))
            compacted = executor.store.compact()
            if compacted is not None:
                self.segments.append(compacted.segment)

        self._surviving(executor, step, *kinds)

    @rule(
        number=st.integers(0, 1),
        operation=st.sampled_from(["*", "publish"]),
        moment=MOMENTS,
        call=MORE_CALLS,
        effect=st.sampled_from([Effect.FAIL, Effect.CRASH]),
    )
    def compact_with_a_fault(self, number: int, operation: str, moment: Moment, call: int, effect: Effect) -> None:
        executor = self.executors[number]
        skip = call if operation == "*" else 0
        executor.backend.inject(Fault(operation, effect=effect, moment=moment, skip=skip))
        self._compact(executor)

    @rule(number=st.integers(0, 1), call=MORE_CALLS, delay_ms=DELAYS, batches=BATCHES)
    def compact_slowly(self, number: int, call: int, delay_ms: int, batches: list[Batch]) -> None:
        executor = self.executors[number]
        with self._slow(executor, call, delay_ms, batches) as gone:
            self._compact(executor, *gone)

    @precondition(lambda self: self.segments)
    @rule(number=st.integers(0, 1), minutes=st.sampled_from([0, 0, 0, 7, 30]))
    def adopt(self, number: int, minutes: int) -> None:
        """A finished segment reaches the store that commits, maybe late."""
        self.clock.advance(minutes * 60_000)
        for segment in self.segments:
            self.executors[number].store.adopt(segment)
        self.segments = []

    @rule(number=st.integers(0, 1), minutes=st.sampled_from([0, 1, 11, 30]))
    def collect(self, number: int, minutes: int) -> None:
        self.clock.advance(minutes * 60_000)
        executor = self.executors[number]
        if self._collection_waits:
            return
        version = self._confirmed_by(executor)
        dry = {deletion.path for deletion in executor.store.collect(version, dry_run=True).deleted}
        before = set(self._names())
        done = {deletion.path for deletion in executor.store.collect(version, dry_run=False).deleted}
        assert done == dry
        assert set(self._names()) == before - done

    @precondition(lambda self: len(self.log) > 1)
    @rule(number=st.integers(0, 1), minutes=st.sampled_from([0, 11]), old=st.integers(1, 2))
    def collect_with_old_news(self, number: int, minutes: int, old: int) -> None:
        """By an executor that has not heard of the newest version; what it counts as retained may be gone already."""
        self.clock.advance(minutes * 60_000)
        store = self.executors[number].store
        version = self.known(self.log[-1 - min(old, len(self.log) - 1)])
        self.collected = max(self.collected, version.version - MIN_VERSIONS)
        try:
            store.collect(store.confirm(version), dry_run=False)
        except LaminaError as error:
            if error.kind not in ("file.missing", "state.not-retained"):
                raise

    @property
    def _collection_waits(self) -> bool:
        """After a rewind versions count as retained again that were collected before: a collection may stop at them."""
        return self.log != [] and self.log[-1 - MIN_VERSIONS :][0].version < self.collected

    def _confirmed_by(self, executor: Executor) -> Version:
        self.collected = max(self.collected, self.committed.version - MIN_VERSIONS)
        return executor.store.confirm(self.known(self.committed))

    @rule(
        number=st.integers(0, 1),
        minutes=st.sampled_from([0, 11]),
        call=MORE_CALLS,
        delay_ms=DELAYS,
        batches=BATCHES,
    )
    def collect_slowly(self, number: int, minutes: int, call: int, delay_ms: int, batches: list[Batch]) -> None:
        """Some time after a compaction: a commit refers to the segment while the collection has it in its hands."""
        self.compact(number)
        self.clock.advance(minutes * 60_000)
        executor = self.executors[number]
        if self._collection_waits:
            return
        with self._slow(executor, call, delay_ms, batches) as gone:
            self._surviving(
                executor, lambda: executor.store.collect(self._confirmed_by(executor), dry_run=False), *gone
            )

    @rule(
        number=st.integers(0, 1), moment=MOMENTS, call=MORE_CALLS, effect=st.sampled_from([Effect.FAIL, Effect.CRASH])
    )
    def collect_with_a_fault(self, number: int, moment: Moment, call: int, effect: Effect) -> None:
        executor = self.executors[number]
        self.clock.advance(660_000)
        self.collected = max(self.collected, self.committed.version - MIN_VERSIONS)
        operation, skip = ("delete_many", 0) if call == 0 else ("*", call)
        executor.backend.inject(Fault(operation, effect=effect, moment=moment, skip=skip))

        def step() -> None:
            executor.store.collect(executor.store.confirm(self.known(self.committed)), dry_run=False)

        self._surviving(executor, step, "file.missing")

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, 5), minutes=st.sampled_from([1, 30]))
    def collect_by_a_zombie(self, which: int, minutes: int) -> None:
        """An executor of an older run knows old news, and deletes nothing."""
        self.clock.advance(minutes * 60_000)
        zombie = self.zombies[which % len(self.zombies)]
        if zombie.backend.crashed:
            return
        before = set(self._names())
        try:
            zombie.store.collect(zombie.store.confirm(self.known(zombie.have)), dry_run=False)
        except LaminaError as error:
            if error.kind not in ("file.missing", "state.not-retained"):
                raise
        assert set(self._names()) == before, "a stale executor deleted files"

    @rule()
    def collect_until_nothing_is_left_to_collect(self) -> None:
        """After the minimum age only what retained versions need is there, what is numbered above them, and finished
        segments that the executor's next commit is to refer to."""
        executor = self.executors[0]
        if self._collection_waits:
            return
        for _ in range(2):
            # versions without a file tell no time: their age counts from the first collection that saw them
            newest = max((published for _, published in self.objects.objects.values()), default=0)
            self.clock.advance(max(0, newest - self.clock.now_ms()) + MIN_AGE_MS + 1)
            executor.store.collect(self._confirmed_by(executor), dry_run=False)
        confirmed = self.committed.version
        if confirmed == 0 or not self._footprint(self.committed):
            return  # nothing of the query was written yet
        needed = {name for version in self._retained() for name in self._footprint(version)}
        needed.update(executor.store.waiting_segments())
        for name in self._names():
            parsed = parse_name(name)
            if isinstance(parsed, CommitName) and parsed.version > confirmed:
                needed.update(self._footprint(Version(parsed.version, str(parsed.attempt))))
        number = {name: _number(name) for name in self._names()}
        left = {name for name in number if name not in needed and number[name] <= confirmed}
        assert not left, f"orphans older than the minimum age: {sorted(left)}"

    # The rules that hold after each step

    def _names(self) -> list[str]:
        start = len(_DIRECTORY) + 1
        return [path[start:] for path in list(self.objects.objects) if path.startswith(f"{_DIRECTORY}/")]

    def _retained(self) -> list[Version]:
        return [version for version in self.log[-1 - MIN_VERSIONS :] if version.version >= self.collected]

    def _manifest(self, attempt: AttemptId) -> CommitManifest:
        name = str(CommitName(attempt))
        assert name in self._names(), f"{name} is gone"
        manifest = verify(self.objects.read(f"{_DIRECTORY}/{name}"), name)
        assert isinstance(manifest, CommitManifest)
        return manifest

    def _footprint(self, version: Version) -> set[str]:
        attempt = AttemptId.parse(version.attempt or "")
        if attempt.kind == EMPTY:
            return set()
        own = str(CommitName(attempt))
        return {own, *(reference.path or own for reference in self._manifest(attempt).references)}

    @invariant()
    def check_every_retained_version_restores(self) -> None:
        """As another process restores it, which has nothing but the files."""
        names = frozenset((*self._names(), str(self.committed)))
        if names == self.checked:
            return
        self.checked = names
        backend = FaultyBackend(self.objects, shuffle=next(self.readers))
        reader = self._open(backend, "reader", read_only=True)
        before = dict(self.objects.objects)
        for version in self._retained():
            load = reader.load(self.known(version), have=None, read_only=True)
            assert load.attempt == version.attempt, f"{version} was opened as {load.attempt}"
            assert newest_first(load.batches) == self.rows_of(version), f"rows of {version}"
            assert load.counts in ({}, counts(self.rows_of(version))), f"counts of {version}"
        assert self.objects.objects == before, "reading changed the checkpoint"

    @invariant()
    def check_every_file_is_whole_and_known(self) -> None:
        for name in self._names():
            if name not in self.verified and not is_temporary(name):
                assert parse_name(name) is not None, name
                verify(self.objects.read(f"{_DIRECTORY}/{name}"), name)
                self.verified.add(name)

    @invariant()
    def check_published_files_never_change(self) -> None:
        for path, (data, _) in self.objects.objects.items():
            if path.startswith(f"{_DIRECTORY}/") or not is_temporary(path.rpartition("/")[2]):
                assert self._seen.setdefault(path, data) == data, path

    @invariant()
    def check_references_of_retained_versions_are_there(self) -> None:
        names = set(self._names())
        for version in self._retained():
            missing = self._footprint(version) - names
            assert not missing, f"{version} refers to {sorted(missing)}"

    @property
    def _seen(self) -> dict[str, bytes]:
        seen: dict[str, bytes] = self.__dict__.setdefault("_seen_files", {})
        return seen


def _number(name: str) -> int:
    parsed = parse_name(name)
    if isinstance(parsed, CommitName):
        return parsed.version
    return parsed.end if isinstance(parsed, SegmentName) else 0


def profile(examples: int) -> settings:
    """How hard one run of the machine looks."""
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


def run(number: int, examples: int, machine: type[StoreMachine] = StoreMachine) -> None:
    """Runs the machine with the examples that the seed `number` gives; raises what a failing one raised."""

    class Seeded(machine):  # type: ignore[valid-type, misc]
        pass

    run_state_machine_as_test(seed(number)(Seeded), settings=settings(profile(examples), database=None))


def main() -> None:
    """Command line: until the time is over or an example fails, whose seed is then the last one printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, help="run this seed only: replays what failed")
    parser.add_argument("--examples", type=int, default=100, help="examples for each seed")
    parser.add_argument("--first", type=int, default=1, help="the seed to begin with")
    given = parser.parse_args()
    if given.seed is not None:
        run(given.seed, given.examples)
        return
    clock = SystemClock()
    end = clock.monotonic() + given.minutes * 60
    for number in itertools.count(given.first):
        if clock.monotonic() >= end:
            print(f"{(number - given.first) * given.examples} examples of {given.first}-{number - 1}, none failed")
            return
        print(f"seed {number}", flush=True)
        run(number, given.examples)


if __name__ == "__main__":
    main()
