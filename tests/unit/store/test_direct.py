"""A store from plain Python: what a commit tells of the rows, and one that is interrupted when its file is there."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.errors import LaminaError
from lamina.format.manifest import Count
from lamina.settings import Settings
from lamina.store.direct import open as opening
from lamina.store.direct import rows as direct_rows
from lamina.store.direct import store as direct
from lamina.store.direct.open import open_store
from lamina.testing import ManualClock
from lamina.testing.expect import fails_with


def test_a_commit_counts_rows_and_bytes_as_all_rows_together_do(tmp_path: Path) -> None:
    draw = random.Random(5)
    store = lamina.open_store(str(tmp_path), writable=True)
    for _ in range(30):
        for _ in range(draw.randrange(20)):
            key = b"key %d" % draw.randrange(25)
            change = draw.choice(["put", "remove", "append"])
            if change == "put":
                store.put(key, b"v" * draw.randrange(9))
            elif change == "append":
                store.append(key, b"e" * draw.randrange(9), "lists")
            else:
                store.remove(key)
                store.remove(key, "lists" if draw.random() < 0.2 else "none")
        store.commit()
        expected = {family.id: Count(0, 0) for family in store._families.values()}
        for (family, key), value in store._rows.items():
            was = expected[family]
            expected[family] = Count(was.rows + 1, was.bytes + len(key) + len(value))
        assert store._counts == expected
        assert lamina.open_store(str(tmp_path))._counts == expected
        if draw.random() < 0.2:
            store.restore(draw.choice(store.versions()))


def test_what_no_batch_of_arrow_holds_is_committed_in_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_rows, "MAX_BATCH_BYTES", 1000)
    sizes: list[int] = []

    def noted(rows: Sequence[tuple[int, bytes, int, bytes]]) -> pa.RecordBatch:
        sizes.append(sum(len(key) + len(value) for _, key, _, value in rows))
        return batch_of(rows)

    batch_of = direct_rows._batch_of
    monkeypatch.setattr(direct_rows, "_batch_of", noted)
    store = lamina.open_store(str(tmp_path), writable=True)
    expected: dict[bytes, bytes] = {}
    for batch in range(4):
        # more in keys, then more in values, and one that is larger than a batch
        changed = {b"%d %d" % (batch, number) * 9: b"%d" % number for number in range(100)}
        changed |= {b"%d %d" % (batch, number): b"value %d" % number * 20 for number in range(100)}
        changed[b"large"] = b"%d" % batch * 3000
        for key, value in changed.items():
            store.put(key, value)
        store.remove(b"%d 7" % (batch - 1))
        store.commit(snapshot=batch % 2 == 1)
        expected |= changed
        expected.pop(b"%d 7" % (batch - 1), None)
        assert list(lamina.open_store(str(tmp_path)).scan()) == sorted(expected.items())
    assert len(sizes) > 4 * 10
    assert {size for size in sizes if size > 1000} == {len(b"large") + 3000}


@pytest.mark.parametrize("setting", ["heap_max_bytes", "durability_level", "engine_connections", "no_such"])
def test_a_setting_that_would_do_nothing_is_refused(tmp_path: Path, setting: str) -> None:
    with fails_with("settings.unknown") as caught:
        lamina.open_store(str(tmp_path), **{setting: "1"})
    assert repr(setting) in caught.error.message
    assert "compaction_mode" in caught.error.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_a_setting_may_be_given_as_its_own_type_as_settings_have_it(name: str) -> None:
    if name.startswith(opening._OF_A_QUERY):
        return
    default = getattr(Settings(), name)
    assert getattr(opening._settings({name: default}), name) == default


def test_settings_are_given_as_values_or_as_texts() -> None:
    for roots in (("/a/b", "/c"), ["/a/b", "/c"], "/a/b,/c"):
        assert opening._settings({"storage_roots": roots}).storage_roots == ("/a/b", "/c")
    assert opening._settings({"storage_cache_max_bytes": None, "storage_roots": ()}) == Settings()
    assert opening._settings({"storage_fsync_enabled": True, "storage_cache_directory": "/x"}) == Settings(
        storage_fsync_enabled=True, storage_cache_directory="/x"
    )
    assert opening._settings({"storage_cache_directory": "/True/x"}).storage_cache_directory == "/True/x"


def test_a_commit_that_is_interrupted_after_its_file_was_written_has_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lamina.open_store(str(tmp_path), writable=True)
    store.put(b"a", b"1")
    store.append(b"l", b"x", "lists")
    store.commit()
    changed = direct.changed_in

    def half(rows: dict[Any, bytes], changes: Mapping[Any, bytes | None]) -> None:
        changed(rows, dict(list(changes.items())[:2]))
        raise KeyboardInterrupt

    store.append(b"l", b"y", "lists")
    store.put(b"b", b"2")
    store.remove(b"a")
    monkeypatch.setattr(direct, "changed_in", half)
    with pytest.raises(KeyboardInterrupt):
        store.commit()
    monkeypatch.undo()
    assert store.version.version == 2
    assert dict(store.scan()) == {b"b": b"2"}
    store.append(b"l", b"z", "lists")
    store.commit()
    again = lamina.open_store(str(tmp_path))
    assert again.get(b"l", "lists") == [b"x", b"y", b"z"]
    assert dict(again.scan()) == {b"b": b"2"}


def two_versions(directory: Path) -> direct.DirectStore:
    """A store at the second of two versions, whose rows differ."""
    store = lamina.open_store(str(directory), writable=True)
    store.put(b"a", b"1")
    store.put(b"x", b"old")
    store.commit()
    store.put(b"a", b"2")
    store.append(b"l", b"y", "lists")
    store.remove(b"x")
    store.commit()
    return store


@pytest.mark.parametrize("fails_with_error", [True, False], ids=["damaged", "interrupted"])
@pytest.mark.parametrize("when", ["newest_first", "check_counts"])
def test_a_restore_that_does_not_come_to_its_end_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, fails_with_error: bool
) -> None:
    store = two_versions(tmp_path)
    reached = getattr(direct, when)
    error = LaminaError.from_kind("file.damaged", "for the test") if fails_with_error else KeyboardInterrupt()

    def breaks_off(*arguments: Any) -> None:
        reached(*arguments)
        raise error

    store.put(b"open", b"3")
    monkeypatch.setattr(direct, when, breaks_off)
    with pytest.raises(type(error)):
        store.restore(1)
    monkeypatch.undo()
    assert store.version.version == 2
    assert dict(store.scan()) == {b"a": b"2", b"open": b"3"}
    assert store.get(b"l", "lists") == [b"y"]
    store.put(b"a", b"1")
    store.commit()
    again = lamina.open_store(str(tmp_path))
    assert dict(again.scan()) == dict(store.scan()) == {b"a": b"1", b"open": b"3"}
    assert again.get(b"l", "lists") == [b"y"]


def test_a_commit_interrupted_twice_after_its_file_was_written_has_happened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = two_versions(tmp_path)
    changed = direct.changed_in

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    def half(rows: dict[Any, bytes], changes: Mapping[Any, bytes | None]) -> None:
        changed(rows, dict(list(changes.items())[:1]))
        # whatever goes on after the first interrupt is interrupted, too
        monkeypatch.setattr(direct, "newest_first", interrupted)
        raise KeyboardInterrupt

    store.append(b"l", b"z", "lists")
    store.put(b"a", b"3")
    monkeypatch.setattr(direct, "changed_in", half)
    with pytest.raises(KeyboardInterrupt):
        store.commit()
    monkeypatch.undo()
    store.put(b"b", b"4")
    store.commit()
    again = lamina.open_store(str(tmp_path))
    for each in (store, again):
        assert dict(each.scan()) == {b"a": b"3", b"b": b"4"}
        assert each.get(b"l", "lists") == [b"y", b"z"]


def test_a_commit_long_after_a_compaction_still_refers_to_its_segment(tmp_path: Path) -> None:
    clock = ManualClock(1_790_000_000_000)
    store = open_store(str(tmp_path), writable=True, clock=clock)
    for number in range(6):
        store.put(b"%d" % number, b"v")
        store.commit()
    assert store.compact() is not None
    clock.advance(3_600_000)
    store.put(b"later", b"v")
    newest = store.commit()
    manifest = store._store.manifest(newest)
    assert manifest is not None
    assert [reference.kind for reference in manifest.references] == ["increment", "run"]


def test_a_column_family_whose_id_does_not_fit_the_format_is_refused_when_it_is_made(tmp_path: Path) -> None:
    store = lamina.open_store(str(tmp_path), writable=True)
    store.put(b"a", b"1")
    store._next_family = 65535
    store.put(b"b", b"2", "last")
    with fails_with("store.unsupported") as caught:
        store.put(b"c", b"3", "one too many")
    assert "one too many" in caught.error.message
    store.commit()
    again = lamina.open_store(str(tmp_path))
    assert again.get(b"b", "last") == b"2"
    assert again.get(b"a") == b"1"


def test_nothing_is_read_where_nothing_is(tmp_path: Path) -> None:
    with fails_with("file.missing", str(tmp_path)):
        lamina.open_store(str(tmp_path / "typo"))
    assert list(tmp_path.iterdir()) == []
    store = lamina.open_store(str(tmp_path / "made"), writable=True)
    store.put(b"a", b"1")
    store.commit()
    assert lamina.open_store(str(tmp_path / "made")).get(b"a") == b"1"


def test_a_column_family_that_a_reader_names_and_nobody_made_is_refused(tmp_path: Path) -> None:
    store = lamina.open_store(str(tmp_path), writable=True)
    assert (store.get(b"a", "typo"), [*store.scan("typo")]) == (None, [])
    assert lamina.open_store(str(tmp_path), writable=True).get(b"a") is None
    store.append(b"a", b"1", "events")
    store.commit()
    reader = lamina.open_store(str(tmp_path))
    assert (reader.get(b"a"), [*reader.scan()]) == (None, [])
    for read in (lambda: reader.get(b"a", "typo"), lambda: [*reader.scan("typo")]):
        with fails_with("store.unsupported", "no column family 'typo', but events"):
            read()


def test_a_row_that_no_table_of_spark_would_hold_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.store.direct.store.MAX_ROW_BYTES", 100)
    store = lamina.open_store(str(tmp_path), writable=True)
    store.put(b"k" * 100, b"v" * 100)
    for call in (
        lambda: store.put(b"k" * 101, b""),
        lambda: store.put(b"k", memoryview(bytes(104)).cast("I")),
        lambda: store.append(b"k", b"e" * 101, "lists"),
    ):
        with fails_with("row.too-large", "limit of 100"):
            call()
    store.append(b"k", b"e" * 60, "lists")
    store.commit()
    store.append(b"k", b"e" * 60, "lists")
    with fails_with("row.too-large"):
        store.commit()
    store.abort()
    assert store.commit().version == 2


@pytest.mark.parametrize("wrong", [5, "text", None, [1]])
def test_what_is_no_bytes_is_refused(tmp_path: Path, wrong: Any) -> None:
    store = lamina.open_store(str(tmp_path), writable=True)
    for call in (
        lambda: store.put(wrong, b"1"),
        lambda: store.put(b"a", wrong),
        lambda: store.append(wrong, b"1", "lists"),
        lambda: store.append(b"a", wrong, "lists"),
        lambda: store.remove(wrong),
    ):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            call()
    store.put(bytearray(b"a"), memoryview(b"1"))
    assert [*store.scan()] == [(b"a", b"1")]
