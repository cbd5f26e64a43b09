"""Versions that stand on sorted tables of RocksDB: made, restored, shared, collected, and never taken for another's."""

from __future__ import annotations

import builtins
import errno
import gc
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import LaminaError
from lamina.format import container
from lamina.format.container import BASES, Footer, verify
from lamina.format.entries import APPEND, DELETE, PUT
from lamina.format.manifest import FILE
from lamina.format.paths import SegmentName, TableListName, TableName, parse_name
from lamina.format.table_list import TableListManifest
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.check import row_counts
from lamina.store.check.checker import StoreChecker
from lamina.store.files.store_files import StoreFiles
from lamina.store.materialization import table_building, table_uploads
from lamina.store.memory.budget import MemoryBudget, unbounded
from lamina.store.tables import database
from lamina.store.tables.database import Database
from lamina.store.tables.local import FETCH_BYTES, LocalTables
from lamina.store.tables.local_disk import LocalDiskFull
from lamina.store.tables.options import TableOptions
from lamina.store.versioned_store import VersionedStore
from lamina.store.versions import chain
from lamina.store.versions.chain import TableList
from lamina.testing import Effect, Fault, Moment
from lamina.testing.expect import fails_with
from tests.sealed import sealed
from tests.unit.store.aging import EMPTY, MIN_AGE_MS, compact, file, wait
from tests.unit.store.writing import Query, entries, names, rows_of, triples

BACKEND: dict[str, Any] = {"backend": "rocksdb", "rocksdb__materializeEvery": 2}


def on_tables(query: Query, **settings: Any) -> Query:
    """A run of the query in this backend."""
    other = Query(
        query.storage, min_versions=query.min_versions, clock=query.clock, ids=query.ids, **{**BACKEND, **settings}
    )
    other.states = query.states
    return other


@pytest.fixture
def tables(query: Query) -> Query:
    return on_tables(query)


def materialized(query: Query, store: VersionedStore, base: Version, count: int = 2) -> tuple[list[Version], str]:
    """`count` versions after `base`, and the list of tables that was made of the last of them."""
    versions = query.run_batches(store, base, count)
    return versions, compact(query, store, versions[-1])


def listed(query: Query, name: str) -> TableListManifest:
    manifest = verify(bytes(query.storage.read(f"0/0/{name}")), name)
    assert isinstance(manifest, TableListManifest)
    return manifest


def of_class(query: Query, kind: type) -> list[str]:
    return sorted(name for name in names(query.storage) if isinstance(parse_name(name), kind))


def is_table(path: str) -> bool:
    return isinstance(parse_name(os.path.basename(path)), TableName)


def base_of(store: VersionedStore, version: Version) -> list[str]:
    manifest = store.manifest(version)
    assert manifest is not None
    return [reference.path or "" for reference in manifest.references if reference.kind == FILE]


def test_increments_become_tables_that_the_next_commit_stands_on(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY)
    assert isinstance(parse_name(name), TableListName)
    versions += tables.run_batches(store, versions[-1], 1)
    manifest = store.manifest(versions[-1])
    assert manifest is not None
    assert [one.kind for one in manifest.references] == ["increment", *[FILE] * (1 + len(listed(tables, name).tables))]
    assert base_of(store, versions[-1]) == [name, *(table.path for table in listed(tables, name).tables)]
    for version in versions:
        tables.assert_restores(tables.open(), version)


def test_many_materializations_with_deletes_and_appends_keep_every_version(tables: Query) -> None:
    store = tables.open()
    version, versions = EMPTY, []
    for _ in range(12):
        made, _ = materialized(tables, store, version, 3)
        versions += made
        version = made[-1]
    assert len(of_class(tables, TableListName)) == 12
    for one in versions:
        tables.assert_restores(tables.open(), one)


def test_each_table_is_published_once(tables: Query) -> None:
    store = tables.open()
    version = EMPTY
    for _ in range(8):
        made, _ = materialized(tables, store, version)
        version = made[-1]
    published = Counter(path for operation, path in tables.faults.calls if operation == "publish")
    in_lists = [table for name in of_class(tables, TableListName) for table in listed(tables, name).tables]
    assert len(in_lists) > len({table.path for table in in_lists}), "some table is in several lists"
    assert {table.path for table in in_lists} == {*of_class(tables, TableName)}
    assert all(published[f"0/0/{table.path}"] == 1 for table in in_lists)
    # nor under another name
    assert len({table.sha256 for table in in_lists}) == len({table.path for table in in_lists})


def failing(call: Callable[[], object]) -> list[LaminaError]:
    try:
        call()
    except LaminaError as error:
        return [error]
    return []


def keys(*ranges: str) -> Mapping[bytes, tuple[int, bytes]]:
    return {f"{letter}{number:03}".encode(): (PUT, b"x" * 20) for letter in ranges for number in range(50)}


def merged_on_demand(patch: pytest.MonkeyPatch, ranges: list[tuple[bytes, bytes]]) -> None:
    """RocksDB merges only what a test says, while it settles."""

    def settle(self: Database, _: Callable[[], None]) -> None:
        while ranges:
            start, end = ranges.pop()
            self._db.compact_range(start, end)

    plain = TableOptions.options

    def options(self: TableOptions, *, create: bool) -> Any:
        found = plain(self, create=create)
        found.set_disable_auto_compactions(True)
        return found

    patch.setattr(Database, "settle", settle)
    patch.setattr(TableOptions, "options", options)


