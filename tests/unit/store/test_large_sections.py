"""Large sections are read piece by piece, from where they lie or from a copy: here all of them are large."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.format.entries import PUT
from lamina.format.manifest import Section
from lamina.storage import Storage
from lamina.store import Version, files
from lamina.store.files import StoreFiles
from lamina.store.versions import file_name
from lamina.testing.expect import fails_with
from tests.unit.store.writing import Query, damage, rows_of

EMPTY = Version(0)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(files, "_PIECE_BYTES", 100)


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
        store.adopt(compacted.segment)
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


def behind_a_batch(path: Path, section: Section) -> int:
    """Where the schema and two batches of a section end."""
    with pa.OSFile(str(path), "rb") as file:
        file.seek(section.offset)
        reader = pa.ipc.MessageReader.open_stream(file)
        for _ in range(3):
            reader.read_next_message()
        assert section.offset < file.tell() < section.offset + section.length
        return int(file.tell())


@pytest.mark.parametrize("left", [0.0, 0.5, 0.9, "batches"])
def test_a_file_that_is_cut_off_after_it_was_verified_fails_the_restore(
    left: float | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(Storage(str(tmp_path)), compression__codec="uncompressed")
    version = query.commit(query.open(), EMPTY, {b"k%06d" % number: (PUT, b"v") for number in range(200_000)})
    assert version.attempt is not None
    path = tmp_path / "0" / "0" / file_name(version.attempt)
    verified = StoreFiles._check_digest

    def cut(self: StoreFiles, storage: Storage, at: str, section: Section, pieces: Any, take: Any) -> None:
        verified(self, storage, at, section, pieces, take)
        os.truncate(
            path, behind_a_batch(path, section) if left == "batches" else section.offset + int(section.length * left)
        )

    monkeypatch.setattr(files, "_PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(StoreFiles, "_check_digest", cut)
    load = query.open(read_only=True).load(version, have=None, read_only=True)
    with fails_with("file.damaged") as caught:
        rows_of(load)
    assert path.name in caught.error.message


REMOTE = """
    import os, re, sys
    from pathlib import Path
    import pyarrow as pa
    from lamina.components import RandomIds, SystemClock
    from lamina.format import SCHEMA, ColumnFamily, Count
    from lamina.settings import Settings
    from lamina.storage import LocalCache, Storage, cache
    from lamina.storage.local import LocalBackend
    from lamina.store import CheckpointState, CommitRequest, HeapStore, StoreConf, StoreId, Version

    class Remote(LocalBackend):
        remote = True

        def local_path(self, path):
            return None

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
    store = HeapStore(state, StoreId(root, 0, 0, "default"), conf, clock=SystemClock(), ids=RandomIds())
    if attempt is None:
        begun = store.begin(Version(0), task_attempt=0, load_empty=False, force_snapshot=False, have=True)
        counts = {0: Count(ROWS, ROWS * 96)}
        request = CommitRequest(begun.attempt, 1, Version(0), "0" * 32, counts, (ColumnFamily(0, "default"),), 1, 0)
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
