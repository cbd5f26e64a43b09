"""A store against a dictionary: any order of commits, aborts, second attempts, restores, compactions and collections.

After each step: the rows are the model's, every version that must be kept restores, and every file is whole.
A failing example is printed as a program.
"""

from __future__ import annotations

import itertools
import uuid
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lamina.format.container import verify
from lamina.format.paths import parse_name
from lamina.storage import Backend, Listed, Storage, is_temporary
from lamina.store.model import Version
from lamina.store.plain import PlainStore, open_store
from lamina.testing import Fault, FaultyBackend, ManualClock, SequenceIds
from lamina.testing.expect import fails_with

MIN_AGE_MS = 600_000
MIN_VERSIONS = 3
START_MS = 1_790_000_000_000
SEEDS = itertools.count(1)

Model = dict[tuple[str, bytes], Any]

KEYS = st.sampled_from([b"", b"a", b"b", b"a\xff", b"\x00"])
VALUES = st.binary(max_size=4)


class Aged(FaultyBackend):
    """Objects in memory whose time of publication is the test's clock."""

    def __init__(self, inner: Backend, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._times: dict[str, int] = {}

    def publish(self, path: str, chunks: Any) -> int:
        self._times[path] = self._clock.now_ms()
        return super().publish(path, chunks)

    def list(self, directory: str) -> list[Listed]:
        return [
            Listed(entry.name, entry.size, self._times.get(f"{directory}/{entry.name}", START_MS))
            for entry in super().list(directory)
        ]


class StoreMachine(RuleBasedStateMachine):
    store: PlainStore

    @initialize(
        mode=st.sampled_from(
            [{}, {"compaction_max_chain": 3}, {"compaction_mode": "full", "compaction_full_interval": 3}]
        )
    )
    def start(self, mode: dict[str, Any]) -> None:
        self.mode = mode
        self.clock = ManualClock(START_MS)
        self.ids = SequenceIds(next(SEEDS))
        inner = Storage(f"memory://machine/{uuid.uuid4()}")
        self.faults = Aged(inner._backend, self.clock)
        self.storage = Storage(inner.url, backend=self.faults)
        self.store = self.opened()
        self.model: Model = {}
        self.committed: Model = {}
        self.lineage: list[Version] = []
        self.states: dict[Version, Model] = {Version(0): {}}
        # what was out of retention when a collection ran stays lost, also when the query is rewound after it
        self.collected = 0
        self.checked: set[str] | None = None
        self.verified: set[str] = set()

    def opened(self) -> PlainStore:
        return open_store(
            "machine:/",
            storage=self.storage,
            clock=self.clock,
            ids=self.ids,
            min_versions=MIN_VERSIONS,
            retention_min_age_ms=MIN_AGE_MS,
            **self.mode,
        )

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.store.put(key, value)
        self.model["default", key] = value

    @rule(key=KEYS, element=VALUES)
    def append(self, key: bytes, element: bytes) -> None:
        self.store.append(key, element, "lists")
        self.model["lists", key] = [*self.model.get(("lists", key), []), element]

    @rule(key=KEYS, family=st.sampled_from(["default", "lists"]))
    def remove(self, key: bytes, family: str) -> None:
        self.store.remove(key, family)
        self.model.pop((family, key), None)

    @rule()
    def abort(self) -> None:
        self.store.abort()
        self.model = dict(self.committed)

    @rule(snapshot=st.booleans())
    def commit(self, snapshot: bool) -> None:
        self.clock.advance(1000)
        self._committed(self.store.commit(snapshot=snapshot))

    def _committed(self, version: Version) -> None:
        self.committed = dict(self.model)
        self.states[version] = dict(self.model)
        self.lineage.append(version)

    @rule(after=st.booleans())
    def commit_through_a_failing_storage(self, after: bool) -> None:
        """Before it was applied nothing is committed; after it the lost answer is looked up."""
        self.faults.inject(Fault("publish", ".lam", after=after))
        if after:
            self._committed(self.store.commit())
        else:
            with fails_with("storage.failed"):
                self.store.commit()
        self.faults.heal()

    @rule(after=st.booleans())
    def commit_while_segments_cannot_be_written(self, after: bool) -> None:
        """One that waited long is published anew before it is named: that it cannot be costs the segment only."""
        self.faults.inject(Fault("publish", ".seg", after=after, times=1_000_000))
        self.clock.advance(1000)
        self._committed(self.store.commit())
        self.faults.heal()

    @rule()
    def crash(self) -> None:
        self.store = self.opened()
        self.model = dict(self.committed)

    @precondition(lambda self: self.lineage)
    @rule(back=st.integers(0, MIN_VERSIONS))
    def restore(self, back: int) -> None:
        """A query that was rewound: the next commit is a second attempt of what was after it."""
        back = min(back, len(self.lineage) - 1, self.lineage[-1].version - self.collected)
        del self.lineage[len(self.lineage) - back :]
        self.store.restore(self.lineage[-1])
        self.committed = dict(self.states[self.lineage[-1]])
        self.model = dict(self.committed)
        # the rewind counts once something is committed on it
        self.clock.advance(1000)
        self._committed(self.store.commit())

    @rule(key=KEYS, value=VALUES)
    def zombie(self, key: bytes, value: bytes) -> None:
        """A writer of the run before this one wakes up and tries to commit."""
        zombie = self.store
        self.store = self.opened()
        self.model = dict(self.committed)
        zombie.put(key, value)
        with fails_with("state.superseded"):
            zombie.commit()

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @rule(minutes=st.integers(0, 30))
    def collect(self, minutes: int) -> None:
        self.clock.advance(minutes * 60_000)
        if self.lineage:
            self.collected = max(self.collected, self.lineage[-1].version - MIN_VERSIONS)
        dry = {deletion.path for deletion in self.store.collect(dry_run=True).deleted}
        assert {deletion.path for deletion in self.store.collect().deleted} == dry

    @rule()
    def collect_through_a_failing_storage(self) -> None:
        self.faults.inject(Fault("delete_many"))
        if self.store.collect(dry_run=True).deleted:
            with fails_with("storage.failed"):
                self.store.collect()
        self.faults.heal()

    @invariant()
    def rows_are_the_models(self) -> None:
        found = {(family, key): value for family in ("default", "lists") for key, value in self.store.scan(family)}
        assert found == self.model

    @invariant()
    def the_newest_version_is_the_last_one_committed_and_retained_versions_restore(self) -> None:
        files = {entry.name for entry in self.storage.list("0/0")}
        if files == self.checked:
            return
        self.checked = files
        reader = self.opened_for_reading()
        assert reader.version == (self.lineage[-1] if self.lineage else Version(0))
        for version in self.lineage[-1 - MIN_VERSIONS :]:
            if version.version < self.collected:
                continue
            reader.restore(version)
            found = {(family, key): value for family in ("default", "lists") for key, value in reader.scan(family)}
            assert found == self.states[version]

    def opened_for_reading(self) -> PlainStore:
        """The store as another process sees it, over a copy: opening for writing starts a run."""
        copy = Storage(f"memory://machine/{uuid.uuid4()}")
        for directory in ("_lamina", "_lamina/runs", "0/0"):
            for entry in self.storage.list(directory):
                path = f"{directory}/{entry.name}"
                copy.publish(path, bytes(self.storage.read(path)))
        return open_store("machine:/", storage=copy, clock=self.clock, ids=SequenceIds(next(SEEDS)))

    @invariant()
    def every_file_is_whole_and_known(self) -> None:
        for entry in self.storage.list("0/0"):
            assert parse_name(entry.name) is not None
            assert not is_temporary(entry.name)
            if entry.name not in self.verified:
                verify(self.storage.read(f"0/0/{entry.name}"), entry.name)
                self.verified.add(entry.name)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
