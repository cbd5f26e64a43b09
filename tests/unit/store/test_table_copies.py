"""Tables of a remote storage on this machine: each is read once, shared by links, and verified when it is linked."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.components import SystemClock
from lamina.errors import LaminaError
from lamina.format.entries import PUT
from lamina.format.manifest import Reference
from lamina.format.paths import is_immutable, is_table
from lamina.format.table_list import TableListManifest
from lamina.storage import Storage, local_copies, trusted
from lamina.store import Version
from lamina.store.files import store_files
from lamina.store.files.store_files import StoreFiles
from lamina.store.memory.budget import MemoryBudget
from lamina.store.tables import local, local_disk
from lamina.store.tables.database import Database
from lamina.store.tables.local import LocalTables
from lamina.testing.expect import fails_with
from tests.unit.storage.counted import Counted
from tests.unit.store.aging import EMPTY, compact
from tests.unit.store.test_tables import listed, on_tables
from tests.unit.store.writing import Query, entries, triples


class Machine:
    """A query whose state stands on tables of a remote storage, and the copies of this machine."""

    def __init__(self, directory: Path, max_bytes: int = 64 << 20) -> None:
        self.counted = Counted(directory, max_bytes, holds=is_immutable, links=is_table)
        self.tables = on_tables(Query(self.counted.storage))
        store = self.tables.open()
        versions = self.tables.run_batches(store, EMPTY, 4)
        self.list = listed(self.tables, compact(self.tables, store, versions[-1]))
        self.version: Version = self.tables.run_batches(store, versions[-1], 1)[-1]
        self.size = sum(table.size for table in self.list.tables)

    def kept(self) -> tuple[LocalTables, list[Reference]]:
        """Its tables, fetched by one who keeps them from one job to the next, and the references to them."""
        store = self.tables.open()
        manifest = store.manifest(self.version)
        assert manifest is not None
        references = [one for one in manifest.references if is_table(one.path or "")]
        kept = LocalTables(StoreFiles(self.counted.storage, store.identity))
        kept.fetch(references)
        return kept, references

    def copy(self, number: int = 0) -> Path:
        """The copy of a table."""
        return Path(self.counted.cache._path(f"{self.counted.url}/0/0/{self.list.tables[number].path}"))

    def drop(self) -> None:
        """Removes the copies of its tables."""
        self.counted.cache.drop([f"{self.counted.url}/0/0/{table.path}" for table in self.list.tables])

    def read_tables(self) -> list[str]:
        """The tables that were read from the storage, in order."""
        return [path for operation, path in self.counted.inner.calls if operation == "read_range" and is_table(path)]

    def restored(self) -> tuple[int, str]:
        """Bytes that a restore in place read of tables, and its directory, which is looked through."""
        load = self.tables.open().load(self.version, have=None, read_only=True, in_place=True)
        assert load.in_place is not None
        list(load.batches)
        with Database(load.in_place.directory, read_only=True) as database:
            keys = {key for batch in database.entries() for key, _, _ in triples([batch])}
        assert keys >= {b"k1", b"k2", b"k3"}
        assert load.in_place.bytes == self.size
        return load.in_place.fetched, load.in_place.directory


@pytest.fixture
def machine(directory: Path) -> Machine:
    return Machine(directory)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_what_this_machine_made_it_does_not_read(machine: Machine) -> None:
    machine.counted.inner.calls.clear()
    fetched, directory = machine.restored()
    assert fetched == 0
    # nor what lists the tables, and the increment above them
    assert not [path for operation, path in machine.counted.inner.calls if "read" in operation and is_immutable(path)]
    for number, table in enumerate(machine.list.tables):
        assert os.path.samefile(os.path.join(directory, table.name), machine.copy(number))
    # who is given the directory may remove it: the copy stays
    shutil.rmtree(directory)
    assert machine.restored()[0] == 0


def test_what_was_read_once_is_linked_from_then_on(machine: Machine) -> None:
    machine.drop()
    assert machine.restored()[0] == machine.size
    read = machine.read_tables()
    assert len(set(read)) == len(machine.list.tables)
    assert machine.restored()[0] == 0
    assert machine.read_tables() == read


def test_a_copy_that_is_damaged_is_read_anew(machine: Machine) -> None:
    copy = machine.copy()
    data = bytearray(copy.read_bytes())
    data[len(data) // 3] ^= 4
    copy.unlink()
    copy.write_bytes(data)
    assert machine.restored()[0] == machine.list.tables[0].size
    assert copy.read_bytes() != bytes(data)
    assert machine.restored()[0] == 0


def require_mark(path: Path, checksum: str) -> None:
    """Skips a test where the file system has no room for marks."""
    if not trusted.is_trusted(str(path), checksum):
        pytest.skip("the file system keeps no attributes of the user")


def spoil(path: Path, position: int) -> None:
    """Flips a bit as a disk does it: nobody has written to the file."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def marked(machine: Machine) -> Machine:
    """A machine whose copies are verified."""
    require_mark(machine.copy(), machine.list.tables[0].sha256)
    return machine


