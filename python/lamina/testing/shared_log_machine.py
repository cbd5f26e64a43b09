"""Several stores of one query whose commits share log objects, against dictionaries.

`log_machine` has one store, and every rule of stores. Here it is what only sharing brings: an object has parts of
stores that are committed, compacted and collected by different processes at different times, in several runs of the
query. The rules are in docs/spec/files.md (log objects). `check_*` name what holds after each step, and `settle` what
is left at the end.

Runs under pytest as `SharedLogMachine.TestCase`, or by `python -m lamina.testing.state_machine --machine shared-log`.

Needs hypothesis.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from lamina.checkpoint import Pin, remove_pin, write_pin
from lamina.format import log_object, paths
from lamina.format.attempt_id import AttemptId
from lamina.format.container import verify
from lamina.format.log_object import LogIndex
from lamina.format.manifest import CommitManifest
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.direct.rows import newest_first
from lamina.store.files.locator import attempt_of, is_part, name_of
from lamina.store.files.log_parts import TOLD_AFTER_S
from lamina.testing.faults import Fault
from lamina.testing.machine_parts import MIN_AGE_MS
from lamina.testing.shared_log_query import (
    CHANGE,
    FAULTS,
    HOMES,
    MIN_VERSIONS,
    MINUTES,
    NOTHING,
    PROCESSES,
    STORES,
    URL,
    WHOLE,
    Batch,
    Process,
    SharedLogQuery,
)

_ROUND_MS = int(TOLD_AFTER_S * 1000) + 60_000


class SharedLogMachine(SharedLogQuery):
    """The query, whose stores are compacted and collected by whatever process comes to it."""

    # Maintenance

    @rule(number=st.integers(0, PROCESSES - 1), partitions=st.sets(st.sampled_from(STORES), min_size=1))
    def compact(self, number: int, partitions: set[int]) -> None:
        """The segment reaches all handles of the store."""
        process = self.processes[number]
        for partition in sorted(partitions):

            def step(partition: int = partition) -> None:
                store = process.store(partition)
                store.confirm(self.committed[partition])
                store.stamp_segments()
                compacted = store.compact()
                if compacted is not None:
                    for other in self.processes:
                        other.store(partition).adopt(compacted.made)

            self._surviving(process, step)

    @rule(homes=HOMES, minutes=MINUTES, partitions=st.sets(st.sampled_from(STORES), min_size=1))
    def collect(self, homes: Sequence[int], minutes: int, partitions: set[int]) -> None:
        self.clock.advance(minutes * 60_000)
        for partition in sorted(partitions):
            self._collect(self.processes[homes[partition]], partition, self.committed)

    @rule(homes=HOMES, partition=st.sampled_from(STORES), fault=FAULTS)
    def collect_with_a_fault(self, homes: Sequence[int], partition: int, fault: Fault) -> None:
        self.clock.advance(11 * 60_000)
        process = self.processes[homes[partition]]
        process.backend.inject(fault)
        self._collect(process, partition, self.committed)

    @rule(
        number=st.integers(0, PROCESSES - 1), partition=st.sampled_from(STORES), minutes=MINUTES, back=st.integers(1, 8)
    )
    def collect_with_old_news(self, number: int, partition: int, minutes: int, back: int) -> None:
        """By a process that has not heard of the newest versions."""
        self.clock.advance(minutes * 60_000)
        self._collect(self.processes[number], partition, self.log[max(0, len(self.log) - 1 - back)], stale=True)

    def _collect(self, process: Process, partition: int, batch: Batch, *, stale: bool = False) -> None:
        version = batch[partition]
        if version.attempt is None:
            return
        self.collected = max(self.collected, version.version - MIN_VERSIONS)
        gone = ("file.missing", "state.not-retained") if stale or self._is_behind_a_rewind else ()

        def step() -> None:
            store = process.store(partition)
            store.collect(store.confirm(version), dry_run=False)

        self._surviving(process, step, *gone)

    @rule(homes=HOMES, resting=st.sets(st.sampled_from(STORES), min_size=1))
    def rewind_behind_a_rest(self, homes: Sequence[int], resting: set[int]) -> None:
        """Stores commit versions that they did not have in the run before, of which somebody has told something."""
        kinds = [NOTHING if partition in resting else WHOLE for partition in STORES]
        for _ in range(MIN_VERSIONS):
            self.batch(homes, kinds, set(), False, None)
        self._collect_for_long(homes, 2)
        self.rewind(MIN_VERSIONS, homes, [CHANGE if partition in resting else NOTHING for partition in STORES])
        self._collect_for_long(homes, 2)

    def _collect_for_long(self, homes: Sequence[int], rounds: int) -> None:
        """In each round processes tell each other what their stores need."""
        for _ in range(rounds):
            self.clock.advance(_ROUND_MS)
            for partition in STORES:
                self._collect(self.processes[homes[partition]], partition, self.committed)

    # Zombies

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, 3), partition=st.sampled_from(STORES), back=st.integers(0, 3), minutes=MINUTES)
    def collect_by_a_zombie(self, which: int, partition: int, back: int, minutes: int) -> None:
        """A process of an older run deletes nothing."""
        self.clock.advance(minutes * 60_000)
        zombie = self.zombies[which % len(self.zombies)]
        version = self.log[max(0, len(self.log) - 1 - back)][partition]
        if version.attempt is None or zombie.backend.crashed:
            return
        before = self.objects.objects.keys() - self._needs_files()

        def step() -> None:
            store = zombie.store(partition)
            store.collect(store.confirm(version), dry_run=False)

        self._surviving(zombie, step, "file.missing", "state.not-retained")
        assert before <= self.objects.objects.keys(), "a process of an older run deleted something"

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, 3), partitions=st.sets(st.sampled_from(STORES), min_size=1))
    def commit_by_a_zombie(self, which: int, partitions: set[int]) -> None:
        """Its object has parts that never count."""
        zombie = self.zombies[which % len(self.zombies)]
        if not zombie.backend.crashed:
            self._attempt(dict.fromkeys(sorted(partitions), zombie), [CHANGE] * len(STORES))

    # Pins

    @precondition(lambda self: len(self.log) > 1 and len(self.pins) < 2)
    @rule(partition=st.sampled_from(STORES), back=st.integers(0, MIN_VERSIONS))
    def pin(self, partition: int, back: int) -> None:
        """Another checkpoint refers to a version that is retained."""
        batch = self._retained()[-1 - back :][0]
        version = batch[partition]
        id = f"pin-{next(self.numbers)}"
        attempts = {(0, partition, "default"): (str(version.attempt),)}
        write_pin(Storage(URL, backend=self.objects), Pin(id, "other", "machine:/other", 0, attempts))
        self.pins[id] = (partition, version)

    @precondition(lambda self: self.pins)
    @rule()
    def remove_a_pin(self) -> None:
        id = min(self.pins)
        del self.pins[id]
        remove_pin(Storage(URL, backend=self.objects), id)

    # What is left when everything has been collected

    @rule(homes=HOMES, restarts=st.booleans())
    def settle(self, homes: Sequence[int], restarts: bool) -> None:
        """Each store is collected by one process for long enough: only objects of versions that are needed are left."""
        if restarts:
            self._new_run()
        while self._is_behind_a_rewind or len(self.log) == 1:
            self.batches(homes, 1, set())
        self._collect_for_long(homes, 6)
        ranges = {partition: self._needed_range(partition) for partition in STORES}
        for path, index in self._indexes().items():
            assert any(
                part.to > len(self.log) - 1 or part.to in ranges[part.store.partition] for part in index.parts
            ), f"of {path} nothing is needed: {[(part.store.partition, part.to) for part in index.parts]}, {ranges}"
        self._check_restores({*self.pins.values(), *self._versions()})
        assert not [path for path in self._needs_files() if self._run_of(path) != f"run-{self.runs}"]

    def _needed_range(self, partition: int) -> range:
        """From the first to the last version in a log object that a retained version needs, or a pin, or a commit above
        the newest version."""
        versions = [batch[partition] for batch in self._retained()]
        versions += [version for other, version in self.pins.values() if other == partition]
        commits = filter(None, map(attempt_of, self._names(partition)))
        newest = self.committed[partition].version
        versions += [Version(one.version, str(one)) for one in commits if one.version > newest]
        names = {name for version in versions for name in self._footprint(partition, version)}
        needed = [int(name.partition("_")[0]) for name in names if is_part(name)]
        return range(min(needed), max(needed) + 1) if needed else range(0)

    def _needs_files(self) -> set[str]:
        return {path for path in self.objects.objects if paths.is_log_needs(path)}

    def _run_of(self, path: str) -> str:
        return bytes(self.objects.read(path)).partition(b'"run":"')[2].partition(b'"')[0].decode()

    # The rules that hold after each step

    def _retained(self) -> list[Batch]:
        batches = self.log[-1 - MIN_VERSIONS :]
        return [batch for batch in batches if batch[0].version >= max(1, self.collected)]

    def _versions(self) -> set[tuple[int, Version]]:
        """Those of all stores that are retained."""
        return {(partition, batch[partition]) for batch in self._retained() for partition in STORES}

    def _indexes(self) -> dict[str, LogIndex]:
        """Those of the objects that are there."""
        found = {}
        for path in list(self.objects.objects):
            if (log := paths.log_of(path) or paths.placed_log_of(paths.directory_and_name(path)[1])) is not None:
                if path not in self.indexes:
                    self.indexes[path] = log_object.verify(self.objects.read(path), log, path)
                found[path] = self.indexes[path]
        return found

    def _names(self, partition: int) -> frozenset[str]:
        """The files of a store, and its commits in log objects."""
        start = f"0/{partition}/"
        files = (path.removeprefix(start) for path in self.objects.objects if path.startswith(start))
        parts = (part for index in self._indexes().values() for part in index.parts)
        return frozenset([*files, *(name_of(part.attempt) for part in parts if part.store.partition == partition)])

    def _footprint(self, partition: int, version: Version) -> frozenset[str]:
        """The names of all that a version refers to."""
        attempt = str(version.attempt)
        if attempt not in self.footprints:
            own = name_of(attempt)
            manifest = verify(self._read(partition, own), own)
            assert isinstance(manifest, CommitManifest)
            self.footprints[attempt] = frozenset({own, *(one.path or own for one in manifest.references)})
        return self.footprints[attempt]

    def _read(self, partition: int, name: str) -> pa.Buffer:
        if not is_part(name):
            return self.objects.read(f"0/{partition}/{name}")
        for path, index in self._indexes().items():
            for part in index.parts:
                if name_of(part.attempt) == name:
                    return self.objects.read(path).slice(part.offset, part.length)
        raise AssertionError(f"{name} is in no object")

    @invariant()
    def check_what_is_needed_is_there(self) -> None:
        """By retained versions, by pins, and by readers of versions that were retained until a moment ago."""
        now = self.clock.now_ms()
        self.readers = {batch: since for batch, since in self.readers.items() if now - since < MIN_AGE_MS}
        needed = [(partition, batch[partition]) for batch in (*self._retained(), *self.readers) for partition in STORES]
        needed += self.pins.values()
        for partition in STORES:
            names = self._names(partition)
            for other, version in needed:
                if other == partition and version.attempt is not None:
                    missing = self._footprint(partition, version) - names
                    assert not missing, f"version {version.version} of store {partition} needs {sorted(missing)}"

    @invariant()
    def check_every_retained_version_restores(self) -> None:
        """As another process restores it, which has nothing but the files. Those that it has never change: as long as
        they are there, it comes out the same."""
        versions = self._versions()
        self._check_restores(versions - self.restored)
        self.restored |= versions

    def _check_restores(self, versions: Collection[tuple[int, Version]]) -> None:
        if not versions:
            return
        reader = self._new_process("reader")
        for partition, version in sorted(versions, key=str):
            load = reader.store(partition).load(version, have=None, read_only=True)
            assert newest_first(load.batches) == self.rows[version.attempt], f"rows of {version} of store {partition}"

    @invariant()
    def check_objects_are_whole_and_never_change(self) -> None:
        for path, index in self._indexes().items():
            assert index.checkpoint == self.checkpoint
            assert all(AttemptId.parse(part.attempt).version == part.to for part in index.parts), path