def test_tables_are_kept_and_deleted_as_in_the_example_of_incremental_checkpoints(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four checkpoints of which two are retained. The second adds two tables to the two of the first; RocksDB merges
    1, 2 and 3 before the third, and 4, 5 and 6 before the fourth. How often a table is named is its count.

    A checkpoint is retained by the version that stands on it, which is the next one.
    """
    merges: list[tuple[bytes, bytes]] = []
    merged_on_demand(monkeypatch, merges)
    tables = on_tables(query, rocksdb__materializeEvery=1)
    # before the newest one
    tables.min_versions = 1
    store = tables.open()
    versions = [EMPTY]

    def committed(letters: str) -> dict[str, int]:
        """How often each table is named that is there after a version with rows under each of these letters."""
        versions.append(tables.commit(store, versions[-1], keys(*letters)))
        wait(tables, 2 * MIN_AGE_MS)
        store.collect(versions[-1], dry_run=False)
        named = Counter(path for version in versions[1:][-2:] for path in base_of(store, version))
        return {path: named[path] for path in of_class(tables, TableName)}

    def checkpoint(*changes: str, merge: tuple[str, str] | None = None) -> tuple[set[str], dict[str, int]]:
        """The tables after a version for each of `changes`, a list each, of which the last is merged at its end; and
        how often each that was there before the last list was named."""
        name, counts = "", {}
        for letters in changes:
            if merge is not None and letters == changes[-1]:
                start, end = (database.FAMILY.pack(0) + letter.encode() for letter in merge)
                merges.append((start, end))
            counts = committed(letters)
            name = compact(tables, store, versions[-1])
        return {table.path for table in listed(tables, name).tables}, counts

    first, _ = checkpoint("a", "b")
    second, _ = checkpoint("ab", "d")
    assert first < second
    assert (len(first), len(second)) == (2, 4)
    # nobody names the fourth yet, and the first checkpoint is not retained; its tables are
    third, counts = checkpoint("e", merge=("a", "c"))
    assert {*counts} == second
    # 1, 2 and 3 have become one; 4 is shared, and 5 is new
    assert (len(third), len(third & second)) == (3, 1)
    fourth, counts = checkpoint("de", merge=("d", "f"))
    # the second and the third are retained: only 4 is in both
    assert counts == {path: 1 + (path in second & third) for path in second | third}
    # 4, 5 and 6 have become one; what was 1, 2 and 3 is shared
    assert (len(fourth), len(fourth & third)) == (2, 1)
    # the third and the fourth are retained: 1, 2 and 3 are gone, 4 and 5 are not
    assert committed("f") == {path: 1 + (path in third & fourth) for path in third | fourth}
    compact(tables, store, versions[-1])
    # and with the next one they are
    kept = committed("f")
    assert fourth <= {*kept} and not {*kept} & (third - fourth)
    tables.assert_restores(tables.open(), versions[-1])


@pytest.mark.parametrize("call", range(2))
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_job_that_fails_leaves_nothing_that_counts(tables: Query, call: int, moment: Moment) -> None:
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    versions += tables.run_batches(store, versions[-1], 2)
    store.confirm(versions[-1])
    tables.faults.inject(Fault("publish", effect=Effect.FAIL, moment=moment, skip=call))
    failed = [error.kind for error in failing(store.compact)]
    tables.faults.heal()
    versions += tables.run_batches(store, versions[-1], 1)
    before = len(tables.faults.calls)
    more, name = materialized(tables, store, versions[-1], 1)
    assert failed == ["storage.failed"]
    # the tables are here, and are not fetched from a storage that is in trouble
    asked = {operation for operation, path in tables.faults.calls[before:] if is_table(path)}
    assert asked == {"publish"}
    versions += [*more, *tables.run_batches(store, more[-1], 1)]
    assert name in base_of(store, versions[-1])
    for version in versions:
        tables.assert_restores(tables.open(), version)


def test_what_the_storage_does_not_give_costs_no_table_that_is_here(tables: Query) -> None:
    """Neither where a list cannot be read, nor where one of the tables cannot, which a process fetches that is new."""
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    for _ in range(2):
        versions += materialized(tables, store, versions[-1])[0]
    versions += tables.run_batches(store, versions[-1], 2)
    last = [path for path in base_of(store, versions[-1]) if is_table(path)][-1]

    def read(store: VersionedStore, of: str) -> set[str]:
        """The tables that the job reads after one that failed, since it could not read what ends so."""
        store.confirm(versions[-1])
        for operation in ("read", "read_range", "read_tail"):
            tables.faults.inject(Fault(operation, path=of))
        assert [error.kind for error in failing(store.compact)] == ["storage.failed"]
        tables.faults.heal()
        before = len(tables.faults.calls)
        assert store.compact() is not None
        return {path.rpartition("/")[2] for name, path in tables.faults.calls[before:] if is_table(path)} & known

    known = {path for path in base_of(store, versions[-1]) if is_table(path)}
    assert len(known) > 2
    assert read(store, ".rdb") == set()
    assert read(tables.open(), last) == {last}


def test_a_broken_table_is_made_anew_by_a_merge_and_by_no_commit(tables: Query) -> None:
    """The whole state may be more than a commit has time for."""
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    versions += materialized(tables, store, versions[-1])[0]
    versions += tables.run_batches(store, versions[-1], 2)
    table = [path for path in base_of(store, versions[-1]) if is_table(path)][-1]
    tables.storage.delete_many([f"0/0/{table}"])
    again = tables.open()
    before = tables.begin(again, versions[-1])
    assert not before.materialization_due
    tables.assert_restores(again, versions[-1])
    # the first merge may fail
    asked = [tables.begin(again, versions[-1]) for _ in range(2)]
    assert [(one.snapshot, one.lost, one.materialization_due) for one in asked] == [(False, False, True)] * 2


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_table_that_is_broken_where_it_lies_is_published_anew_from_this_disk(
    tables: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    merged_on_demand(monkeypatch, [])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    more, name = materialized(tables, store, versions[-1])
    before = listed(tables, name).tables
    lost = before[0]
    # of one disk, both are names of one file
    (local,) = tmp_path.glob(f"lamina-tables-*/{lost.path}")
    data = local.read_bytes()
    tables.storage.delete_many([f"0/0/{lost.path}"])
    if not is_whole:
        local.unlink()
        local.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    assert store.plan_compaction(at_once=True) is None
    store._materializer._broken.add(frozenset({(None, lost.path, 0)}))  # type: ignore[attr-defined]
    # although there is nothing that is not in tables yet
    merge = store.plan_compaction(at_once=True)
    assert merge is not None
    made = merge.run(None, unbounded()).made
    assert isinstance(made, TableList)
    after = made.manifest.tables
    if is_whole:
        assert [(one.name, one.sha256) for one in after] == [(one.name, one.sha256) for one in before]
        assert [one.path == other.path for one, other in zip(after, before, strict=True)] == [False, True]
        assert after[0].path in made.new_names()
    else:
        # made anew of what leads around it
        assert {one.path for one in after}.isdisjoint(one.path for one in before)
    store.adopt(made)
    assert store.plan_compaction(at_once=True) is None
    version = tables.run_batches(store, more[-1], 1)[-1]
    needed = {file(version), *base_of(store, version)}
    tables.storage.delete_many([f"0/0/{name}" for name in names(tables.storage) if name not in needed])
    tables.assert_restores(tables.open(), version)
    # and the next list goes on from it
    more, _ = materialized(tables, store, version)
    tables.assert_restores(tables.open(), tables.run_batches(store, more[-1], 1)[-1])


def test_a_part_of_the_tables_takes_no_room_where_the_rest_has_none(
    tables: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores that each have a part would keep the others from theirs."""
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    for _ in range(2):
        versions += materialized(tables, store, versions[-1])[0]
    versions += tables.run_batches(store, versions[-1], 2)
    fresh = tables.open()
    fresh.confirm(versions[-1])
    fetch, here = LocalTables._fetch, []

    def full(self: LocalTables, reference: Any) -> int:
        if here:
            raise LocalDiskFull("storage.failed", "there is no room")
        here.append(self._directory)
        return fetch(self, reference)

    with monkeypatch.context() as patch:
        patch.setattr(LocalTables, "_fetch", full)
        (failed,) = failing(fresh.compact)
    assert failed.kind == "storage.failed"
    assert not os.path.exists(here[0])
    assert fresh.compact() is not None


@pytest.mark.parametrize("what", ["ingest", "link", "merge"])
def test_a_full_local_disk_costs_no_table_that_is_here(
    tables: Query, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The JVM has the same files: to give them up makes no room, and the next job would need room for all once more."""
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    versions += tables.run_batches(store, versions[-1], 2)
    store.confirm(versions[-1])

    def full(*_: object) -> None:
        if what == "link":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise Exception("IO error: No space left on device: While appending to file")

    with monkeypatch.context() as patch:
        if what == "merge":
            patch.setattr(Database, "settle", lambda self, _: self._check_merges())
            patch.setattr(Database, "merges_failed", property(lambda _: True))
            patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        elif what == "link":
            patch.setattr(os, "link", full)
            patch.setattr(shutil, "copyfile", full)
        else:
            patch.setattr(Database, "_new_writer", full)
        (failed,) = failing(store.compact)
    assert failed.kind == "storage.failed" and "room for the tables" in failed.message
    before = len(tables.faults.calls)
    assert store.compact() is not None
    asked = {operation for operation, path in tables.faults.calls[before:] if is_table(path)}
    assert asked == {"publish"}


def test_a_merge_that_is_behind_is_asked_for_although_the_next_commit_would_write_all_rows(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be more than a commit has time for, and then each attempt would ask for them again."""
    monkeypatch.setattr(chain, "ABOVE_TABLES", 2)
    tables = on_tables(query, compaction__maxChain=4)
    store = tables.open()
    version = tables.run_batches(store, EMPTY, 4)[-1]
    for _ in range(2):
        begun = tables.begin(store, version)
        assert (begun.snapshot, begun.compaction_due) == (True, True)
    name = compact(tables, store, version)
    begun = tables.begin(store, version)
    assert (begun.snapshot, begun.compaction_due) == (False, False)
    version = tables.run_batches(store, version, 1)[-1]
    assert name in base_of(store, version)
    tables.assert_restores(tables.open(), version)


def test_increments_have_twice_the_time_that_they_take_to_come_together(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a query whose bound for all files is lower would write its whole state again and again."""
    monkeypatch.setattr(chain, "ABOVE_TABLES", 2)
    tables = on_tables(query, rocksdb__materializeEvery=4, compaction__maxChain=2)
    store = tables.open()
    version, due = EMPTY, []
    for number in range(8):
        version = tables.run_batches(store, version, 1)[-1]
        begun = tables.begin(store, version)
        due.append(begun.compaction_due)
        assert begun.snapshot == (number == 7)
    assert not any(due[:2]) and all(due[3:])
    compact(tables, store, version)
    assert not tables.begin(store, version).snapshot


@pytest.mark.parametrize("other", [{"rocksdb__materializeEvery": 1}, {"backend": "heap"}])
def test_increments_that_other_settings_have_left_are_merged_and_not_written_as_a_whole(
    query: Query, other: Mapping[str, Any]
) -> None:
    before = on_tables(query, rocksdb__materializeEvery=100)
    store = before.open()
    versions, _ = materialized(before, store, EMPTY, 100)
    version = before.run_batches(store, versions[-1], 70)[-1]
    after = on_tables(query, **other)
    begun = after.begin(after.open(), version)
    assert not begun.snapshot and begun.compaction_due


def test_increments_are_not_many_times_as_large_as_their_tables(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore of a small state would mostly read what is out of date."""
    monkeypatch.setattr(table_building, "_MUCH_BYTES", 1)
    tables = on_tables(query, rocksdb__materializeEvery=200)
    store, version, made = tables.open(), EMPTY, 0
    for number in range(40):
        version = tables.run_batches(store, version, 1)[-1]
        manifest = store.manifest(version)
        assert manifest is not None
        above = sum(one.length for one in manifest.references if one.kind != FILE)
        below = sum(one.length for one in manifest.references if one.kind == FILE)
        due = tables.begin(store, version).compaction_due
        assert due == (above > 4 * below), (number, above, below)
        if due:
            compact(tables, store, version)
            made += 1
    assert 2 <= made < 10


def test_another_process_goes_on_from_the_last_list(tables: Query) -> None:
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    versions += tables.run_batches(store, versions[-1], 1)
    for _ in range(3):
        store = tables.open()
        store.load(versions[-1], have=None, read_only=False)
        more, name = materialized(tables, store, versions[-1])
        versions += [*more, *tables.run_batches(store, more[-1], 1)]
        assert name in base_of(store, versions[-1])
    for version in versions:
        tables.assert_restores(tables.open(), version)


def test_executors_that_give_a_name_of_a_database_to_different_tables_mix_up_none(tables: Query) -> None:
    """Two go on from one list, and RocksDB calls their next tables alike; what only one of them made never counts."""
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    versions += tables.run_batches(store, versions[-1], 2)
    lost, kept = tables.open(), tables.open()
    for other in (lost, kept):
        other.confirm(versions[-1])
    lost_list, kept_list = lost.compact(), kept.compact()
    assert lost_list is not None and kept_list is not None
    of_lost, of_kept = (listed(tables, str(made.made.name)).tables for made in (lost_list, kept_list))
    assert {one.name for one in of_lost} == {one.name for one in of_kept}
    assert {one.path for one in of_lost} != {one.path for one in of_kept}
    kept.adopt(kept_list.made)
    for _ in range(3):
        versions += tables.run_batches(kept, versions[-1], 2)
        compact(tables, kept, versions[-1])
    # who made the other list goes on from what counts, with its own tables still on its disk
    lost.load(versions[-1], have=None, read_only=False)
    more, _ = materialized(tables, lost, versions[-1])
    versions += [*more, *tables.run_batches(lost, more[-1], 1)]
    for version in versions:
        tables.assert_restores(tables.open(), version)


def test_the_backend_changes_at_any_restart(query: Query) -> None:
    versions: list[Version] = []
    version = EMPTY
    for number in range(6):
        run = on_tables(query, **({} if number % 2 else {"backend": "heap"}))
        store = run.open()
        store.load(version, have=None, read_only=False)
        versions += run.run_batches(store, version, 5)
        compact(run, store, versions[-1])
        versions += run.run_batches(store, versions[-1], 1)
        version = versions[-1]
        manifest = store.manifest(version)
        assert manifest is not None
        kinds = {reference.kind for reference in manifest.references}
        assert (FILE in kinds) == bool(number % 2)
        for one in versions:
            run.assert_restores(run.open(), one)


class Broken:
    """A version whose base is a list of tables, of which a file is to be broken."""

    def __init__(self, tables: Query) -> None:
        self.query = tables
        store = tables.open()
        # a first version of no use for a way around: it is not there any more
        versions, self.list = materialized(tables, store, EMPTY)
        self.version = tables.run_batches(store, versions[-1], 1)[-1]
        tables.storage.delete_many([f"0/0/{file(one)}" for one in versions])
        self.table = listed(tables, self.list).tables[0].path

    def fails(self, kind: str, name: str) -> None:
        store = self.query.open()
        with fails_with(kind) as caught:
            rows_of(store.load(self.version, have=None, read_only=True))
        assert name in caught.error.message

    def replace(self, name: str, data: bytes) -> None:
        self.query.storage.publish(f"0/0/{name}", data)

    def read(self, name: str) -> bytes:
        return bytes(self.query.storage.read(f"0/0/{name}"))


@pytest.fixture
def broken(tables: Query) -> Broken:
    return Broken(tables)


@pytest.mark.parametrize("which", ["list", "table"])
def test_a_file_that_is_damaged_or_missing_is_named(broken: Broken, which: str) -> None:
    name: str = getattr(broken, which)
    whole = broken.read(name)
    rows_of(broken.query.open().load(broken.version, have=None, read_only=True))
    for at in (0, 20, len(whole) // 2, len(whole) - 1):
        broken.replace(name, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        broken.fails("file.damaged", name)
    for other in (whole[:-1], whole + b"x", b""):
        broken.replace(name, other)
        broken.fails("file.damaged", name)
    broken.query.storage.delete_many([f"0/0/{name}"])
    broken.fails("file.missing", name)


def reseal(broken: Broken, **changed: Any) -> None:
    """The list with other members, whole and referred to as it is."""
    data = broken.read(broken.list)
    end = Footer.parse(data, len(data), broken.list)
    value = {**verify(data, broken.list).to_json(), **changed}
    new = sealed(data[: end.manifest_offset], value, end.version)
    broken.replace(broken.list, new)
    path = f"0/0/{file(broken.version)}"
    commit = bytes(broken.query.storage.read(path))
    at = Footer.parse(commit, len(commit), path)
    manifest = verify(commit, path).to_json()
    for reference in manifest["references"]:
        if reference["path"] == broken.list:
            reference |= {"length": len(new), "size": len(new), "sha256": container.checksum(new)}
    broken.query.storage.publish(path, sealed(commit[: at.manifest_offset], manifest, BASES))


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"store": {"checkpoint": "x", "operator": 0, "partition": 0, "name": "default"}}, "file.identity"),
        ({"list": "f" * 32}, "file.identity"),
        ({"tables": []}, "file.damaged"),
        ({"tables": "x"}, "file.damaged"),
        ({"files": {"../CURRENT": "eA=="}}, "file.damaged"),
        ({"files": {}}, "file.damaged"),
        ({"files": {"CURRENT": "TUFOSUZFU1QtMDAwMDA1Cg=="}}, "file.damaged"),
        ({"files": {"CURRENT": "not base64"}}, "file.damaged"),
        ({"sections": [1]}, "file.damaged"),
    ],
)
def test_a_list_that_is_not_what_was_referred_to_is_refused(
    broken: Broken, changed: Mapping[str, Any], kind: str
) -> None:
    reseal(broken, **changed)
    broken.fails(kind, broken.list)


@pytest.mark.parametrize("name", ["../000008.sst", "/etc/x.sst", "x", "MANIFEST-000001", "000008.sst/.."])
def test_a_table_that_would_leave_its_directory_is_refused(broken: Broken, name: str) -> None:
    tables = [table.to_json() for table in listed(broken.query, broken.list).tables]
    reseal(broken, tables=[{**tables[0], "name": name}, *tables[1:]])
    broken.fails("file.damaged", broken.list)


def test_a_list_of_a_newer_format_is_refused_by_name(broken: Broken) -> None:
    data = broken.read(broken.list)
    end = Footer.parse(data, len(data), broken.list)
    new = sealed(data[: end.manifest_offset], verify(data, broken.list).to_json(), container.FORMAT_VERSION + 1)
    broken.replace(broken.list, new)
    with fails_with("file.version") as caught:
        verify(new, broken.list)
    assert broken.list in caught.error.message


def test_a_broken_table_is_gone_around_where_older_versions_lead_to_the_state(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY, 3)
    versions += tables.run_batches(store, versions[-1], 2)
    tables.storage.delete_many([f"0/0/{listed(tables, name).tables[0].path}"])
    tables.assert_restores(tables.open(), versions[-1])
    # and the next materialization needs it no more
    store = tables.open()
    store.confirm(versions[-1])
    made = store.compact()
    assert made is not None
    store.adopt(made.made)
    versions += tables.run_batches(store, versions[-1], 1)
    assert name not in base_of(store, versions[-1])
    tables.assert_restores(tables.open(), versions[-1])


def test_damage_on_the_local_disk_is_no_end_of_the_rows(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = LocalTables.fetch

    def damaged(self: LocalTables, *arguments: Any) -> int:
        read = fetch(self, *arguments)
        path = self._path(broken.table)
        with open(path, "r+b") as local:
            local.seek(20)
            byte = local.read(1)
            local.seek(20)
            local.write(bytes([byte[0] ^ 1]))
        return read

    monkeypatch.setattr(LocalTables, "fetch", damaged)
    with fails_with("file.damaged"):
        rows_of(broken.query.open().load(broken.version, have=None, read_only=True))


@pytest.fixture
def without_rocksdict(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> Broken:
    plain = builtins.__import__

    def importing(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "rocksdict":
            raise ImportError("No module named 'rocksdict'")
        return plain(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", importing)
    return broken


def test_without_rocksdict_the_error_says_what_to_install(without_rocksdict: Broken) -> None:
    broken = without_rocksdict
    with fails_with("engine.dependency") as caught:
        rows_of(broken.query.open().load(broken.version, have=None, read_only=True))
    assert "rocksdict>=0.3.29,<0.4" in caught.error.message


def test_without_rocksdict_a_check_reads_the_lists(without_rocksdict: Broken) -> None:
    broken = without_rocksdict
    identity = listed(broken.query, broken.list).store
    reseal(broken, tables=[])
    named = {broken.version.version: broken.version.attempt}
    check = StoreChecker(broken.query.storage, identity, named, clock=broken.query.clock, contents=True).check()
    of_list = [(problem.kind, problem.versions) for problem in check.problems if broken.list in problem.message]
    assert of_list == [("file.damaged", (broken.version.version,))]


def test_a_check_counts_the_rows_of_tables(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY, 4)
    versions += tables.run_batches(store, versions[-1], 2)
    named = {version.version: version.attempt for version in versions}

    def check() -> Any:
        return StoreChecker(tables.storage, store.identity, named, clock=tables.clock, contents=True).check()

    found = check()
    assert found.problems == ()
    assert found.rows == len(tables.states[versions[-1].attempt])
    path = f"0/0/{listed(tables, name).tables[0].path}"
    data = bytes(tables.storage.read(path))
    tables.storage.publish(path, data[:-1] + b"x")
    problems = check().problems
    assert {problem.kind for problem in problems} == {"file.damaged"}
    assert all(path.rpartition("/")[2] in problem.message for problem in problems)


def test_rows_of_two_stores_on_tables_are_counted_at_once_and_of_no_more(
    tables: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has all of its tables on the local disk meanwhile."""
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    newest = tables.run_batches(store, versions[-1], 1)[-1]
    group = [store._files.open_commit(newest.attempt or "")]
    changed = threading.Condition()
    under_way = most = begun = 0

    def counting(*_: Any) -> list[Any]:
        nonlocal under_way, most, begun
        with changed:
            under_way, begun = under_way + 1, begun + 1
            most = max(most, under_way)
            changed.notify_all()
            assert changed.wait_for(lambda: begun >= 2, timeout=60)
            # a third one would come by then
            changed.wait_for(lambda: begun >= 3, timeout=0.5)
            under_way -= 1
        return []

    monkeypatch.setattr(row_counts, "_counted", counting)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: row_counts.counted(store._files, group, lambda size: None), range(6)))
    assert (begun, most) == (6, 2)


def test_a_list_that_waited_too_long_is_published_under_new_names(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY)
    wait(tables, MIN_AGE_MS)
    ((stamped, anew),) = store.stamp_segments()
    assert stamped == name
    assert anew is not None
    assert {*anew.new_names()}.isdisjoint({name, *(table.path for table in listed(tables, name).tables)})
    versions += tables.run_batches(store, versions[-1], 1)
    assert base_of(store, versions[-1]) == anew.new_names()
    tables.assert_restores(tables.open(), versions[-1])
    # and the next list goes on from it
    more, _ = materialized(tables, store, versions[-1])
    tables.assert_restores(tables.open(), tables.run_batches(store, more[-1], 1)[-1])


def test_a_list_is_not_published_anew_from_a_local_table_that_is_damaged(
    tables: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY)
    (local,) = tmp_path.glob(f"lamina-tables-*/{listed(tables, name).tables[0].path}")
    data = bytearray(local.read_bytes())
    data[len(data) // 2] ^= 1
    local.unlink()
    local.write_bytes(data)
    wait(tables, MIN_AGE_MS)
    assert store.stamp_segments() == [(name, None)]
    versions += tables.run_batches(store, versions[-1], 1)
    assert base_of(store, versions[-1]) == []


def test_a_list_that_waited_too_long_and_is_nowhere_else_is_forgotten(tables: Query) -> None:
    versions, name = materialized(tables, tables.open(), EMPTY)
    tables.open().load(versions[-1], have=None, read_only=True)
    store = tables.open()
    store.confirm(versions[-1])
    found = listed(tables, name)
    data = bytes(tables.storage.read(f"0/0/{name}"))
    store.adopt(TableList(found, len(data), container.checksum(data), tables.clock.now_ms()))
    wait(tables, MIN_AGE_MS)
    assert store.stamp_segments() == [(name, None)]


def test_a_storage_without_stamps_leaves_a_young_list_as_it_is(tables: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreFiles, "stamp", lambda *_: False)
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY)
    wait(tables, MIN_AGE_MS * 2 // 5)
    assert store.stamp_segments() == []
    versions += tables.run_batches(store, versions[-1], 1)
    assert base_of(store, versions[-1])[0] == name
    more, other = materialized(tables, store, versions[-1])
    wait(tables, MIN_AGE_MS * 3 // 5)
    assert [one for one, made in store.stamp_segments() if made is not None] == [other]
    assert base_of(store, tables.run_batches(store, more[-1], 1)[-1])[0] != other


@pytest.mark.parametrize(("part", "copy"), [(0.6, 0.0), (0.8, 0.0), (0.8, 0.8)])
def test_a_list_whose_tables_take_long_is_stamped_or_published_anew_or_fails(
    tables: Query, monkeypatch: pytest.MonkeyPatch, part: float, copy: float
) -> None:
    publish = table_uploads.publish_table

    def slow(part: float) -> Callable[..., tuple[int, str]]:
        def published(*arguments: Any) -> tuple[int, str]:
            wait(tables, int(part * MIN_AGE_MS))
            return publish(*arguments)

        return published

    store = tables.open()
    version = tables.run_batches(store, EMPTY, 2)[-1]
    with monkeypatch.context() as patch:
        patch.setattr(table_uploads, "publish_table", slow(part))
        patch.setattr(table_building, "publish_table", slow(copy))
        if copy:
            with fails_with("storage.failed", "retention.minAgeMs"):
                compact(tables, store, version)
        else:
            compact(tables, store, version)
    if copy:
        compact(tables, store, version)
    wait(tables, MIN_AGE_MS * 2 // 5)
    version = tables.run_batches(store, version, 1)[-1]
    assert base_of(store, version)
    tables.assert_restores(tables.open(), version)


def test_a_merge_of_rocksdbs_that_fails_ends_the_job(tables: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tables.open()
    versions = tables.run_batches(store, EMPTY, 2)
    store.confirm(versions[-1])

    class Failing:
        def __init__(self, database: Any) -> None:
            self._database = database

        def property_int_value(self, name: str) -> int:
            return 1

        def __getattr__(self, name: str) -> Any:
            return getattr(self._database, name)

    ingest = Database.ingest

    def failing(self: Database, run: Any) -> int:
        rows = ingest(self, run)
        self._db = Failing(self._db)
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(Database, "ingest", failing)
        with fails_with("storage.failed"):
            store.compact()
    made = store.compact()
    assert made is not None
    store.adopt(made.made)
    versions += tables.run_batches(store, versions[-1], 1)
    assert base_of(store, versions[-1])
    tables.assert_restores(tables.open(), versions[-1])


def test_a_broken_increment_is_gone_around_by_a_list_that_nobody_refers_to(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY, 3)
    store.set_waiting_segments([])
    versions += tables.run_batches(store, versions[-1], 1)
    assert base_of(store, versions[-1]) == []
    path = f"0/0/{file(versions[1])}"
    data = bytes(tables.storage.read(path))
    tables.storage.publish(path, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    reader = tables.open()
    # the first load has handed out what the list has, too
    with fails_with("file.damaged"):
        tables.assert_restores(reader, versions[-1])
    tables.assert_restores(reader, versions[-1])
    tables.storage.delete_many([f"0/0/{name}"])
    with fails_with("file.damaged"):
        tables.assert_restores(reader, versions[-1])


def test_a_list_that_waits_stays_young_by_stamps(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY)
    for _ in range(8):
        wait(tables, MIN_AGE_MS // 5)
        assert [one for one, made in store.stamp_segments() if made is not None] == [name]
    versions += tables.run_batches(store, versions[-1], 1)
    assert base_of(store, versions[-1])[0] == name


def test_long_lists_below_a_run_are_looked_up_a_few_at_a_time(tmp_path: Path) -> None:
    brought: list[int] = []

    class Looks:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def get(self, keys: list[bytes]) -> list[bytes | None]:
            found: list[bytes | None] = self._inner.get(keys)
            brought.append(sum(len(value) for value in found if value is not None))
            return found

    # small ones, those that are not there, and some of 300 KB
    below = {b"%04d" % number: b"x" * (300_000 if number >= 100 else 10) for number in range(260) if number % 7}

    def run(op: int, rows: Mapping[bytes, bytes]) -> Iterator[pa.RecordBatch]:
        yield entries((0, op, key, rows[key]) for key in sorted(rows))

    with Database(str(tmp_path / "database")) as opened:
        opened.ingest(run(PUT, below))
        inner = opened._db
        opened._db = Looks(inner)
        appended = {b"%04d" % number: b"end" for number in range(260)}
        opened.ingest(run(APPEND, appended))
        opened._db = inner
        found = {key: value for batch in opened.entries() for key, _, value in triples([batch])}
    assert found == {key: below.get(key, b"") + b"end" for key in appended}
    assert sum(brought) == sum(map(len, below.values()))
    assert len(brought) < 200 and max(brought) <= database._MOST_AT_ONCE * 300_000
    assert max(brought[8:]) < 2 << 20


def test_rows_that_were_deleted_are_gone_from_a_list(tables: Query) -> None:
    store = tables.open()
    version = tables.commit(store, EMPTY, {b"%03d" % number: (PUT, b"x") for number in range(100)})
    version = tables.commit(store, version, {b"a": (PUT, b"1")})
    compact(tables, store, version)
    version = tables.commit(store, version, {b"%03d" % number: (DELETE, b"") for number in range(100)})
    version = tables.commit(store, version, {b"b": (PUT, b"1")})
    compact(tables, store, version)
    version = tables.commit(store, version, {b"c": (PUT, b"1")})
    load = tables.open().load(version, have=None, read_only=True)
    assert rows_of(load) == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_a_merge_of_tables_into_a_segment_says_that_it_goes_on_while_they_are_fetched(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = on_tables(query)
    store = run.open()
    versions, made = materialized(run, store, run.run_batches(store, EMPTY, 3)[-1])
    version = run.run_batches(store, versions[-1], 1)[-1]
    assert base_of(store, version)[0] == made
    heap = on_tables(query, backend="heap").open()
    heap.load(version, have=None, read_only=False)
    told: list[tuple[int, int]] = []
    fetched: list[int] = []
    fetch = LocalTables.fetch

    def noted(self: LocalTables, *arguments: Any, **named: Any) -> None:
        before = len(told)
        fetch(self, *arguments, **named)
        fetched.append(len(told) - before)

    monkeypatch.setattr(LocalTables, "fetch", noted)
    assert heap.compact(lambda done, rows: told.append((done, rows))) is not None
    assert fetched and all(fetched)


def test_segments_of_another_backend_are_not_left_below(query: Query) -> None:
    heap = on_tables(query, backend="heap")
    store = heap.open()
    versions = heap.run_batches(store, EMPTY, 6)
    name = compact(heap, store, versions[-1])
    assert isinstance(parse_name(name), SegmentName)
    run = on_tables(query)
    store = run.open()
    store.load(versions[-1], have=None, read_only=False)
    more, made = materialized(run, store, versions[-1])
    version = run.run_batches(store, more[-1], 1)[-1]
    assert base_of(store, version)[0] == made
    run.assert_restores(run.open(), version)


def in_place(query: Query, version: Version) -> tuple[str, dict[bytes, bytes]]:
    """The directory of a load in place, and the rows that its database and the entries after it make together."""
    load = query.open().load(version, have=None, read_only=True, in_place=True)
    assert load.in_place is not None
    above = [*load.batches]
    with Database(load.in_place.directory, read_only=True) as found:
        return load.in_place.directory, rows_of(replace(load, batches=iter([*above, *found.entries()])))


def test_a_load_in_place_gives_a_database_and_what_came_after_it(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY, 4)
    versions += tables.run_batches(store, versions[-1], 3)
    directory, rows = in_place(tables, versions[-1])
    assert rows == tables.states[versions[-1].attempt]
    # it is the caller's, with links of its own, and no other file of the job is left
    found = listed(tables, name)
    assert {*os.listdir(directory)} >= {*(table.name for table in found.tables), *found.files}
    shutil.rmtree(directory)
    load = tables.open().load(versions[-1], have=None, read_only=True, in_place=True)
    # no row comes that only the database has
    changed = {key for batch in load.batches for key, _, _ in triples([batch])}
    assert changed == {b"k0", b"k1", b"k5", b"k6", b"l0", b"l1", b"l2"}
    assert load.in_place is not None
    shutil.rmtree(load.in_place.directory)


def test_a_load_in_place_stands_on_tables_that_wait_for_a_commit_to_refer_to_them(tables: Query) -> None:
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY, 4)
    versions += tables.run_batches(store, versions[-1], 3)
    store.confirm(versions[-1])
    merge = store.plan_compaction(at_once=True)
    assert merge is not None
    store.adopt(merge.run(None, unbounded()).made)
    load = store.load(versions[-1], have=None, read_only=False, in_place=True)
    assert load.in_place is not None and load.in_place.version == versions[-1].version
    assert not list(load.batches)
    shutil.rmtree(load.in_place.directory)
    # one that is lost leaves those that the version refers to
    [waiting] = store.waiting_segments()
    tables.storage.delete_many([f"0/0/{waiting.name}"])
    load = store.load(versions[-1], have=None, read_only=False, in_place=True)
    assert load.in_place is not None and load.in_place.version < versions[-1].version
    assert list(load.batches)
    shutil.rmtree(load.in_place.directory)


def test_a_load_in_place_goes_around_a_broken_table_by_entries(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY, 3)
    versions += tables.run_batches(store, versions[-1], 2)
    tables.storage.delete_many([f"0/0/{listed(tables, name).tables[0].path}"])
    load = tables.open().load(versions[-1], have=None, read_only=True, in_place=True)
    assert load.in_place is None
    assert rows_of(load) == tables.states[versions[-1].attempt]


def test_what_a_job_made_can_be_read_in_place(tables: Query) -> None:
    store = tables.open()
    versions = tables.run_batches(store, EMPTY, 4)
    store.confirm(versions[-1])
    made = store.compact()
    assert made is not None
    assert made.in_place is not None
    found = made.in_place(tempfile.gettempdir())
    with Database(found.directory, read_only=True) as opened:
        rows = {key: value for batch in opened.entries() for key, _, value in triples([batch])}
    assert (found.version, rows) == (4, tables.states[versions[-1].attempt])
    shutil.rmtree(found.directory)


def test_tables_of_a_checkpoint_on_this_disk_are_linked_and_verified_all_the_same(tmp_path: Path) -> None:
    tables = on_tables(Query(Storage(str(tmp_path / "state"))))
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY)
    version = tables.run_batches(store, versions[-1], 1)[-1]
    published = {table.name: tmp_path / "state" / "0" / "0" / table.path for table in listed(tables, name).tables}

    load = tables.open().load(version, have=None, read_only=True, in_place=True)
    assert load.in_place is not None
    for table, path in published.items():
        assert os.path.samefile(os.path.join(load.in_place.directory, table), path)
    assert load.in_place.files == len(published)
    assert load.in_place.bytes == sum(path.stat().st_size for path in published.values())
    shutil.rmtree(load.in_place.directory)

    damaged = next(iter(published.values()))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    # what leads around the table comes as entries
    assert tables.open().load(version, have=None, read_only=True, in_place=True).in_place is None
    tables.assert_restores(tables.open(), version)


def test_a_bound_of_the_local_disk_ends_materializations_and_restores_in_place_and_no_commit(
    tables: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "of-another-store").write_bytes(bytes(2 << 20))
    bounded = on_tables(tables, engine__localMaxBytes=2 << 20)
    store = bounded.open()
    versions = bounded.run_batches(store, EMPTY, 3)
    store.confirm(versions[-1])
    with fails_with("storage.failed") as caught:
        store.compact()
    assert "engine.localMaxBytes" in str(caught.error)
    versions += bounded.run_batches(store, versions[-1], 1)
    # links are no more bytes than their file
    os.link(tmp_path / "of-another-store", tmp_path / "its-link")
    roomy = on_tables(tables, engine__localMaxBytes=3 << 20)
    store = roomy.open()
    versions, _ = materialized(roomy, store, versions[-1])
    version = roomy.run_batches(store, versions[-1], 1)[-1]
    roomy.assert_restores(roomy.open(), version)
    with fails_with("storage.failed"):
        bounded.open().load(version, have=None, read_only=True, in_place=True)


def test_a_store_whose_files_were_given_up_merges_on(
    tables: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    assert list(tmp_path.glob("lamina-*"))
    store.give_up_files()
    assert list(tmp_path.glob("lamina-*")) == []
    store.give_up_files()
    versions, _ = materialized(tables, store, versions[-1])
    tables.assert_restores(tables.open(), versions[-1])


def test_nothing_is_left_on_the_local_disk(tables: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(os.listdir(tmp_path))
    store = tables.open()
    versions, _ = materialized(tables, store, EMPTY)
    versions += tables.run_batches(store, versions[-1], 1)
    tables.assert_restores(tables.open(), versions[-1])
    assert [name for name in set(os.listdir(tmp_path)) - before if name.startswith("lamina-database")] == []
    del store
    gc.collect()
    assert [name for name in set(os.listdir(tmp_path)) - before if name.startswith("lamina-")] == []


def test_only_a_job_that_has_tables_to_fetch_holds_memory_for_that(tables: Query) -> None:
    """Jobs of all stores share a bound, and most find the tables of the job before."""

    def peak(store: VersionedStore, base: Version) -> int:
        store.confirm(base)
        merge, budget = store.plan_compaction(), MemoryBudget()
        assert merge is not None
        store.adopt(merge.run(None, budget.share()).made)
        assert budget.stats()["held_bytes"] == 0
        return int(budget.stats()["peak_bytes"])

    store = tables.open()
    versions = tables.run_batches(store, EMPTY, 2)
    assert 0 < peak(store, versions[-1]) < FETCH_BYTES
    versions += tables.run_batches(store, versions[-1], 3)
    assert 0 < peak(store, versions[-1]) < FETCH_BYTES
    other = tables.open()
    versions += tables.run_batches(other, versions[-1], 3)
    assert peak(other, versions[-1]) >= FETCH_BYTES


def test_a_check_does_not_count_what_the_next_commit_is_to_refer_to_as_not_needed(tables: Query) -> None:
    store = tables.open()
    versions, name = materialized(tables, store, EMPTY)
    log = {version.version: version.attempt for version in versions}

    def orphans() -> dict[str, tuple[int, int]]:
        return dict(StoreChecker(tables.storage, store.identity, log, clock=tables.clock).check().orphans)

    assert of_class(tables, TableListName) == [name]
    assert orphans() == {}
    # once a later version is there that does not refer to it, it is not needed
    other = tables.open()
    wait(tables, 1000)
    later = tables.commit(other, versions[-1], {b"k": (PUT, b"v")})
    log[later.version] = later.attempt
    assert orphans().keys() == {"table_list", "table"}


def test_keys_that_only_ascend_leave_no_table_for_each_job(tables: Query) -> None:
    """RocksDB merges none of them by itself, since they overlap nothing."""
    store, base, counts, states = tables.open(), EMPTY, [], {}
    for job in range(100):
        for half in range(2):
            rows = {b"%06d" % (10 * job + 5 * half + row): b"%d" % row for row in range(5)}
            base = tables.commit(store, base, {key: (PUT, value) for key, value in rows.items()})
            states |= rows
        counts.append(len(listed(tables, compact(tables, store, base)).tables))
    assert counts[15] == 16
    assert max(counts) <= 32
    # each table was published once for each time that it doubled
    assert len(of_class(tables, TableName)) <= 2 * len(counts)
    tables.assert_restores(tables.open(), base)
    assert len(states) == 1000
