"""Tables that a later RocksDB wrote are told from damaged ones, by their own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.format.entries import PUT
from lamina.store.tables.database import Database
from lamina.store.tables.table_format import require_known_format
from lamina.testing.expect import fails_with
from tests.unit.store.writing import entries

VERSION_BYTES = slice(-12, -8)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table as it is made here."""
    with Database(str(tmp_path / "database")) as database:
        database.ingest(iter([entries([(0, PUT, b"k", b"v")])]))
        (name,) = (one.name for one in database.live())
    return tmp_path / "database" / name


def written_as(table: Path, version: int) -> None:
    data = bytearray(table.read_bytes())
    data[VERSION_BYTES] = version.to_bytes(4, "little")
    table.write_bytes(data)


def test_what_is_made_here_is_known(table: Path) -> None:
    assert int.from_bytes(table.read_bytes()[VERSION_BYTES], "little") == 5
    require_known_format(str(table), "T.sst")
    written_as(table, 6)
    require_known_format(str(table), "T.sst")


def test_a_later_version_is_refused_by_its_name(table: Path) -> None:
    written_as(table, 7)
    with fails_with("file.version") as caught:
        require_known_format(str(table), "T.sst")
    assert "T.sst" in caught.error.message
    assert "use a newer lamina" in caught.error.message


@pytest.mark.parametrize("data", [b"", b"short", b"no table of RocksDB, and longer than the end of one"])
def test_what_is_no_table_is_for_others_to_tell(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "T.sst"
    path.write_bytes(data)
    require_known_format(str(path), "T.sst")