def test_both_languages_mean_the_same_mark() -> None:
    shim = Path(__file__).parents[3] / "jvm-shim/src/main/scala/org/apache/spark/sql/lamina/LocalDatabase.scala"
    assert f'private val Mark = "{trusted._MARK.removeprefix("user.")}"' in shim.read_text(encoding="utf-8")


def no_reads(*_: Any, **__: Any) -> Any:
    raise AssertionError("a copy is read to be verified")


def test_a_copy_that_was_verified_is_linked_without_being_read(
    marked: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked.drop()
    assert marked.restored()[0] == marked.size
    monkeypatch.setattr(store_files, "open", no_reads, raising=False)
    assert [marked.restored()[0] for _ in range(2)] == [0, 0]


def test_a_copy_that_was_written_to_is_verified(marked: Machine) -> None:
    copy = marked.copy()
    with copy.open("r+b") as file:
        file.seek(copy.stat().st_size // 3)
        file.write(b"not what was here")
    assert marked.restored()[0] == marked.list.tables[0].size


def test_copies_of_before_the_machine_started_are_verified(marked: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = trusted._boot()
    monkeypatch.setattr(trusted, "_boot", lambda: "another start")
    monkeypatch.setattr(store_files, "open", no_reads, raising=False)
    with pytest.raises(AssertionError, match="to be verified"):
        marked.restored()
    monkeypatch.delattr(store_files, "open")
    assert marked.restored()[0] == 0
    monkeypatch.setattr(trusted, "_boot", lambda: boot)
    assert not trusted.is_trusted(str(marked.copy()), marked.list.tables[0].sha256)


def test_where_nothing_can_be_marked_all_copies_are_verified(marked: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "_boot", lambda: None)
    monkeypatch.setattr(store_files, "open", no_reads, raising=False)
    with pytest.raises(AssertionError, match="to be verified"):
        marked.restored()


def test_a_copy_in_which_rocksdb_meets_damage_is_verified_from_then_on(marked: Machine) -> None:
    spoil(marked.copy(), 8)
    with pytest.raises(LaminaError, match="damaged") as damage:
        marked.restored()
    assert damage.value.kind == "file.damaged"
    assert marked.restored()[0] == marked.list.tables[0].size
    assert marked.restored()[0] == 0


def test_a_merge_that_meets_damage_takes_the_marks_away(tmp_path: Path) -> None:
    directory = tmp_path / "database"

    def run() -> Iterator[pa.RecordBatch]:
        yield entries((0, PUT, f"k{number:05}".encode(), os.urandom(20)) for number in range(2000))

    with Database(str(directory)) as database:
        for _ in range(4):
            database.ingest(run())
    table = sorted(directory.glob("*.sst"))[1]
    trusted.trust(str(table), "a checksum")
    require_mark(table, "a checksum")
    spoil(table, table.stat().st_size // 3)
    assert trusted.is_trusted(str(table), "a checksum")
    with pytest.raises(LaminaError) as error, Database(str(directory)) as database:
        database.ingest(run())
        try:
            database.settle(lambda: None)
        finally:
            assert not trusted.is_trusted(str(table), "a checksum")
    assert error.value.kind == "storage.failed"


def test_a_copy_on_a_bad_sector_is_read_anew(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = machine.copy()
    trusted.distrust(str(bad.parent))
    once = [OSError(errno.EIO, "Input/output error")]

    def opened(path: str, *arguments: Any, **named: Any) -> Any:
        if os.path.samefile(path, bad) and once:
            raise once.pop()
        return open(path, *arguments, **named)

    monkeypatch.setattr(store_files, "open", opened, raising=False)
    assert machine.restored()[0] == machine.list.tables[0].size
    assert once == []
    assert machine.counted.cache.stats()["damaged"] == 1


def test_a_scan_beside_a_copy_in_the_making_leaves_the_total_no_less(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, link = machine.counted.cache, os.link
    machine.drop()
    before = machine.counted.copied_bytes()
    evictor = cache._evictor
    assert evictor is not None

    def scanned(source: str, target: str) -> None:
        # this copy has room, and no name yet
        with evictor._turn():
            evictor._scan()
        link(source, target)

    def settled(found: int, begun: Any) -> None:
        late.append((found, begun))

    late: list[tuple[int, Any]] = []
    settle = cache._total.settle
    monkeypatch.setattr(cache._total, "settle", settled)
    monkeypatch.setattr(os, "link", scanned)
    source = Path(cache.directory).parent / "source"
    source.write_bytes(bytes(100_000))
    cache.keep_file("a:table", str(source))
    monkeypatch.undo()
    for one in late:
        settle(*one)
    assert machine.counted.copied_bytes() == before + 100_000
    assert cache._total.read().total >= before + 100_000


@pytest.fixture
def another_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies lie on another disk than working files."""
    link = os.link

    def within_one_disk(source: str, target: str) -> None:
        if (Path(source).parent == directory) != (Path(target).parent == directory):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target)

    monkeypatch.setattr(os, "link", within_one_disk)
    monkeypatch.setattr(local_copies, "_may_be_linked", lambda *_: False)


@pytest.mark.usefixtures("another_disk")
def test_a_copy_on_another_disk_is_a_copy_of_its_own(directory: Path) -> None:
    machine = Machine(directory)
    assert machine.copy().stat().st_nlink == 1
    fetched, there = machine.restored()
    assert (fetched, machine.read_tables()) == (0, [])
    assert not os.path.samefile(os.path.join(there, machine.list.tables[0].name), machine.copy())
    assert machine.counted.copied_bytes() == machine.counted.cache.held_bytes


@pytest.fixture
def full(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where working files lie, which take all that they may: the bound is 1 MiB."""
    machine.tables = on_tables(machine.tables, engine__localMaxBytes=1 << 20)
    working = tmp_path / "working"
    working.mkdir()
    (working / "of-another-store").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(tempfile, "tempdir", str(working))
    monkeypatch.setattr(local_disk, "LOCAL_DISK", local_disk.LocalDisk(SystemClock()))
    return working


@pytest.mark.usefixtures("another_disk")
def test_what_is_copied_from_another_disk_is_within_the_bound_of_working_files(machine: Machine, full: Path) -> None:
    with fails_with("storage.failed") as caught:
        machine.restored()
    assert "engine.localMaxBytes" in str(caught.error)
    assert local_disk.used_bytes(str(full)) == 1 << 20
    (full / "of-another-store").unlink()
    assert machine.restored()[0] == 0
    assert machine.read_tables() == []


def test_where_nothing_can_be_linked_a_database_needs_room_and_what_a_job_had_room_for_is_kept(
    machine: Machine, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    bound = (full / "of-another-store").stat().st_size
    store = machine.tables.open()
    tables = LocalTables(StoreFiles(machine.counted.storage, store.identity, bound))
    with open(full / "made", "wb") as made:
        made.write(b"a table")
    tables.add(str(full), replace(machine.list.tables[0], name="made"))
    with fails_with("storage.failed") as caught:
        tables.hand_out(replace(machine.list, tables=machine.list.tables[:1], files={}))
    assert "engine.localMaxBytes" in str(caught.error)
    (full / "of-another-store").unlink()
    directory = tables.hand_out(replace(machine.list, tables=machine.list.tables[:1], files={}))
    assert (Path(directory) / machine.list.tables[0].name).read_bytes() == b"a table"


@pytest.mark.usefixtures("full")
def test_within_one_disk_a_copy_is_linked_whatever_the_bound(machine: Machine) -> None:
    assert machine.restored()[0] == 0
    assert machine.read_tables() == []


def test_copies_count_and_go_where_there_is_no_room_and_tables_in_use_stay(machine: Machine) -> None:
    assert machine.counted.copied_bytes() == machine.counted.cache.held_bytes
    _, there = machine.restored()
    machine.drop()
    assert machine.counted.copied_bytes() == machine.counted.cache.held_bytes
    assert not machine.copy().exists()
    assert all(os.path.exists(os.path.join(there, table.name)) for table in machine.list.tables)


def test_a_table_for_which_there_is_no_room_is_read_each_time(directory: Path) -> None:
    machine = Machine(directory, max_bytes=500)
    assert not machine.copy().exists()
    assert [machine.restored()[0] for _ in range(2)] == [machine.size] * 2
    assert machine.counted.cache.stats()["no_room"] > 0


def test_copies_of_tables_that_jobs_stand_on_are_not_the_ones_that_nobody_used_for_longest(machine: Machine) -> None:
    kept, _ = machine.kept()
    changed = os.stat(machine.copy()).st_mtime_ns
    os.utime(machine.copy(), ns=(0, changed))
    kept.keep(table.path for table in machine.list.tables)
    status = os.stat(machine.copy())
    assert status.st_atime_ns > 0
    assert status.st_mtime_ns == changed


def on_this_disk(tmp_path: Path) -> tuple[StoreFiles, TableListManifest, list[Reference]]:
    """A checkpoint on a local disk, the list of its newest version, and the references to the tables of that."""
    tables = on_tables(Query(Storage(str(tmp_path / "state"))))
    store = tables.open()
    versions = tables.run_batches(store, EMPTY, 4)
    made = listed(tables, compact(tables, store, versions[-1]))
    manifest = store.manifest(tables.run_batches(store, versions[-1], 1)[-1])
    assert manifest is not None
    references = [one for one in manifest.references if is_table(one.path or "")]
    return StoreFiles(Storage(str(tmp_path / "state")), store.identity), made, references


def test_distrusted_tables_of_a_checkpoint_on_this_disk_are_verified_once(tmp_path: Path) -> None:
    """They are links to the files of the checkpoint itself, which have no marks otherwise."""
    files, made, references = on_this_disk(tmp_path)
    kept = LocalTables(files)
    kept.fetch(references)
    trusted.distrust(kept.hand_out(made))
    assert kept.absent(references) == references
    kept.fetch(references)
    assert kept.absent(references) == []
    kept.keep(table.path for table in made.tables)
    assert sorted(os.listdir(kept._directory))[-len(made.tables) :] == sorted(table.path for table in made.tables)


def test_a_link_whose_answer_was_lost_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _, references = on_this_disk(tmp_path)
    there = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*.sst")}
    assert there
    inodes = {path: path.stat().st_ino for path in there}
    link = os.link

    def lost(source: str, target: str) -> None:
        link(source, target)
        raise OSError(errno.EIO, "the answer was lost")

    monkeypatch.setattr(os, "link", lost)
    kept = LocalTables(files)
    kept.fetch(references)
    assert kept.fetched == sum(one.length for one in references)
    for path in Path(kept._directory).iterdir():
        assert path.stat().st_ino not in inodes.values()
    assert {path: path.read_bytes() for path in there} == there


@pytest.mark.parametrize(("code", "kind"), [(errno.EMFILE, "storage.failed"), (errno.EIO, "file.damaged")])
def test_a_process_without_a_file_handle_left_does_not_call_a_table_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: str
) -> None:
    files, _, references = on_this_disk(tmp_path)

    def no_handle(path: str, *_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(store_files, "open", no_handle, raising=False)
    with fails_with(kind) as caught:
        LocalTables(files).fetch(references)
    assert any((one.path or "") in caught.error.message for one in references)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_tables_that_somebody_met_as_damaged_are_verified_before_the_next_job_stands_on_them(
    machine: Machine, is_damaged: bool
) -> None:
    """Whoever keeps them from one job to the next: the cache, the maintenance process and the JVM have one file."""
    whole = {table.name: machine.copy(number).read_bytes() for number, table in enumerate(machine.list.tables)}
    kept, references = machine.kept()
    directory = kept.hand_out(machine.list)
    if is_damaged:
        data = bytearray(machine.copy().read_bytes())
        data[len(data) // 3] ^= 4
        # in place, so under all names, and as if nobody had written to it
        times = os.stat(machine.copy())
        with open(machine.copy(), "r+b") as copy:
            copy.write(data)
        os.utime(machine.copy(), ns=(times.st_atime_ns, times.st_mtime_ns))
    assert kept.absent(references) == []
    trusted.distrust(directory)
    assert kept.absent(references) == references
    kept.fetch(references)
    assert kept.absent(references) == []
    again = Path(kept.hand_out(machine.list))
    assert {name: (again / name).read_bytes() for name in whole} == whole
    assert len(machine.read_tables()) == int(is_damaged)


@pytest.mark.parametrize(("free", "expected"), [(0, 4), (3, 7), (100, 16)])
def test_as_many_tables_are_fetched_at_once_as_there_is_memory_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, free: int, expected: int
) -> None:
    lock, changed = threading.Lock(), threading.Event()
    running = most = 0

    def fetch(*_: Any) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == expected:
                changed.set()
        # all that may be are under way before one ends
        changed.wait(5)
        with lock:
            running -= 1
        return 1

    asked: list[int] = []

    def more(size: int) -> bool:
        asked.append(size)
        return len(asked) <= free

    store = machine.tables.open()
    manifest = store.manifest(machine.version)
    assert manifest is not None
    table = next(one for one in manifest.references if is_table(one.path or ""))
    tables = LocalTables(StoreFiles(machine.counted.storage, store.identity))
    monkeypatch.setattr(LocalTables, "_fetch", fetch)
    references = [replace(table, path=f"{number}.sst") for number in range(40)]
    tables.fetch(references, more=more)
    assert (most, tables.fetched) == (expected, 40)
    assert set(asked) <= {store_files.FILE_PIECE_BYTES}


def test_a_restore_takes_free_memory_for_more_tables_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_FETCHED_AT_ONCE", 0)
    machine.drop()
    budget = MemoryBudget(64 << 20)
    load = machine.tables.open().load(machine.version, have=None, read_only=True, share=budget.share(), in_place=True)
    assert load.in_place is not None
    assert budget.stats()["peak_bytes"] >= local.FETCH_BYTES + len(machine.list.tables) * store_files.FILE_PIECE_BYTES
    list(load.batches)
    assert budget.stats()["held_bytes"] == 0
