"""Large sections are read piece by piece, from where they lie or from a copy: here all of them are large."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.format import blocks, entries
from lamina.format.entries import APPEND, PUT
from lamina.format.paths import is_immutable
from lamina.storage import LocalCache, Storage, backend, cache, local
from lamina.storage.cache import CachingBackend
from lamina.storage.local import LocalBackend
from lamina.store import Version
from lamina.store.direct.rows import newest_first
from lamina.store.files import store_files as files
from lamina.store.materialization import merging as merge
from lamina.store.restore import stream
from lamina.testing.expect import fails_with
from tests.unit.store.writing import Change, Query, damage, file_name, rows_of, triples

EMPTY = Version(0)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(local, "PIECE_BYTES", 100)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)


@pytest.fixture(params=["local", "remote"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Query:
    # so that nothing but the checksum tells of a change
    options = {"compression__codec": "uncompressed"}
    return Query(Storage(str(tmp_path / "state")) if request.param == "local" else None, **options)


def test_all_versions_restore_before_and_after_they_were_merged(
    query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    store, versions = query.open(), [EMPTY]
    for _ in range(6):
        versions += query.run_batches(store, versions[-1], 5)
        store.confirm(versions[-1])
        compacted = store.compact()
        assert compacted is not None
        store.adopt(compacted.made)
        assert os.listdir(work) == []
    fresh = query.open(read_only=True)
    for version in versions:
        query.assert_restores(fresh, version)


def test_a_damaged_section_is_named_before_any_of_its_entries_is_handed_out(query: Query) -> None:
    store = query.open()
    version = query.commit(store, EMPTY, {b"k%d" % number: (PUT, b"v") for number in range(1000)})
    assert version.attempt is not None
    damage(query.storage, f"0/0/{file_name(version.attempt)}")
    batches = query.open(read_only=True).load(version, have=None, read_only=True).batches
    with fails_with("file.damaged") as caught:
        next(iter(batches))
    assert file_name(version.attempt) in caught.error.message


class ToldReads(LocalBackend):
    """Local files that say before each piece how many bytes were read of a section so far."""

    def __init__(self, root: str, told: Callable[[int], None]) -> None:
        super().__init__(root, fsync=False)
        self._told = told

    def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        read = 0
        for piece in super().read_pieces(path, offset, length, size):
            self._told(read)
            read += piece.size
            yield piece


@pytest.mark.parametrize("left", [0.0, 0.5, 0.9])
def test_a_file_that_is_cut_off_while_it_is_read_fails_the_restore(
    left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PIECE_BYTES", 1 << 20)
    query = Query(Storage(str(tmp_path)), compression__codec="uncompressed")
    version = query.commit(query.open(), EMPTY, {b"k%06d" % number: (PUT, b"v") for number in range(200_000)})
    assert version.attempt is not None
    path = tmp_path / "0" / "0" / file_name(version.attempt)
    manifest = query.open(read_only=True).manifest(version)
    assert manifest is not None
    section = manifest.sections[0]

    def cut(read: int) -> None:
        os.truncate(path, section.offset + int(section.length * left))

    query.storage = Storage(str(tmp_path), backend=ToldReads(str(tmp_path), cut))
    load = query.open(read_only=True).load(version, have=None, read_only=True)
    with fails_with("file.damaged") as caught:
        rows_of(load)
    assert path.name in caught.error.message


def test_the_first_rows_of_a_large_section_come_before_its_last_bytes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PIECE_BYTES", 64 << 10)
    monkeypatch.setattr(entries, "BATCH_ROWS", 500)
    query = Query(Storage(str(tmp_path)), compression__codec="uncompressed")
    version = query.commit(query.open(), EMPTY, {b"k%06d" % number: (PUT, b"v") for number in range(100_000)})
    read: list[int] = []
    query.storage = Storage(str(tmp_path), backend=ToldReads(str(tmp_path), read.append))
    load = query.open(read_only=True).load(version, have=None, read_only=True)
    assert next(load.batches).num_rows > 0
    assert max(read) < load.bytes_read // 4
    assert sum(batch.num_rows for batch in load.batches) > 90_000
    assert max(read) > load.bytes_read // 2


def in_batches(query: Query, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Version], str, int]:
    """Versions whose oldest three increments are in a run of many batches, its path, and where its later half lies."""
    monkeypatch.setattr(entries, "BATCH_ROWS", 50)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 3)
    many: dict[bytes, Change] = {b"m%04d" % number: (PUT, b"value %d" % number) for number in range(1000)}
    versions.append(query.commit(store, versions[-1], many))
    versions += query.run_batches(store, versions[-1], 2)
    store.confirm(versions[-1])
    compacted = store.compact()
    assert compacted is not None
    store.adopt(compacted.made)
    versions += query.run_batches(store, versions[-1], 1)
    section = compacted.made.manifest.sections[0]
    return versions, f"0/0/{compacted.made.name}", section.offset + section.length * 3 // 4


def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of many batches, however few their rows."""
    monkeypatch.setattr(merge, "BATCH_ROWS", 50)
    monkeypatch.setattr(merge, "CHUNK_BYTES", 2_000)
    monkeypatch.setattr(backend, "PIECE_BYTES", 128)


