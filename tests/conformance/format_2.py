"""The conformance suite in checkpoint format v2, where versions are opened by the attempts that a commit log names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lamina.store.direct.open import _inherited, _settings
from lamina.store.direct.store import DirectStore
from lamina.store.model import StoreConf, StoreId, Version
from lamina.store.versioned_store import VersionedStore
from lamina.testing.store_conformance import StoreConformance


@dataclass
class CommitLog:
    """What a query knows: its committed versions, oldest first, and the store of the run that goes on."""

    versions: list[Version] = field(default_factory=list)
    running: VersionedStore | None = None


class StoreByAttempts(DirectStore):
    """A store whose newest version is the commit log's, and that writes nothing where nothing changed."""

    def __init__(self, log: CommitLog, *arguments: Any, **named: Any) -> None:
        self._commits = log
        super().__init__(*arguments, **named)

    def _start_run(self) -> None:
        goes_on = self._run
        super()._start_run()
        if not goes_on:
            self._commits.running = self._store

    def _tip(self, heap: VersionedStore) -> Version:
        return self._commits.versions[-1] if self._commits.versions else Version(0)

    def commit(self, *, snapshot: bool = False) -> Version:
        self._start_run()
        same = self._families == self._committed_families and not self._changed_rows()
        if same and not snapshot and self._version.attempt is not None:
            self._version = Version(self._version.version + 1, self._version.attempt)
            self._store.confirm(self._version)
            self._changes = {}
        else:
            super().commit(snapshot=snapshot)
        if self._commits.running is self._store:
            kept = [version for version in self._commits.versions if version.version < self._version.version]
            self._commits.versions = [*kept, self._version]
        return self._version


class InFormat2(StoreConformance):
    """All of the suite, but that a writer of an older run is not refused: no log names what it writes."""

    kind: type[StoreByAttempts] = StoreByAttempts

    def setup_method(self) -> None:
        super().setup_method()
        self.log = CommitLog()

    def open(self, *, writable: bool = True, min_versions: int | None = None, **changed: Any) -> DirectStore:
        settings = _settings({**self.settings, **changed})
        return self.kind(
            self.log,
            self.storage,
            StoreId("conformance:/checkpoint/state", 0, 0, "default"),
            StoreConf(settings, format_version=2, spark="none", min_versions=min_versions or 100),
            self.clock,
            self.ids,
            writable=writable,
            inherited=_inherited(changed, min_versions),
        )

    test_a_writer_that_has_begun_is_refused_once_another_one_committed = None  # type: ignore[assignment]

    def test_an_attempt_of_an_older_run_stands_beside_and_changes_nothing(self) -> None:
        zombie = self.open()
        zombie.put(b"k", b"before")
        zombie.commit()
        zombie.put(b"k", b"zombie")
        store = self.open()
        store.put(b"k", b"live")
        live = store.commit()
        before = self.files()
        late = zombie.commit()
        assert (late.version, live.version) == (2, 2)
        assert late.attempt != live.attempt
        assert all(set(names) <= set(self.files()[directory]) for directory, names in before.items())
        assert self.state(self.open(writable=False)) == {b"k": b"live"}
        store.put(b"l", b"live")
        store.commit()
        assert self.state(self.open(writable=False)) == {b"k": b"live", b"l": b"live"}

    def test_versions_that_changed_nothing_are_restored_from_the_file_before(self) -> None:
        store = self.open()
        store.put(b"k", b"1")
        first = store.commit()
        before = self.files()
        store.put(b"k", b"1")
        second = store.commit()
        assert second == Version(2, first.attempt)
        assert self.files() == before
        store.put(b"k", b"3")
        third = store.commit()
        reader = self.open()
        for version, value in ((first, b"1"), (second, b"1"), (third, b"3")):
            reader.restore(version)
            assert self.state(reader) == {b"k": value}
