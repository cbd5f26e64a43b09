"""Whole files that are no containers, as the base of a version: kept, collected, checked, not taken for entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lamina.format.blocks import half_sha256
from lamina.format.container import BASES, COMMIT, Footer, header, verify
from lamina.format.entries import PUT
from lamina.format.manifest import FILE, Reference
from lamina.store import Version
from lamina.store.check.checker import StoreChecker
from lamina.store.check.report import StoreCheck
from lamina.store.files import store_files
from lamina.store.versioned_store import VersionedStore
from lamina.testing.expect import fails_with
from tests.sealed import sealed, with_base
from tests.unit.store.aging import EMPTY, MIN_AGE_MS, batches, compact, deleted, file, wait
from tests.unit.store.writing import Query, names, rows_of

TABLES = [f"{number:032x}.sst" for number in (1, 2, 3)]


class OnTables:
    """A store whose third version stands on two tables, of its second one; a third table is of no version."""

    def __init__(self, query: Query) -> None:
        self.query = query
        store = query.open()
        self.versions = batches(query, store, EMPTY, 3)
        self.tables = []
        for number, name in enumerate(TABLES):
            content = b"table %d " % number * 200
            query.storage.publish(f"0/0/{name}", content)
            size, sha256 = len(content), half_sha256(content).hex()
            self.tables.append(Reference(None, name, 0, size, size, sha256, FILE, 0, 2, 0, store.identity))
        self.stand_on(self.tables[:2])

    @property
    def third(self) -> str:
        """The file of the version that stands on the tables."""
        return f"0/0/{file(self.versions[2])}"

    def stand_on(self, base: list[Reference], **changed: Any) -> None:
        path = self.third
        self.query.storage.publish(path, with_base(bytes(self.query.storage.read(path)), base, **changed))

    def further(self, store: VersionedStore, count: int) -> list[Version]:
        self.versions += batches(self.query, store, self.versions[-1], count)
        return self.versions

    def check(self, *, contents: bool = True) -> StoreCheck:
        named = {3: self.versions[2].attempt, **{one.version: one.attempt for one in self.versions[3:]}}
        store = self.query.open(read_only=True)
        return StoreChecker(
            self.query.storage, store.identity, named, clock=self.query.clock, contents=contents
        ).check()


@pytest.fixture
def on_tables(query: Query) -> OnTables:
    return OnTables(query)


def test_a_table_that_a_retained_version_names_is_never_collected(on_tables: OnTables) -> None:
    query = on_tables.query
    store = query.open()
    on_tables.further(store, 6)
    wait(query, 2 * MIN_AGE_MS)
    assert deleted(store.collect(on_tables.versions[-1], dry_run=False)) == {
        TABLES[2], *map(file, on_tables.versions[:2])
    }  # fmt: skip
    assert names(query.storage) >= {*TABLES[:2]}
    last = query.commit(store, on_tables.versions[-1], {b"k": (PUT, b"x")}, force_snapshot=True)
    wait(query, 1000)
    last = batches(query, store, last, 6)[-1]
    assert deleted(store.collect(last, dry_run=False)) == set()
    wait(query, MIN_AGE_MS)
    assert {*TABLES[:2]} < deleted(store.collect(last, dry_run=False))


def test_a_table_that_no_version_named_goes_at_the_minimum_age(on_tables: OnTables) -> None:
    query = on_tables.query
    store = query.open()
    verdicts = {one.path: one for one in store.collect(on_tables.versions[-1], dry_run=True).verdicts}
    assert [(verdicts[name].kind, verdicts[name].action) for name in TABLES] == [
        ("table", "keep"), ("table", "keep"), ("table", "wait")
    ]  # fmt: skip
    wait(query, MIN_AGE_MS)
    assert TABLES[2] in deleted(store.collect(on_tables.versions[-1], dry_run=False))


def test_tables_that_are_whole_are_verified_by_a_check(on_tables: OnTables) -> None:
    on_tables.further(on_tables.query.open(), 2)
    found = on_tables.check()
    assert (found.problems, found.whole) == ((), (2, 3, 4, 5))
    assert (found.files, found.orphans["table"]) == (7, (1, on_tables.tables[2].length))
    assert found.rows is None


def flipped(data: bytes) -> list[bytes]:
    return [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in (0, 777, len(data) - 1)]


@pytest.mark.parametrize("piece_bytes", [600, 900, 4 << 20])
def test_damage_of_a_table_is_found_and_named(
    on_tables: OnTables, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "FILE_PIECE_BYTES", piece_bytes)
    storage, path = on_tables.query.storage, f"0/0/{TABLES[1]}"
    whole = bytes(storage.read(path))
    other = bytes(storage.read(f"0/0/{TABLES[0]}"))
    assert on_tables.check().problems == ()
    for content in (*flipped(whole), whole[:-1], whole + b"x", b"", other):
        storage.publish(path, content)
        found = on_tables.check()
        assert [problem.kind for problem in found.problems] == ["file.damaged"]
        assert TABLES[1] in found.problems[0].message
        assert found.damaged == (3,)


@pytest.mark.parametrize("contents", [True, False])
def test_a_table_that_is_not_there_is_found_and_named(on_tables: OnTables, contents: bool) -> None:
    on_tables.query.storage.delete_many([f"0/0/{TABLES[1]}"])
    (problem,) = on_tables.check(contents=contents).problems
    assert (problem.kind, problem.versions) == ("file.missing", (3,))
    assert TABLES[1] in problem.message


def test_a_restore_of_entries_is_refused_and_names_the_table(on_tables: OnTables) -> None:
    store = on_tables.query.open()
    with fails_with("store.unsupported") as caught:
        rows_of(store.load(on_tables.versions[2], have=None, read_only=True))
    assert TABLES[0] in caught.error.message


def test_changes_above_the_tables_reach_a_caller_that_has_the_version_before(on_tables: OnTables) -> None:
    query = on_tables.query
    store = query.open()
    versions = on_tables.further(store, 2)
    for have in (1, 2, 3):
        load = store.load(versions[4], have=versions[have], read_only=True)
        assert rows_of(load, query.states[versions[have].attempt]) == query.states[versions[4].attempt]
    feed = store.feed(3, versions[4], None)
    assert {number for batch in feed.batches for number in batch.column(4).to_pylist()} == {3, 4, 5}


def test_increments_above_the_tables_are_merged_and_the_tables_left_alone(on_tables: OnTables) -> None:
    query = on_tables.query
    store = query.open()
    versions = on_tables.further(store, 9)
    segment = compact(query, store, versions[-1])
    assert segment.startswith("2-")
    versions = on_tables.further(store, 1)
    manifest = store.manifest(versions[-1])
    assert manifest is not None
    assert [one.path for one in manifest.references] == [None, segment, *TABLES[:2]]
    assert on_tables.check().problems == ()
    load = store.load(versions[-1], have=versions[1], read_only=True)
    assert rows_of(load, query.states[versions[1].attempt]) == query.states[versions[-1].attempt]


def test_rewrites_of_all_parts_take_the_place_of_tables(on_tables: OnTables) -> None:
    query = Query(on_tables.query.storage, clock=on_tables.query.clock, compaction__mode="rolling",
                  compaction__rollingParts=2)  # fmt: skip
    query.states.update(on_tables.query.states)
    store = query.open()
    first, second = batches(query, store, on_tables.versions[2], 2)
    kinds = []
    for version in (first, second):
        manifest = store.manifest(version)
        assert manifest is not None
        kinds.append([reference.kind for reference in manifest.references])
    assert kinds == [["rewrite", "increment", "increment", "file", "file"], ["rewrite", "increment", "rewrite"]]
    query.assert_restores(query.open(), second)


def test_files_that_refer_to_tables_have_a_format_that_older_releases_refuse(on_tables: OnTables) -> None:
    query = on_tables.query
    (newest,) = on_tables.further(query.open(), 1)[3:]
    for path in (on_tables.third, f"0/0/{file(newest)}"):
        data = bytes(query.storage.read(path))
        end = Footer.parse(data, len(data), path)
        assert end.version == BASES
        value = verify(data, path).to_json()
        for version in (1, 2):
            body = header(COMMIT, version) + data[16 : end.manifest_offset]
            with fails_with("file.damaged"):
                verify(sealed(body, value, version), path)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda one: replace(one, offset=16),
        lambda one: replace(one, length=one.length - 1),
        lambda one: replace(one, length=0, size=0),
        lambda one: replace(one, path=None),
        lambda one: replace(one, path="../1/x.sst"),
        lambda one: replace(one, start=1),
        lambda one: replace(one, end=1),
        lambda one: replace(one, end=3),
    ],
)
def test_tables_that_do_not_make_a_base_are_refused(
    on_tables: OnTables, wrong: Callable[[Reference], Reference]
) -> None:
    on_tables.stand_on([on_tables.tables[0], wrong(on_tables.tables[1])])
    store = on_tables.query.open()
    with fails_with("file.damaged") as caught:
        store.load(on_tables.versions[2], have=None, read_only=True)
    assert file(on_tables.versions[2]) in caught.error.message


def test_nothing_is_older_than_tables(on_tables: OnTables) -> None:
    data = bytes(on_tables.query.storage.read(f"0/0/{file(on_tables.versions[1])}"))
    older = [one.placed(file(on_tables.versions[1]), len(data)) for one in verify(data, "").references]  # type: ignore[union-attr]
    on_tables.stand_on([*on_tables.tables[:2], *older])
    with fails_with("file.damaged"):
        on_tables.query.open().load(on_tables.versions[2], have=None, read_only=True)


def test_who_reads_a_table_is_told_at_its_end_that_it_is_another_one(on_tables: OnTables) -> None:
    query, table = on_tables.query, on_tables.tables[0]
    files = store_files.StoreFiles(query.storage, table.origin)
    whole = bytes(query.storage.read(f"0/0/{TABLES[0]}"))
    assert b"".join(bytes(piece) for piece in files.read_file(table)) == whole
    for content in (*flipped(whole), whole[:-1], whole + b"x", b""):
        query.storage.publish(f"0/0/{TABLES[0]}", content)
        with fails_with("file.damaged") as caught:
            list(files.read_file(table))
        assert TABLES[0] in caught.error.message
