"""A file that changes while it is read: what is handed out is what was verified, whatever a second read would give."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pyarrow as pa
import pytest

from lamina.errors import LaminaError
from lamina.format import blocks
from lamina.format.entries import PUT
from lamina.storage import Storage, local
from lamina.storage.local import LocalBackend
from lamina.store import Version
from lamina.store.files import store_files as files
from tests.unit.store.writing import Query, file_name, rows_of

EMPTY = Version(0)


class ChangingFiles(LocalBackend):
    """Local files that `change` is done to after `reads` of them."""

    def __init__(self, root: str, reads: int, change: Callable[[], None]) -> None:
        super().__init__(root, fsync=False)
        self._left = reads
        self._change = change
        self.reads = 0

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        return self._read(super().read_range(path, offset, length))

    def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        for piece in super().read_pieces(path, offset, length, size):
            yield self._read(piece)

    def _read(self, data: pa.Buffer) -> pa.Buffer:
        self.reads += 1
        if self.reads == self._left:
            self._change()
        return data


def flip(path: Path, needle: bytes) -> None:
    """Changes a byte of a value where it lies in the file."""
    position = path.read_bytes().index(needle)
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(b"W")


def test_a_file_that_changes_between_two_reads_of_it_never_gives_wrong_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(local, "PIECE_BYTES", 1 << 12)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 10)
    query = Query(Storage(str(tmp_path)), compression__codec="uncompressed")
    value = b"right" + bytes(95)
    version = query.commit(query.open(), EMPTY, {b"k%04d" % number: (PUT, value) for number in range(1000)})
    assert version.attempt is not None
    path = tmp_path / "0" / "0" / file_name(version.attempt)
    whole = path.read_bytes()
    expected = dict.fromkeys(query.states[version.attempt], value)
    right = 0
    for reads in itertools.count(1):
        path.write_bytes(whole)
        backend = ChangingFiles(str(tmp_path), reads, lambda: flip(path, b"right"))
        query.storage = Storage(str(tmp_path), backend=backend)
        try:
            assert rows_of(query.open(read_only=True).load(version, have=None, read_only=True)) == expected
            right += 1
        except LaminaError as error:
            if error.kind != "file.damaged" or path.name not in error.message:
                raise
        if backend.reads < reads:
            break
    assert reads > 20
    assert right > 10
    assert os.path.getsize(path) == len(whole)
