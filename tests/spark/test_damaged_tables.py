"""Tables and lists of RocksDB's backend that are damaged, gone, foreign or newer under a query: it names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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


class OnTables:
    """A stopped query, none of whose tables is in the JVM: partition 0 stands on this list and these tables."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.answers = Answers()
        self.fed = 0
        for _ in range(BATCHES):
            self.feed()
        self.go_on()
        self.newest, self.manifest = self.newest_of(0)
        self.list, *self.tables = self.base_of(0)
        self.other_list, self.other_table, *_ = self.base_of(1)

    def feed(self) -> None:
        self.streams.feed("s", rows(self.fed))
        self.fed += 1

    def go_on(self) -> None:
        """Runs it over what was fed."""
        try:
            self.streams.run(totals, LAMINA, mode="complete", each_batch=self.answers, conf=CONF)
        finally:
            unload_all(self.streams.spark)

    def failure(self) -> str:
        """The message with which it fails."""
        with pytest.raises(StreamingQueryException) as failed:
            self.go_on()
        return str(failed.value)

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
        data = path.read_bytes()
        value = verify(data, str(path)).to_json()
        new = sealed(data[: Footer.parse(data, len(data), str(path)).manifest_offset], value, FORMAT_VERSION + 1)
        path.write_bytes(new)
        commit = self.newest.read_bytes()
        end = Footer.parse(commit, len(commit), str(self.newest))
        manifest = self.manifest.to_json()
        for reference in manifest["references"]:
            if reference["path"] == path.name:
                reference |= {"length": len(new), "size": len(new), "sha256": checksum(new)}
        self.newest.write_bytes(sealed(commit[: end.manifest_offset], manifest, end.version))


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
    cases: list[tuple[Path, Callable[[Path], None], str]] = [
        (table, missing, "file.missing"),
        (table, flipped, "file.damaged"),
        (table, cut, "file.damaged"),
        (table, put(query.other_table), "file.damaged"),
        (query.list, missing, "file.missing"),
        (query.list, flipped, "file.damaged"),
        (query.list, put(query.other_list), "file.damaged"),
        (query.list, query.of_a_newer_format, "file.version"),
    ]
    for path, broken, kind in cases:
        whole = {one: one.read_bytes() for one in (path, query.newest)}
        broken(path)
        message = query.failure()
        assert f"[{kind}]" in message, message
        assert path.name in message, message
        for one, data in whole.items():
            one.write_bytes(data)
    assert sorted(query.answers.batches) == list(range(BATCHES))
    query.go_on()
    assert sorted(query.answers.batches) == list(range(BATCHES + 1))
    query.answers.check()


def test_a_query_goes_around_a_damaged_table_where_older_files_lead_to_its_state(query: OnTables) -> None:
    for path in query.tables:
        flipped(path)
    query.feed()
    query.feed()
    query.go_on()
    assert sorted(query.answers.batches) == list(range(BATCHES + 2))
    query.answers.check()
