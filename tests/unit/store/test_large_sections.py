"""Large sections are read piece by piece, from where they lie or from a copy: here all of them are large."""

from __future__ import annotations

import os
import tempfile
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

    def cut(self: StoreFiles, storage: Storage, at: str, section: Section, take: Any) -> None:
        verified(self, storage, at, section, take)
        os.truncate(
            path, behind_a_batch(path, section) if left == "batches" else section.offset + int(section.length * left)
        )

    monkeypatch.setattr(files, "_PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(StoreFiles, "_check_digest", cut)
    load = query.open(read_only=True).load(version, have=None, read_only=True)
    with fails_with("file.damaged") as caught:
        rows_of(load)
    assert path.name in caught.error.message
