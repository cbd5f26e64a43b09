"""The conformance suite in checkpoint format v2, where versions are opened by the attempts that a commit log names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lamina.store.heap import HeapStore
from lamina.store.model import StoreConf, StoreId, Version
from lamina.store.plain import PlainStore, _settings
from lamina.testing.store_conformance import StoreConformance


@dataclass
class CommitLog:
    """What a query knows: its committed versions, oldest first, and the store of the run that goes on."""

    versions: list[Version] = field(default_factory=list)
    running: HeapStore | None = None


class StoreByAttempts(PlainStore):
    """A store whose newest version is the commit log's, and that writes nothing where nothing changed."""

    def __init__(self, log: CommitLog, *arguments: Any, **named: Any) -> None:
        self._log = log
        super().__init__(*arguments, **named)

    def _new_run(self) -> HeapStore:
        heap = super()._new_run()
        if not self._read_only:
            self._log.running = heap
        return heap

    def _tip(self) -> Version:
        return self._log.versions[-1] if self._log.versions else Version(0)

    def commit(self, *, snapshot: bool = False) -> Version:
        self._require_writing()
        same = self._families == self._committed_families and not self._changed_rows()
        if same and not snapshot and self._version.attempt is not None:
            self._version = Version(self._version.version + 1, self._version.attempt)
            self._heap.confirm(self._version)
            self._changes = {}
        else:
            super().commit(snapshot=snapshot)
        if self._log.running is self._heap:
            kept = [version for version in self._log.versions if version.version < self._version.version]
            self._log.versions = [*kept, self._version]
        return self._version


class InFormat2(StoreConformance):
    """All of the suite, but that a writer of an older run is not refused: no log names what it writes."""

    def setup_method(self) -> None:
        super().setup_method()
        self.log = CommitLog()

    def open(self, *, read_only: bool = False, min_versions: int = 100, **changed: Any) -> PlainStore:
        settings = _settings({**self.settings, **changed})
        return StoreByAttempts(
            self.log,
            self.storage,
            StoreId("conformance:/checkpoint/state", 0, 0, "default"),
            StoreConf(settings, format_version=2, spark="none", min_versions=min_versions),
            self.clock,
            self.ids,
            read_only=read_only,
        )

    test_a_writer_of_an_older_run_is_refused_and_changes_nothing = None  # type: ignore[assignment]

    def test_an_attempt_of_an_older_run_stands_beside_and_changes_nothing(self) -> None:
        zombie = self.open()
        zombie.put(b"k", b"zombie")
        store = self.open()
        store.put(b"k", b"live")
        live = store.commit()
        before = self.files()
        late = zombie.commit()
        assert (late.version, live.version) == (1, 1)
        assert late.attempt != live.attempt
        assert all(set(names) <= set(self.files()[directory]) for directory, names in before.items())
        assert self.state(self.open(read_only=True)) == {b"k": b"live"}
        store.put(b"l", b"live")
        store.commit()
        assert self.state(self.open(read_only=True)) == {b"k": b"live", b"l": b"live"}

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
