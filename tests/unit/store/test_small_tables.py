"""Which small tables of RocksDB are joined, and that a job does so bit by bit and says that it goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import LaminaError
from lamina.format.entries import PUT
from lamina.store.tables.database import DEFAULT, Database, _small_neighbours
from tests.unit.store.writing import entries

MIB = 1 << 20


def table(first: int, last: int, size: int) -> dict[str, Any]:
    return {"start_key": b"%06d" % first, "end_key": b"%06d" % last, "size": size}


def in_a_row(count: int, size: int) -> list[dict[str, Any]]:
    return [table(10 * number, 10 * number + 9, size) for number in range(count)]


def joined(tables: list[dict[str, Any]], table_bytes: int) -> list[list[dict[str, Any]]]:
    return [list(few) for few in _small_neighbours(tables, table_bytes)]


def test_more_than_sixteen_small_tables_in_a_row_are_joined() -> None:
    assert joined(in_a_row(16, MIB), 64 * MIB) == []
    assert joined(in_a_row(17, MIB), 64 * MIB) == [in_a_row(17, MIB)]
    large = table(85, 86, 16 * MIB)
    assert joined([*in_a_row(17, MIB), large], 64 * MIB) == []


def test_a_large_state_whose_tables_are_to_be_larger_is_joined_in_pieces() -> None:
    pieces = joined(in_a_row(320, 60 * MIB), 512 * MIB)
    assert len(pieces) > 5
    for piece in pieces:
        assert sum(one["size"] for one in piece) <= 5 * 512 * MIB
    # whatever is as small as a small one may be, enough of them are together
    assert joined(in_a_row(17, 16 * MIB - 1), 64 * MIB) == [in_a_row(17, 16 * MIB - 1)]


def run_of(number: int) -> Iterator[pa.RecordBatch]:
    yield entries((0, PUT, b"%06d" % (100 * number + row), b"v") for row in range(100))


def test_a_job_says_that_it_goes_on_while_tables_are_joined(tmp_path: Path) -> None:
    with Database(str(tmp_path), replace(DEFAULT, table_bytes=4 * MIB)) as database:
        for number in range(20):
            database.ingest(run_of(number))
        merging, joins = threading.Event(), threading.Event()
        real = database._db

        class Slow:
            """Merges once somebody was told that work goes on."""

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            def compact_range(self, *arguments: Any) -> None:
                joins.set()
                assert merging.wait(60)
                real.compact_range(*arguments)

        database._db = Slow()
        database.join(merging.set)
        assert joins.is_set()
        database._db = real
        assert len(database.live()) == 1
        assert sum(batch.num_rows for batch in database.entries()) == 2000


def test_a_join_that_rocksdb_could_not_do_is_an_error(tmp_path: Path) -> None:
    with Database(str(tmp_path)) as database:
        for number in range(20):
            database.ingest(run_of(number))
    damaged = min(tmp_path.glob("*.sst"))
    content = damaged.read_bytes()
    damaged.write_bytes(bytes(64) + content[64:])
    # what was read while it was ingested is not in memory any more
    with pytest.raises(LaminaError) as caught, Database(str(tmp_path)) as database:
        database.join(lambda: None)
    assert caught.value.kind in ("storage.failed", "file.damaged")
    assert str(tmp_path) in caught.value.message
