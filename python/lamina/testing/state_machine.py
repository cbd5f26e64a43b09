"""A store against a dictionary: a query, its executors and its storage, in any order of events and faults.

`query_machine` plays Spark; here the store is compacted and collected besides, and after each step the rules hold that
`check_*` name.

Runs under pytest as `StoreMachine.TestCase`. For longer, or to replay what failed:

    python -m lamina.testing.state_machine --minutes 60
    python -m lamina.testing.state_machine --seed 17
    python -m lamina.testing.state_machine --machine log --minutes 30

Needs hypothesis.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Iterator

import pyarrow as pa
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from lamina.components import SystemClock
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.format.attempt_id import EMPTY, AttemptId
from lamina.format.container import verify
from lamina.format.manifest import CommitManifest
from lamina.format.paths import CommitName, SegmentName, TableListName, TableName, commit_of, parse_name
from lamina.storage import is_temporary
from lamina.store import Collected, Version
from lamina.store.collection.classes import TEMPORARY, least_age_ms
from lamina.store.direct.rows import newest_first
from lamina.store.versions.chain import Replacement
from lamina.testing.faults import Effect, Fault, FaultyBackend, Moment
from lamina.testing.machine_parts import (
    BATCHES,
    CALLS,
    CHANGES,
    DELAYS,
    DIRECTORY,
    MIN_AGE_MS,
    MIN_VERSIONS,
    MOMENTS,
    MORE_CALLS,
    SLOW_MS,
    Batch,
    Executor,
)
from lamina.testing.query_machine import QueryMachine
from lamina.testing.rows import Position, counts

_DAY_MS, _SEEDS_A_DAY = 86_400_000, 1000


class StoreMachine(QueryMachine):
    """A query whose store is compacted and collected, by executors of its runs and by zombies."""

    def __init__(self) -> None:
        super().__init__()
        self.segments: list[Replacement] = []
        self.batches_meanwhile: list[Batch] = []

    def _slowly(self, backend: FaultyBackend, milliseconds: int) -> None:
        """A call takes long; meanwhile batches are committed, and then another executor collects.

        One thread of a process looks for log objects, or for one of them, or reads the index of one, at a time: all of
        its batches wait where that takes long.
        """
        batches, self.batches_meanwhile = self.batches_meanwhile, []
        operation, path = backend.calls[-1]
        all_wait = (operation, path) == ("list", paths.LOG) or (
            operation in ("size", "read_tail") and path.startswith(paths.LOG)
        )
        for batch in batches:
            if all_wait and self.executors[batch[1]].backend is backend:
                continue
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

    # Batches with maintenance between them, and meanwhile

    @rule(number=st.integers(0, 1), operation=st.sampled_from(["*", "publish"]), call=CALLS, change=CHANGES)
    def attempt_with_a_slow_call(
        self, number: int, operation: str, call: int, change: tuple[Position, int, bytes]
    ) -> None:
        """Of a commit that is the first to name a segment, which a collector may take meanwhile."""
        self.compact(number)
        if self.segments:
            self.adopt(number, 0)
        skip = call if operation == "*" else 0
        self.executors[number].backend.inject(Fault(operation, effect=Effect.DELAY, skip=skip, delay_ms=SLOW_MS))
        self._batch((change, number))

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

    # Maintenance

    @rule(number=st.integers(0, 1))
    def compact(self, number: int) -> None:
        self._compact(self.executors[number])

    def _compact(self, executor: Executor, *kinds: str) -> None:
        def step() -> None:
            executor.store.confirm(self.known(self.committed))
            executor.store.stamp_segments()
            compacted = executor.store.compact()
            if compacted is not None:
                self.segments.append(compacted.made)

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
        before = set(self._names())
        dry = self._gone(executor.store.collect(version, dry_run=True))
        done = self._gone(executor.store.collect(version, dry_run=False))
        assert done == dry
        assert set(self._names()) == before - done

    @rule(number=st.integers(0, 1))
    def hand_footprints(self, number: int) -> None:
        """What an executor has written is told to the process that collects for it, sooner or later."""
        self.executors[1 - number].store.note_footprints(self.executors[number].store.take_footprints())

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
        needed.update(name for made in executor.store.waiting_segments() for name in made.new_names())
        for name in self._names():
            parsed = parse(name)
            if isinstance(parsed, CommitName) and parsed.version > confirmed:
                needed.update(self._footprint(Version(parsed.version, str(parsed.attempt))))
        number = {name: _number(name) for name in self._names()}
        left = {name for name in number if number[name] <= confirmed and not self._stays(name, needed)}
        left = {name for name in left if not self._may_be_published(name)}
        assert not left, f"orphans older than the minimum age: {sorted(left)}"

    # The rules that hold after each step

    def _stays(self, name: str, needed: set[str]) -> bool:
        """Whether a file that a collection leaves has a reason to be there, where these are needed."""
        return name in needed

    def _may_be_published(self, name: str) -> bool:
        """Whether a publication may go on that has begun a file."""
        age = self.clock.now_ms() - self.objects.objects[f"{DIRECTORY}/{name}"][1]
        return is_temporary(name) and age < least_age_ms(TEMPORARY, MIN_AGE_MS)

    def _gone(self, collected: Collected) -> set[str]:
        """The names that go with what a collection deletes."""
        return {deletion.path for deletion in collected.deleted}

    def _names(self) -> list[str]:
        start = len(DIRECTORY) + 1
        return [path[start:] for path in list(self.objects.objects) if path.startswith(f"{DIRECTORY}/")]

    def _read(self, name: str) -> pa.Buffer:
        return self.objects.read(f"{DIRECTORY}/{name}")

    def _retained(self) -> list[Version]:
        return [version for version in self.log[-1 - MIN_VERSIONS :] if version.version >= self.collected]

    def _manifest(self, attempt: AttemptId) -> CommitManifest:
        name = str(CommitName(attempt))
        assert name in self._names(), f"{name} is gone"
        manifest = verify(self._read(name), name)
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
                parsed = parse(name)
                assert parsed is not None, name
                if not isinstance(parsed, TableName):
                    verify(self._read(name), name)
                self.verified.add(name)

    @invariant()
    def check_published_files_never_change(self) -> None:
        for path, (data, _) in self.objects.objects.items():
            if path.startswith(f"{DIRECTORY}/") or not is_temporary(path.rpartition("/")[2]):
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


def parse(name: str) -> CommitName | SegmentName | TableListName | TableName | None:
    """What a name names, of a commit also where that is in a log object."""
    return commit_of(name) or parse_name(name)


def _number(name: str) -> int:
    parsed = parse(name)
    if isinstance(parsed, CommitName | TableListName):
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


def run(number: int, examples: int, machine: type[RuleBasedStateMachine] = StoreMachine) -> None:
    """Runs the machine with the examples that the seed `number` gives; raises what a failing one raised."""

    class Seeded(machine):  # type: ignore[valid-type, misc]
        pass

    run_state_machine_as_test(seed(number)(Seeded), settings=settings(profile(examples), database=None))


def machines() -> dict[str, type[RuleBasedStateMachine]]:
    """What can be run: one store, one whose commits are in log objects, and several stores that share these."""
    # they are made of what is above
    from lamina.testing.log_machine import LogMachine
    from lamina.testing.shared_log_machine import SharedLogMachine

    return {"store": StoreMachine, "log": LogMachine, "shared-log": SharedLogMachine}


def main() -> None:
    """Command line: until the time is over or an example fails, whose seed is then the last one printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    by_name = machines()
    parser.add_argument("--machine", choices=[*by_name], default="store")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, help="run this seed only: replays what failed")
    parser.add_argument("--examples", type=int, default=100, help="examples for each seed")
    parser.add_argument("--first", type=int, help="the seed to begin with, by default one of this day")
    given = parser.parse_args()
    machine = by_name[given.machine]
    if given.seed is not None:
        run(given.seed, given.examples, machine)
        return
    clock = SystemClock()
    end = clock.monotonic() + given.minutes * 60
    first = clock.now_ms() // _DAY_MS * _SEEDS_A_DAY if given.first is None else given.first
    for number in itertools.count(first):
        if clock.monotonic() >= end:
            print(f"{(number - first) * given.examples} examples of {first}-{number - 1}, none failed")
            return
        print(f"{given.machine}: seed {number}", flush=True)
        run(number, given.examples, machine)


if __name__ == "__main__":
    main()
