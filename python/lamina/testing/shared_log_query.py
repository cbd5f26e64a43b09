"""One query over several stores whose commits share log objects: batches, second attempts, late objects, restarts.

It plays Spark, as `query_machine` does for one store. A process has one storage, one `Groups` and one `LogObjects` for
all of its stores; which store is where changes with every batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lamina.errors import LaminaError
from lamina.format.entries import PUT
from lamina.format.log_object import LogIndex
from lamina.format.manifest import INCREMENT, SNAPSHOT
from lamina.settings import NONE, Settings
from lamina.storage import Storage
from lamina.store import CheckpointState, CommitRequest, Store, StoreConf, StoreId, Version
from lamina.store.changelog.groups import Groups, Policy
from lamina.store.factory import make_store
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.log_places import LogPlaces
from lamina.store.model import Accepted
from lamina.testing.below import Below
from lamina.testing.components import ManualClock, SequenceIds
from lamina.testing.faults import Crashed, Effect, Fault, FaultyBackend, Moment
from lamina.testing.log_objects import publisher
from lamina.testing.machine_parts import MIN_AGE_MS, START_MS
from lamina.testing.memory import MemoryBackend
from lamina.testing.rows import FAMILIES, VALUES_FAMILY, Rows, batch_of, counts

STORES = range(3)
PROCESSES = 2
MIN_VERSIONS = 2
ROOT = "machine:/"
URL = f"{ROOT}checkpoint/state"
BESIDE = f"{ROOT}beside"
_MOST_HELD = 1 << 20

CHANGE, WHOLE, NOTHING = "change", "whole", "nothing"
KINDS = st.tuples(*(st.sampled_from([CHANGE, CHANGE, CHANGE, WHOLE, NOTHING]) for _ in STORES))
"""What each store of a batch commits: its changes, all of its rows besides, or nothing."""
HOMES = st.tuples(*(st.integers(0, PROCESSES - 1) for _ in STORES))
"""The process of each store."""
FAULTS = st.builds(
    Fault,
    operation=st.sampled_from(["*", "*", "publish", "list", "read_tail", "delete_many"]),
    effect=st.sampled_from([Effect.FAIL, Effect.CRASH]),
    moment=st.sampled_from(list(Moment)),
    skip=st.integers(0, 8),
)
MINUTES = st.sampled_from([0, 1, 11, 11, 30])


@dataclass
class Process:
    """An executor: its storage, its groups, and the stores that it has opened."""

    run: int
    backend: FaultyBackend
    groups: Groups
    publishing: list[Callable[[], None]]
    open: Callable[[int], Store]
    stores: dict[int, Store] = field(default_factory=dict)

    def store(self, partition: int) -> Store:
        if partition not in self.stores:
            self.stores[partition] = self.open(partition)
        return self.stores[partition]

    def publish(self) -> None:
        """All that waits becomes objects."""
        self.groups.seal()
        while self.publishing:
            self.publishing.pop()()
        if self.backend.crashed:
            raise Crashed


Batch = tuple[Version, ...]
"""The version of each store."""


class SharedLogQuery(RuleBasedStateMachine):
    """Events of one query over three stores, in checkpoint format 2."""

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock(START_MS)
        self.ids = SequenceIds(1)
        self.objects = MemoryBackend(self.clock)
        self.settings = Settings(retention_min_age_ms=MIN_AGE_MS, compaction_max_chain=6)
        self.numbers = itertools.count(1)
        self.runs = 0
        self.log: list[Batch] = [tuple(Version(0) for _ in STORES)]
        self.rows: dict[str | None, Rows] = {None: {}}
        self.collected = 0
        self.processes: list[Process] = []
        self.zombies: list[Process] = []
        self.late: list[Callable[[], None]] = []
        self.pins: dict[str, tuple[int, Version]] = {}
        # of versions that are retained no more: who opened one before may read it for as long as the minimum age
        self.readers: dict[Batch, int] = {}
        self.indexes: dict[str, LogIndex] = {}
        self.footprints: dict[str, frozenset[str]] = {}
        self.restored: set[tuple[int, Version]] = set()
        self._new_run()

    # Processes

    def _new_run(self) -> None:
        self.zombies = [*self.processes, *self.zombies][: 2 * PROCESSES]
        self.runs += 1
        # runs write to the checkpoint, to one place or to another
        self.path = (NONE, f"{BESIDE}/0", f"{BESIDE}/1")[self.runs % 3]
        self.processes = [self._new_process() for _ in range(PROCESSES)]

    def _new_process(self, run: str | None = None) -> Process:
        backend = FaultyBackend(self.objects, shuffle=self.runs, wait=self.clock.advance)
        storage = Storage(URL, backend=backend)
        clock, ids = self.clock, self.ids
        run_id = run or f"run-{self.runs}"
        state = CheckpointState.open(storage, run_id=run_id, read_only=run is not None, clock=clock, ids=ids)
        places = LogPlaces(storage, lambda url: Storage(url, backend=Below(backend, url.removeprefix(ROOT))))
        logs = LogObjects(storage, clock, ids, tells=run is None, places=places)
        publishing: list[Callable[[], None]] = []

        place = places.own if run is not None else places.take(self.path, state.uuid or "", ids)
        publish = publisher(place, state.uuid, clock)
        groups = Groups(Policy(1.0, 1.0, 1.0, 1 << 20), publish, publishing.append, clock, ids)

        def opened(partition: int) -> Store:
            return make_store(
                state,
                StoreId(URL, 0, partition, "default"),
                StoreConf(self.settings, 2, "none", MIN_VERSIONS),
                clock=clock,
                ids=ids,
                groups=groups if run is None else None,
                logs=logs,
            )

        self.checkpoint = state.uuid or ""
        return Process(self.runs, backend, groups, publishing, opened)

    def _surviving(self, process: Process, step: Callable[[], object], *kinds: str) -> bool:
        """Whether `step` succeeded; the process may crash, its storage fail, and errors of `kinds` be raised."""
        try:
            step()
        except Crashed:
            note(f"a process of run {process.run} crashed")
            if process in self.processes:
                self.processes[self.processes.index(process)] = self._new_process()
            self.zombies = [zombie for zombie in self.zombies if zombie is not process]
            return False
        except LaminaError as error:
            process.backend.heal()
            if error.kind not in ("storage.failed", *kinds):
                raise
            note(f"not done: {error}")
            return False
        process.backend.heal()
        return True

    # Batches

    @property
    def committed(self) -> Batch:
        return self.log[-1]

    @rule(
        homes=HOMES,
        kinds=KINDS,
        twice=st.sets(st.sampled_from(STORES), max_size=2),
        late=st.booleans(),
        fault=st.none() | st.none() | FAULTS,
    )
    def batch(
        self, homes: Sequence[int], kinds: Sequence[str], twice: set[int], late: bool, fault: Fault | None
    ) -> None:
        """The first attempts of `twice` do not count, and maybe their object comes when nobody waits for it."""
        self.clock.advance(1000)
        if twice:
            lost = {partition: self.processes[homes[partition]] for partition in sorted(twice)}
            if late:
                self._attempt_late(lost, kinds)
            else:
                self._attempt(lost, kinds)
        if fault is not None:
            self.processes[homes[0]].backend.inject(fault)
        made: dict[int, Version] = {}
        for turn in range(4):
            tasks = {
                partition: self.processes[(homes[partition] + turn) % PROCESSES]
                for partition in STORES
                if partition not in made
            }
            made.update(self._attempt(tasks, kinds))
        assert len(made) == len(STORES), "a task failed four times"
        self._commit(tuple(made[partition] for partition in STORES))

    def _commit(self, batch: Batch) -> None:
        self.log.append(batch)
        over = len(self.log) - 2 - MIN_VERSIONS
        # behind a rewind it may have been collected before
        if over >= max(1, self.collected):
            self.readers[self.log[over]] = self.clock.now_ms()

    @rule(homes=HOMES, count=st.integers(1, 6), whole=st.sets(st.sampled_from(STORES)))
    def batches(self, homes: Sequence[int], count: int, whole: set[int]) -> None:
        """Some where nothing goes wrong, of which the last one has all rows of some stores."""
        for number in range(count):
            last = number == count - 1
            kinds = [WHOLE if last and partition in whole else CHANGE for partition in STORES]
            self.batch(homes, kinds, set(), False, None)

    def _attempt(self, tasks: Mapping[int, Process], kinds: Sequence[str]) -> dict[int, Version]:
        """The versions that tasks made, which become durable together; those of a task that failed are not there."""
        accepted = self._accepted(tasks, kinds)
        made: dict[int, Version] = {}
        for process in {id(process): process for process in tasks.values()}.values():
            if not self._surviving(process, process.publish):
                continue
            for partition, (attempt, version) in accepted.items():
                if tasks[partition] is process and self._surviving(process, attempt.publish, "state.base"):
                    made[partition] = version
        for partition in tasks:
            base = self.committed[partition]
            if kinds[partition] == NOTHING and base.attempt is not None:
                made[partition] = Version(base.version + 1, base.attempt)
        return made

    def _attempt_late(self, tasks: Mapping[int, Process], kinds: Sequence[str]) -> None:
        """Attempts whose objects are written some day."""
        self._accepted(tasks, kinds)
        for process in tasks.values():
            process.groups.seal()
            self.late = [*self.late, *process.publishing][-4:]
            process.publishing.clear()

    def _accepted(self, tasks: Mapping[int, Process], kinds: Sequence[str]) -> dict[int, tuple[Accepted, Version]]:
        found: dict[int, tuple[Accepted, Version]] = {}
        for partition, process in tasks.items():
            base = self.committed[partition]
            if kinds[partition] == NOTHING and base.attempt is not None:
                continue

            def step(partition: int = partition, process: Process = process, base: Version = base) -> None:
                found[partition] = self._accept(process, partition, base, whole=kinds[partition] == WHOLE)

            if not process.backend.crashed:
                self._surviving(process, step, "state.base")
        return found

    def _accept(self, process: Process, partition: int, base: Version, *, whole: bool) -> tuple[Accepted, Version]:
        store, number = process.store(partition), next(self.numbers)
        begun = store.begin(base, task_attempt=number, load_empty=False, force_snapshot=whole, have=True)
        changed = (VALUES_FAMILY, b"%d" % (number % 3)), b"%d-%d" % (partition, number)
        rows = {**self.rows[base.attempt], changed[0]: changed[1]}
        sections = {INCREMENT: [batch_of([(*changed[0], PUT, changed[1])])]}
        if begun.snapshot:
            sections[SNAPSHOT] = [batch_of((*position, PUT, value) for position, value in rows.items())]
        request = CommitRequest(
            begun.attempt, base.version + 1, base, counts(rows), FAMILIES, len(FAMILIES), number, {}, None
        )
        # what has no place in a group may be published before it is accepted
        self.rows[begun.attempt] = rows
        accepted = store.accept(request, sections, most_held=_MOST_HELD)
        self.rows[accepted.attempt] = rows
        return accepted, Version(base.version + 1, accepted.attempt)

    @precondition(lambda self: self.late)
    @rule(minutes=MINUTES)
    def late_objects_come(self, minutes: int) -> None:
        """Also those of processes that are gone: their last request was under way."""
        self.clock.advance(minutes * 60_000)
        late, self.late = self.late, []
        for publish in late:
            publish()

    # The query's life

    @rule(number=st.integers(0, PROCESSES - 1))
    def lose_a_process(self, number: int) -> None:
        self.processes[number] = self._new_process()

    @rule()
    def restart(self) -> None:
        self._new_run()

    @rule(back=st.integers(1, MIN_VERSIONS), homes=HOMES, kinds=KINDS)
    def rewind(self, back: int, homes: Sequence[int], kinds: Sequence[str]) -> None:
        """Spark's log is cut, and a new run executes the batches again from there."""
        back = min(back, len(self.log) - 2, len(self.log) - 1 - self.collected)
        if back > 0:
            del self.log[-back:]
            self.readers = {batch: since for batch, since in self.readers.items() if batch in self._left}
            self._new_run()
            # a rewind counts once something is committed on it
            self.batch(homes, kinds, set(), False, None)

    @property
    def _left(self) -> list[Batch]:
        return self.log[: max(0, len(self.log) - 1 - MIN_VERSIONS)]

    @property
    def _is_behind_a_rewind(self) -> bool:
        """Whether versions count as retained again that were collected before: a collection may stop at them."""
        return max(0, len(self.log) - 1 - MIN_VERSIONS) < self.collected
