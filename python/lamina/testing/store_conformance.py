"""What every store must do, whatever its storage and mode: subclass `StoreConformance` once per combination.

The tests speak to `DirectStore`, which stands on the same classes as a store under Spark.
"""

from __future__ import annotations

from typing import Any

from lamina.format import paths
from lamina.storage import Storage
from lamina.store.direct.open import open_store
from lamina.store.direct.store import DirectStore
from lamina.store.model import Version
from lamina.testing.components import ManualClock, SequenceIds
from lamina.testing.expect import fails_with

State = dict[bytes, Any]

START_MS = 1_800_000_000_000
MINUTE_MS = 60_000


class StoreConformance:
    """Tests of one kind of store; each gets an empty checkpoint. `settings` are those of the kind.

    `first_stays`: whether the first commit stays as the only file of its directory.
    """

    settings: dict[str, Any] = {}  # noqa: RUF012
    first_stays = False
    storage: Storage
    clock: ManualClock

    def new_storage(self) -> Storage:
        """An empty storage, whose root is the directory `state` of a checkpoint."""
        raise NotImplementedError

    def setup_method(self) -> None:
        self.storage = self.new_storage()
        self.clock = ManualClock(START_MS)
        self.ids = SequenceIds()

    def open(self, **changed: Any) -> DirectStore:
        """The store, opened for writing as another process would."""
        arguments: dict[str, Any] = {"writable": True, **self.settings, **changed}
        return open_store("conformance:/checkpoint", storage=self.storage, clock=self.clock, ids=self.ids, **arguments)

    def files(self) -> dict[str, list[str]]:
        """The names of the checkpoint's files, by directory."""
        directories = (
            paths.directory_and_name(paths.CHECKPOINT)[0],
            paths.RUNS,
            paths.store_directory(0, 0, "default"),
        )
        return {directory: sorted(entry.name for entry in self.storage.list(directory)) for directory in directories}

    @staticmethod
    def state(store: DirectStore, family: str = "default") -> State:
        return dict(store.scan(family))

    def test_an_empty_store_has_version_zero_and_no_rows(self) -> None:
        store = self.open()
        assert store.version == Version(0)
        assert self.state(store) == {}
        assert store.get(b"a") is None

    def test_a_transaction_sees_its_own_changes(self) -> None:
        store = self.open()
        store.put(b"a", b"1")
        store.put(b"b", b"2")
        store.remove(b"a")
        assert self.state(store) == {b"b": b"2"}
        assert store.get(b"a") is None

    def test_a_commit_is_there_after_opening_anew(self) -> None:
        store = self.open()
        store.put(b"a", b"1")
        version = store.commit()
        again = self.open()
        assert again.version == version
        assert self.state(again) == {b"a": b"1"}

    def test_what_was_not_committed_is_gone(self) -> None:
        store = self.open()
        store.put(b"a", b"1")
        store.commit()
        store.put(b"a", b"2")
        store.put(b"b", b"2")
        assert self.state(self.open()) == {b"a": b"1"}

    def test_an_abort_leaves_the_base(self) -> None:
        store = self.open()
        store.put(b"a", b"1")
        store.commit()
        store.put(b"a", b"2")
        store.remove(b"a")
        store.append(b"l", b"x", "lists")
        store.abort()
        assert self.state(store) == {b"a": b"1"}
        assert self.state(store, "lists") == {}

    def test_deletes_are_restored_as_deletes(self) -> None:
        store = self.open()
        store.put(b"a", b"1")
        store.put(b"b", b"1")
        store.commit()
        store.remove(b"a")
        store.commit()
        assert self.state(self.open()) == {b"b": b"1"}

    def test_empty_keys_and_values_are_keys_and_values(self) -> None:
        store = self.open()
        store.put(b"", b"empty key")
        store.put(b"k", b"")
        store.commit()
        assert self.state(self.open()) == {b"": b"empty key", b"k": b""}

    def test_lists_grow_by_appends_and_keep_their_order(self) -> None:
        store = self.open()
        store.append(b"l", b"1", "lists")
        store.append(b"l", b"", "lists")
        store.commit()
        store.append(b"l", b"3", "lists")
        store.commit()
        store.append(b"m", b"x", "lists")
        store.commit()
        assert self.state(self.open(), "lists") == {b"l": [b"1", b"", b"3"], b"m": [b"x"]}

    def test_a_list_that_was_removed_starts_anew(self) -> None:
        store = self.open()
        store.append(b"l", b"1", "lists")
        store.commit()
        store.remove(b"l", "lists")
        store.append(b"l", b"2", "lists")
        store.commit()
        store.append(b"l", b"3", "lists")
        store.commit()
        assert self.state(self.open(), "lists") == {b"l": [b"2", b"3"]}

    def test_column_families_are_key_spaces_of_their_own(self) -> None:
        store = self.open()
        store.put(b"k", b"1")
        store.put(b"k", b"2", "other")
        store.commit()
        store.remove(b"k")
        store.commit()
        again = self.open()
        assert self.state(again) == {}
        assert self.state(again, "other") == {b"k": b"2"}

    def test_scans_are_ordered_by_key_and_prefixes_select(self) -> None:
        store = self.open()
        for key in (b"b1", b"a2", b"b\xff", b"a1", b"c"):
            store.put(key, key)
        store.commit()
        assert [key for key, _ in store.scan()] == [b"a1", b"a2", b"b1", b"b\xff", b"c"]
        assert [key for key, _ in store.prefix_scan(b"b")] == [b"b1", b"b\xff"]

    def test_every_kept_version_is_restored(self) -> None:
        store = self.open()
        states = []
        for number in range(12):
            store.put(b"%d" % (number % 5), b"%d" % number)
            if number % 3 == 2:
                store.remove(b"%d" % ((number + 1) % 5))
            store.commit()
            states.append(self.state(store))
            store.compact()
        reader = self.open()
        versions = reader.versions()
        assert [known.version for known in versions] == list(range(1, 13))
        for known, state in zip(versions, states, strict=True):
            reader.restore(known)
            assert self.state(reader) == state

    def test_a_commit_after_a_restore_replaces_what_came_later(self) -> None:
        store = self.open()
        for number in range(1, 5):
            store.put(b"k", b"%d" % number)
            store.commit()
        store.restore(2)
        store.put(b"k", b"new")
        store.commit()
        again = self.open()
        assert again.version.version == 3
        assert self.state(again) == {b"k": b"new"}
        assert [known.version for known in again.versions()] == [1, 2, 3]

    def test_a_second_attempt_is_relative_to_the_same_base(self) -> None:
        store = self.open()
        store.put(b"a", b"1")
        store.commit()
        store.put(b"first", b"x")
        first = store.commit()
        store.restore(1)
        store.put(b"second", b"y")
        second = store.commit()
        reader = self.open()
        reader.restore(second)
        assert self.state(reader) == {b"a": b"1", b"second": b"y"}
        reader.restore(first)
        assert self.state(reader) == {b"a": b"1", b"first": b"x"}

    def test_a_writer_of_an_older_run_is_refused_and_changes_nothing(self) -> None:
        zombie = self.open()
        zombie.put(b"k", b"zombie")
        store = self.open()
        store.put(b"k", b"live")
        store.commit()
        with fails_with("state.superseded"):
            zombie.commit()
        assert self.state(self.open()) == {b"k": b"live"}

    def test_a_writer_that_has_begun_is_refused_once_another_one_committed(self) -> None:
        zombie = self.open()
        zombie.put(b"k", b"first")
        zombie.commit()
        zombie.put(b"k", b"zombie")
        store = self.open()
        store.put(b"k", b"live")
        store.commit()
        with fails_with("state.superseded"):
            zombie.commit()
        assert self.state(self.open()) == {b"k": b"live"}

    def test_a_writer_that_was_opened_and_changes_nothing_writes_no_file_and_stops_no_other(self) -> None:
        store = self.open()
        store.put(b"k", b"1")
        store.commit()
        before = self.files()
        other = self.open()
        other.put(b"k", b"never committed")
        assert self.files() == before
        store.put(b"k", b"2")
        store.commit()
        for change in (other.commit, other.compact, other.collect):
            with fails_with("state.superseded"):
                change()
        assert self.state(self.open()) == {b"k": b"2"}

    def test_a_store_keeps_the_retention_that_it_records(self) -> None:
        store = self.open(min_versions=2, retention_min_age_ms=0)
        for number in range(6):
            store.put(b"k", b"%d" % number)
            store.commit(snapshot=True)
        self.clock.advance(MINUTE_MS)
        self.open(min_versions=100).collect()
        assert [version.version for version in self.open().versions()] == [1, 2, 3, 4, 5, 6]
        self.open().collect()
        assert [version.version for version in self.open().versions()] == [*([1] if self.first_stays else []), 4, 5, 6]

    def test_a_reader_changes_no_file_and_holds_no_writer_up(self) -> None:
        empty = self.open(writable=False)
        assert (empty.version, self.state(empty)) == (Version(0), {})
        store = self.open()
        store.put(b"k", b"1")
        first = store.commit()
        before = self.files()
        reader = self.open(writable=False)
        for change in (
            lambda: reader.put(b"k", b"2"),
            lambda: reader.append(b"k", b"2", "lists"),
            lambda: reader.remove(b"k"),
            reader.commit,
            reader.compact,
            reader.collect,
        ):
            with fails_with("store.state") as caught:
                change()
            assert "writable" in caught.error.message
        reader.collect(dry_run=True)
        reader.restore(first)
        assert self.files() == before
        store.put(b"k", b"2")
        store.commit()
        assert (self.state(reader), self.state(self.open(writable=False))) == ({b"k": b"1"}, {b"k": b"2"})

    def test_a_version_that_was_never_there_is_named(self) -> None:
        store = self.open()
        store.put(b"k", b"1")
        store.commit()
        with fails_with("state.not-retained") as caught:
            store.restore(7)
        assert "7" in caught.error.message
        assert self.state(store) == {b"k": b"1"}

    def test_compaction_changes_no_state(self) -> None:
        store = self.open()
        # a look restores both states twice, which takes seconds where each of their files is a few requests
        look = 8 if self.storage.remote else 1
        for number in range(40):
            store.put(b"%d" % (number % 7), b"%d" % number)
            store.append(b"l%d" % (number % 3), b"%d" % number, "lists")
            if number % 5 == 4:
                store.remove(b"%d" % (number % 4))
                store.remove(b"l%d" % (number % 3), "lists")
            store.commit()
            store.compact()
            if number % look == look - 1:
                again = self.open()
                assert self.state(again) == self.state(store)
                assert self.state(again, "lists") == self.state(store, "lists")
                store = again

    def test_collection_keeps_every_version_that_is_retained(self) -> None:
        store = self.open(min_versions=3)
        states = {}
        for number in range(1, 21):
            store.put(b"%d" % (number % 5), b"%d" % number)
            known = store.commit()
            states[known] = self.state(store)
            store.compact()
        self.clock.advance(self.age_of_storage_ms())
        store.collect()
        reader = self.open(min_versions=3)
        for known, state in states.items():
            if known.version >= 17:
                reader.restore(known)
                assert self.state(reader) == state
        with fails_with("state.not-retained"):
            reader.restore(2)

    def age_of_storage_ms(self) -> int:
        """How far the clock must go on so that what the storage holds is older than the minimum age."""
        newest = max(entry.modified_ms for entry in self.storage.list("0/0"))
        return newest - self.clock.now_ms() + 60 * MINUTE_MS

    def test_a_forced_snapshot_stands_on_nothing(self) -> None:
        store = self.open()
        for number in range(3):
            store.put(b"%d" % number, b"x")
            store.commit()
        store.append(b"l", b"1", "lists")
        store.commit(snapshot=True)
        again = self.open()
        assert self.state(again) == {b"0": b"x", b"1": b"x", b"2": b"x"}
        assert self.state(again, "lists") == {b"l": [b"1"]}

    def test_the_change_feed_is_the_net_change_per_version(self) -> None:
        store = self.open()
        store.put(b"a", b"1")
        store.put(b"a", b"2")
        store.commit()
        store.commit()
        store.remove(b"a")
        store.append(b"l", b"x", "lists")
        store.commit()
        store.compact()
        changes = [
            row
            for batch in store.changes(1, 3)
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
        assert sorted(changes, key=lambda row: (row[4], row[0])) == [
            (0, 1, b"a", b"2", 1),
            (0, 2, b"a", b"", 3),
            (1, 3, b"l", b"\x01\x00\x00\x00x", 3),
        ]
