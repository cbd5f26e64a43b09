"""Tables and lists of RocksDB's backend that are damaged, gone, foreign or newer under a query: it names the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from lamina.format import verify
from lamina.format.container import FORMAT_VERSION, Footer, checksum
from lamina.format.manifest import FILE, CommitManifest
from lamina.settings import PREFIX
from tests.sealed import sealed
from tests.spark.streams import A_FILE_EACH, LAMINA, Streams
from tests.spark.test_restarts import Answers, rows, totals, unload_all

CONF = {
    **A_FILE_EACH,
    PREFIX + "backend": "rocksdb",
    PREFIX + "rocksdb.materializeEvery": "1",
    PREFIX + "heap.handOverMs": "0",
}
BATCHES = 4

TABLE_MAGIC = 0x88E241B785F4CFF7.to_bytes(8, "little")
"""The end of a block based table of RocksDB; the four bytes before it are the version of its format."""
NEWER_TABLES = 99


class Stopped:
    """A stopped query, none of whose tables is in the JVM."""

    def __init__(self, streams: Streams, conf: Mapping[str, str]) -> None:
        self.streams = streams
        self.answers = Answers()
        self.fed = 0
        self._conf = dict(conf)
        for _ in range(BATCHES):
            self.feed()
        self.go_on()

    def feed(self) -> None:
        self.streams.feed("s", rows(self.fed))
        self.fed += 1

    def go_on(self) -> None:
        """Runs it over what was fed."""
        try:
            self.streams.run(totals, LAMINA, mode="complete", each_batch=self.answers, conf=self._conf)
        finally:
            unload_all(self.streams.spark)

    def failure(self) -> str:
        """The message with which it fails."""
        with pytest.raises(StreamingQueryException) as failed:
            self.go_on()
        return str(failed.value)

    def check(self, batches: int) -> None:
        """That so many batches have ended, each with its answer."""
        assert sorted(self.answers.batches) == list(range(batches))
        self.answers.check()


class OnTables(Stopped):
    """Its partition 0 stands on this list and these tables."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams, CONF)
        self.newest, self.manifest = self.newest_of(0)
        self.list, *self.tables = self.base_of(0)
        self.other_list, self.other_table, *_ = self.base_of(1)

    def newest_of(self, partition: int) -> tuple[Path, CommitManifest]:
        directory = self.streams.checkpoint() / "state" / "0" / str(partition)
        (newest,) = directory.glob(f"{BATCHES}_*.lam")
        manifest = verify(newest.read_bytes(), str(newest))
        assert isinstance(manifest, CommitManifest)
        return newest, manifest

    def base_of(self, partition: int) -> list[Path]:
        """The list of a store, and its tables."""
        newest, manifest = self.newest_of(partition)
        return [newest.with_name(one.path or "") for one in manifest.references if one.kind == FILE]

    def remove_other_ways(self) -> None:
        """What the newest version does not need: increments and lists of before, which lead to its state, too."""
        needed = {self.newest.name, *(one.path for one in self.manifest.references)}
        for path in self.newest.parent.iterdir():
            if path.is_file() and path.name not in needed:
                path.unlink()

    def of_a_newer_format(self, path: Path) -> None:
        """Puts the list there as a later lamina would write it, and has the newest version refer to that."""
        value = verify(path.read_bytes(), str(path)).to_json()
        self.replace({path: resealed(path, value, FORMAT_VERSION + 1)})

    def of_a_newer_rocksdb(self, path: Path) -> None:
        """Puts the table there as a later RocksDB would write it, and has the list and the newest version refer to
        that."""
        data = path.read_bytes()
        assert data.endswith(TABLE_MAGIC)
        end = len(data) - len(TABLE_MAGIC)
        table = data[: end - 4] + NEWER_TABLES.to_bytes(4, "little") + TABLE_MAGIC
        value = verify(self.list.read_bytes(), str(self.list)).to_json()
        for one in value["tables"]:
            if one["path"] == path.name:
                one["sha256"] = checksum(table)
        self.replace({path: table, self.list: resealed(self.list, value)})

    def replace(self, files: Mapping[Path, bytes]) -> None:
        """Puts files there, and has the newest version refer to them."""
        manifest = self.manifest.to_json()
        for path, data in files.items():
            path.write_bytes(data)
            for reference in manifest["references"]:
                if reference["path"] == path.name:
                    reference |= {"length": len(data), "size": len(data), "sha256": checksum(data)}
        self.newest.write_bytes(resealed(self.newest, manifest))


def resealed(path: Path, value: Mapping[str, Any], version: int | None = None) -> bytes:
    """The bytes of a file with another manifest, and of another version where one is given."""
    data = path.read_bytes()
    end = Footer.parse(data, len(data), str(path))
    return sealed(data[: end.manifest_offset], value, end.version if version is None else version)


def missing(path: Path) -> None:
    path.unlink()


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def put(other: Path) -> Callable[[Path], None]:
    """The same kind of file of another store."""

    def foreign(path: Path) -> None:
        path.write_bytes(other.read_bytes())

    return foreign


@pytest.fixture
def query(streams: Streams) -> OnTables:
    return OnTables(streams)


def test_a_query_names_a_table_or_list_that_it_cannot_use_and_goes_on_when_that_is_put_back(query: OnTables) -> None:
    query.remove_other_ways()
    query.feed()
    table = query.tables[0]
    cases: list[tuple[Path, Callable[[Path], None], str, str]] = [
        (table, missing, "file.missing", table.name),
        (table, flipped, "file.damaged", table.name),
        (table, cut, "file.damaged", table.name),
        (table, put(query.other_table), "file.damaged", table.name),
        (table, query.of_a_newer_rocksdb, "file.version", table.name),
        (query.list, missing, "file.missing", query.list.name),
        (query.list, flipped, "file.damaged", query.list.name),
        (query.list, put(query.other_list), "file.damaged", query.list.name),
        (query.list, query.of_a_newer_format, "file.version", query.list.name),
    ]
    for path, broken, kind, name in cases:
        whole = {one: one.read_bytes() for one in (path, query.list, query.newest)}
        broken(path)
        message = query.failure()
        assert f"[{kind}]" in message, message
        assert name in message, message
        for one, data in whole.items():
            one.write_bytes(data)
    query.check(BATCHES)
    query.go_on()
    query.check(BATCHES + 1)


def test_a_query_goes_around_a_damaged_table_where_older_files_lead_to_its_state(query: OnTables) -> None:
    for path in query.tables:
        flipped(path)
    query.feed()
    query.feed()
    query.go_on()
    query.check(BATCHES + 2)
