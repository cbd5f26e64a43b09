"""Loads on top of a version that the caller has, replays from a snapshot, and the change feed, over the wire."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.conftest import Starter
from tests.unit.engine.engine_client import Data, Engine, Refused, Store, entries, greeted


def put(key: bytes, value: bytes) -> tuple[int, int, bytes, bytes]:
    return (0, 1, key, value)


FAMILY = {
    "id": 0,
    "name": "default",
    "internal": False,
    "key_schema": "{}",
    "value_schema": "{}",
    "encoder": {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"},
    "encoding": "unsaferow",
    "multi_value": False,
    "row_checksum": False,
    "key_bytes": "row",
    "value_bytes": "row",
    "partition_key": {"kind": "key"},
}


class Chain:
    """A store with the versions 1 to 4; the commit of version 2 holds a snapshot too."""

    def __init__(self, engine: Engine, url: str) -> None:
        self.data = engine.connect()
        assert self.data.greeted()
        self.store = Store(engine, url)
        self.attempts: list[str | None] = [None]
        self.increments: list[tuple[int, int]] = [(0, 0)]
        for version in range(1, 5):
            change = [put(b"k%d" % version, b"v"), put(b"same", b"%d" % version)]
            begun = self.store.begin(version - 1, self.attempts[-1], force_snapshot=version == 2)
            header = self.store.commit_header(version, begun, 2, column_families=[FAMILY])
            sections = [[entries(change)]]
            if version == 2:
                header |= {"sections": ["increment", "snapshot"], "rows": {"increment": 2, "snapshot": 3}, "base": None}
                sections.append([entries([*change, put(b"k1", b"v")])])
            durable = self.data.request(header, sections)["durable"]
            self.increments.append((durable["increments"], durable["increment_bytes"]))
            self.attempts.append(begun["attempt"])

    def read(self, header: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
        answer = self.data.request({"handle": self.store.handle, **header})
        return answer, [row for b in self.data.stream() for row in zip(*(c.to_pylist() for c in b), strict=True)]


@pytest.fixture
def chain(engine: Engine, tmp_path: Path) -> Chain:
    return Chain(engine, f"file:{tmp_path}/checkpoint/state")


def test_a_caller_that_has_an_older_version_gets_what_is_newer_oldest_first(chain: Chain) -> None:
    have = {"version": 2, "attempt": chain.attempts[2]}
    answer, rows = chain.read(
        {"op": "load", "version": 4, "attempt": chain.attempts[4], "have": have, "read_only": False}
    )
    assert answer["start"] == "have"
    assert sorted(rows[:2]) == [put(b"k3", b"v"), put(b"same", b"3")]
    assert sorted(rows[2:]) == [put(b"k4", b"v"), put(b"same", b"4")]


def test_a_load_answers_column_families_and_counts(chain: Chain) -> None:
    answer, _ = chain.read({"op": "load", "version": 4, "attempt": chain.attempts[4], "have": None, "read_only": False})
    assert answer["column_families"] == [FAMILY]
    assert answer["next_column_family"] == 1
    assert answer["counts"] == {"0": {"rows": 2, "bytes": 0}}
    assert answer["bytes_read"] > 0


def test_a_replay_starts_from_the_snapshot_and_applies_what_follows(chain: Chain) -> None:
    answer, rows = chain.read(
        {
            "op": "replay",
            "version": 3,
            "attempt": chain.attempts[3],
            "have": None,
            "read_only": True,
            "snapshot_version": 2,
            "snapshot_attempt": chain.attempts[2],
        }
    )
    assert (answer["start"], answer["version"]) == ("empty", 3)
    state: dict[bytes, bytes] = {}
    for _, _, key, value in rows:
        state.setdefault(key, value)
    assert state == {b"k1": b"v", b"k2": b"v", b"k3": b"v", b"same": b"3"}


def test_a_feed_gives_the_changes_of_each_version_ascending(chain: Chain) -> None:
    answer, rows = chain.read(
        {"op": "feed", "start_version": 3, "end_version": 4, "end_attempt": chain.attempts[4], "cf": None}
    )
    assert answer["column_families"] == [FAMILY]
    assert [row[4] for row in rows] == [3, 3, 4, 4]
    assert sorted(rows[:2]) == [(*put(b"k3", b"v"), 3), (*put(b"same", b"3"), 3)]


def test_a_version_that_is_not_there_is_refused_in_the_header_and_the_connection_stays(
    engine: Engine, chain: Chain
) -> None:
    missing = str(chain.attempts[4])[:-4] + "0000"
    with pytest.raises(Refused, match="0000") as refused:
        chain.read({"op": "load", "version": 4, "attempt": missing, "have": None, "read_only": True})
    assert refused.value.kind in ("file.missing", "state.not-retained")
    with pytest.raises(Refused) as refused:
        chain.read({"op": "load", "version": 4, "attempt": "L9.x", "have": None, "read_only": True})
    assert refused.value.kind == "attempt-id.unknown"
    assert chain.data.request({"op": "ping"})["ok"]


def test_an_empty_version_is_loaded_without_a_file(engine: Engine, tmp_path: Path) -> None:
    data: Data = engine.connect()
    assert data.greeted()
    answer, rows = Store(engine, f"file:{tmp_path}/empty/state").load(data, 0, None)
    assert (answer["start"], answer["rows"], answer["files"], rows) == ("empty", 0, 0, [])


def test_a_change_feed_whose_reader_pauses_stops_no_other_of_the_engine(start_engine: Starter, tmp_path: Path) -> None:
    engine = start_engine(process={"spark.sql.streaming.stateStore.lamina.engine.memoryBytes": "32m"})
    readers = []
    for partition in range(2):
        data = engine.connect()
        assert data.greeted()
        store = Store(engine, f"file:{tmp_path}/q/state", partition=partition)
        begun = store.begin(0, None)
        # more than the part of change feeds, and than what sockets take of a response
        batches = [entries(put(b"%d-%d" % (part, row), os.urandom(1000)) for row in range(1500)) for part in range(7)]
        data.send(store.commit_header(1, begun, 7 * 1500), [batches])
        assert data.header()["ok"]
        data.send(
            {
                "op": "feed",
                "handle": store.handle,
                "start_version": 1,
                "end_version": 1,
                "end_attempt": begun["attempt"],
                "cf": None,
            }
        )
        assert data.header()["ok"]
        readers.append(data)
    paused, other = readers
    assert paused.readable(60)
    assert other.readable(60), "the feed waits for one whose reader pauses"
    for data in (other, paused):
        assert sum(batch.num_rows for batch in data.stream()) == 7 * 1500
    assert engine.call("stats")["memory"]["budget"]["feeds"]["held_bytes"] == 0


def test_a_commit_says_the_increments_of_its_version_and_a_load_the_bytes_of_those_that_it_reads(chain: Chain) -> None:
    counts, sizes = zip(*chain.increments, strict=True)
    # that of version 2 is a snapshot
    assert counts == (0, 1, 0, 1, 2)
    assert 0 < sizes[3] < sizes[4]

    def load(have: int | None) -> dict[str, Any]:
        base = None if have is None else {"version": have, "attempt": chain.attempts[have]}
        header = {"op": "load", "version": 4, "attempt": chain.attempts[4], "have": base, "read_only": True}
        return chain.read(header)[0]

    assert load(None)["replayed_bytes"] == sizes[4] < load(None)["bytes_read"]
    assert load(3)["replayed_bytes"] == sizes[4] - sizes[3]


def test_the_tables_of_a_load_that_breaks_off_are_left_to_who_opens_them(engine: Engine, tmp_path: Path) -> None:
    store, data = Store(engine, f"file:{tmp_path}/checkpoint/state", settings={"backend": "rocksdb"}), greeted(engine)
    attempts: list[str | None] = [None]
    for version in range(1, 6):
        attempts.append(store.commit(data, version, attempts[-1], entries([put(b"k%d" % version, b"v")])))
        if version == 2:
            engine.call("materialize", store.handle, {"version": 2, "attempt": attempts[-1]})
    (lost,) = store.directory.glob("4_*.lam")
    lost.unlink()
    header = {"op": "load", "handle": store.handle, "version": 5, "attempt": attempts[5], "have": None}
    answer = data.request({**header, "read_only": False, "in_place": True})
    with pytest.raises(ConnectionError):
        data.stream()
    directory = Path(answer["in_place"]["directory"])
    assert (directory / "CURRENT").exists()
    engine.call("closeStore", store.handle)
    assert not directory.exists()