def test_a_section_that_is_damaged_behind_batches_that_are_out_is_worked_around(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before is as it was written, and its puts and deletes decide."""
    small_runs(monkeypatch)
    versions, path, later = in_batches(query, monkeypatch)
    damage(query.storage, path, later)
    load = query.open(read_only=True).load(versions[-1], have=None, read_only=True)
    batches = list(load.batches)
    handed_out = [key for key, _, _ in triples(batches)]
    assert len(handed_out) > len(set(handed_out)) > 1000
    assert {key: value for (_, key), value in newest_first(batches).items()} == query.states[versions[-1].attempt]


def test_appends_that_are_out_when_the_section_turns_out_damaged_are_not_taken_twice(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore fails, and the next one goes around the section from its beginning."""
    small_runs(monkeypatch)
    monkeypatch.setattr(entries, "BATCH_ROWS", 50)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 2)
    appends: dict[bytes, Change] = {b"list %04d" % number: (APPEND, b"(%d)" % number) for number in range(1000)}
    versions.append(query.commit(store, versions[-1], dict.fromkeys(appends, (PUT, b"first"))))
    versions.append(query.commit(store, versions[-1], appends))
    spare = query.open()
    spare.confirm(versions[-1])
    assert spare.compact() is not None, "another way to the state that the appends made"
    manifest = store.manifest(versions[-1])
    assert manifest is not None
    assert manifest.attempt is not None
    versions.append(query.commit(store, versions[-1], {b"list 0001": (APPEND, b"<newer>")}))
    section = manifest.sections[0]
    damage(query.storage, f"0/0/{file_name(manifest.attempt)}", section.offset + section.length * 3 // 4)
    reader = query.open(read_only=True)
    with fails_with("file.damaged"):
        rows_of(reader.load(versions[-1], have=None, read_only=True))
    query.assert_restores(reader, versions[-1])


@pytest.mark.parametrize("first", ["this one", "another"])
def test_a_damaged_local_copy_is_left_in_the_middle_for_the_storage(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its readers drops it first."""
    monkeypatch.setattr(cache, "PIECE_BYTES", 1000)
    inner = Storage(str(tmp_path / "remote"))
    copies = LocalCache(str(tmp_path / "copies"), 64 << 20, is_immutable)
    query = Query(Storage(inner.url, backend=CachingBackend(inner._backend, copies, inner.url)))
    version = query.commit(query.open(), EMPTY, {b"k%06d" % number: (PUT, os.urandom(8)) for number in range(1_000)})
    assert version.attempt is not None
    path = f"0/0/{file_name(version.attempt)}"
    bad = bytearray(bytes(inner.read(path)))
    for position in range(len(bad) // 3, len(bad) // 2, 500):
        bad[position] ^= 1
    copies.keep(f"{inner.url}/{path}", bytes(bad))
    forget = query.storage.forget
    if first == "another":

        def forgotten(path: str) -> bool:
            copies.drop([f"{inner.url}/{path}"])
            return forget(path)

        monkeypatch.setattr(query.storage, "forget", forgotten)
    query.assert_restores(query.open(read_only=True), version)
    assert copies.drop([f"{inner.url}/{path}"]) == 0, "the damaged copy is gone"


class LateThreads(ThreadPoolExecutor):
    """Begins with what follows the first read of a section only when the restore has ended, as on a busy machine."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._late: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self._reads = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._reads += fn is next
        if fn is next and self._reads > 1:
            self._late.append((Future(), fn, args))
            return self._late[-1][0]
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future, fn, args in self._late:
            if cancel_futures:
                future.cancel()
            else:
                future.set_result(fn(*args))
        super().shutdown(wait, cancel_futures=cancel_futures)


def test_a_large_section_that_was_read_is_kept_although_the_restore_ends_before_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ThreadPoolExecutor", LateThreads)
    inner = Storage(str(tmp_path / "remote"))
    query = Query(inner)
    version = query.commit(query.open(), EMPTY, {b"k%06d" % number: (PUT, os.urandom(8)) for number in range(20_000)})
    copies = LocalCache(str(tmp_path / "copies"), 64 << 20, is_immutable)
    query.storage = Storage(inner.url, backend=CachingBackend(inner._backend, copies, inner.url))
    query.assert_restores(query.open(read_only=True), version)
    assert version.attempt is not None
    assert copies.drop([f"{inner.url}/0/0/{file_name(version.attempt)}"]) == 1, "the copy is there"


REMOTE = """
    import os, re, sys
    from pathlib import Path
    import pyarrow as pa
    from lamina.components import RandomIds, SystemClock
    from lamina.format import SCHEMA, ColumnFamily, Count
    from lamina.settings import Settings
    from lamina.storage import LocalCache, Storage, cache
    from lamina.storage.backend import Backend
    from lamina.storage.local import LocalBackend
    from lamina.store import CheckpointState, CommitRequest, StoreConf, StoreId, Version
    from lamina.store.factory import make_store

    class Remote(LocalBackend):
        remote = True

        def read_pieces(self, path, offset, length, size):
            return Backend.read_pieces(self, path, offset, length, size)

    def texts(width, count):
        data = pa.py_buffer(os.urandom(width * count))
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, data]).cast(pa.binary())

    def batches():
        for _ in range(ROWS // 32768):
            columns = [pa.array([0] * 32768, pa.uint16()), pa.array([1] * 32768, pa.uint8()), texts(20, 32768)]
            yield pa.RecordBatch.from_arrays([*columns, texts(76, 32768)], schema=SCHEMA)

    ROWS = 96 * 32768
    root, copies, attempt = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
    kept = LocalCache(copies, 1 << 30, lambda path: path.endswith(".lam"))
    storage = Storage(root, backend=cache.CachingBackend(Remote(root, fsync=False), kept, root))
    state = CheckpointState.open(storage, run_id="r", read_only=False, clock=SystemClock(), ids=RandomIds())
    conf = StoreConf(Settings.parse({"spark.sql.streaming.stateStore.lamina.compression.codec": "uncompressed"}), 2,
                     "4.3.0", 100)
    store = make_store(state, StoreId(root, 0, 0, "default"), conf, clock=SystemClock(), ids=RandomIds())
    if attempt is None:
        begun = store.begin(Version(0), task_attempt=0, load_empty=False, force_snapshot=False, have=True)
        counts = {0: Count(ROWS, ROWS * 96)}
        request = CommitRequest(begun.attempt, 1, Version(0), counts, (ColumnFamily(0, "default"),), 1, 0)
        store.commit(request, {"increment": batches()})
        print(begun.attempt)
    else:
        load = store.load(Version(1, attempt), have=None, read_only=True)
        assert sum(batch.num_rows for batch in load.batches) == ROWS
        # not getrusage: its peak counts the process that started this one
        print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1], kept.stats()["kept"])
"""


def test_a_restore_from_a_remote_storage_holds_little_of_a_large_section(tmp_path: Path) -> None:
    """A section of 330 MB, from the storage and then from its local copy, each in a process of its own."""

    def ran(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", textwrap.dedent(REMOTE), str(tmp_path / "state"), *arguments]
        environment = {
            "PYTHONPATH": str(Path(files.__file__).parents[2]),
            "TMPDIR": str(tmp_path),
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        }
        return subprocess.check_output(command, text=True, timeout=300, env=environment).split()

    (attempt,) = ran(str(tmp_path / "another executor"))
    for kept in ("1", "0"):
        peak, copies = ran(str(tmp_path / "copies"), attempt)
        assert int(peak) // 1024 <= 256
        assert copies == kept
