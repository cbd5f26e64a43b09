"""The data side of a real engine: round trips, errors and what they do to the connection, deadlines, back-pressure."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.engine.conftest import Starter
from tests.unit.engine.engine_client import PREFIX, Data, Engine, Refused, Store, entries


def rows(count: int, value: bytes = b"value") -> list[tuple[int, int, bytes, bytes]]:
    return [(0, 1, b"key-%08d" % number, value) for number in range(count)]


def nothing_written(store: Store) -> bool:
    """Whether the store's directory is empty once no request is in progress any more."""
    while store.engine.call("stats")["requests"]["active"]:
        pass
    return not list(store.directory.glob("*"))


@pytest.fixture
def data(engine: Engine) -> Data:
    connection = engine.connect()
    assert connection.greeted()
    return connection


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/checkpoint/state"


def test_what_was_committed_is_what_is_loaded(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    first = store.commit(data, 1, None, entries([(0, 1, b"a", b"1"), (0, 1, b"b", b"2"), (1, 1, b"", b"")]))
    second = store.commit(data, 2, first, entries([(0, 2, b"a", b""), (0, 3, b"c", b"\x01\0\0\0x")]))
    header, loaded = Store(engine, url, read_only=True).load(data, 2, second)
    assert header["start"] == "empty"
    assert (header["attempt"], header["version"]) == (second, 2)
    # Newest first.
    assert sorted(loaded[:2]) == [(0, 2, b"a", b""), (0, 3, b"c", b"\x01\0\0\0x")]
    assert sorted(loaded[2:]) == [(0, 1, b"a", b"1"), (0, 1, b"b", b"2"), (1, 1, b"", b"")]


def test_a_response_says_which_file_became_durable_and_how_large_it_is(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    begun = store.begin(0, None)
    answer = data.request(store.commit_header(1, begun, 3), [[entries(rows(3))]])
    durable = answer["durable"]
    assert (store.directory / durable["file"]).stat().st_size == durable["bytes"]


def test_large_values_and_many_batches_cross_in_both_directions(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    large = [(0, 1, b"k%d" % number, os.urandom(1) * (9 << 20)) for number in range(4)]
    batches = [entries(rows(20_000)), entries([]), entries(large)]
    begun = store.begin(0, None)
    data.request(store.commit_header(1, begun, 20_004), [batches])
    _, loaded = store.load(data, 1, begun["attempt"])
    assert sorted(loaded) == sorted(rows(20_000) + large)


def test_a_snapshot_section_follows_the_increment_in_one_request(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    first = store.commit(data, 1, None, entries(rows(10)))
    begun = store.begin(1, first, force_snapshot=True)
    assert begun["snapshot"]
    header = store.commit_header(
        2, begun, 1, sections=["increment", "snapshot"], rows={"increment": 1, "snapshot": 11}, base=None
    )
    new = [(0, 1, b"new", b"1")]
    data.request(header, [[entries(new)], [entries(rows(10) + new)]])
    answer, loaded = store.load(data, 2, begun["attempt"])
    assert answer["files"] == 1
    assert sorted(loaded) == sorted(rows(10) + new)


def test_a_rewrite_section_follows_the_increment_in_one_request(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url, settings={"compaction.mode": "rolling", "compaction.rollingParts": "2"})
    assert store.begin(0, None)["rewrite"] is None
    attempt = store.commit(data, 1, None, entries(rows(4)))
    halves = [[*rows(4)[:2], (0, 1, b"new", b"2")], rows(4)[2:]]
    for version, half in enumerate(halves, start=2):
        begun = store.begin(version - 1, attempt)
        assert begun["rewrite"] == {"part": version - 2, "parts": 2}
        header = store.commit_header(
            version,
            begun,
            1,
            sections=["increment", "rewrite"],
            rows={"increment": 1, "rewrite": len(half)},
            rewrite={**begun["rewrite"], "hash": "halves"},
        )
        data.request(header, [[entries([(0, 1, b"new", b"%d" % version)])], [entries(half)]])
        attempt = begun["attempt"]
    answer, loaded = store.load(data, 3, attempt)
    assert answer["files"] == 2
    # without version 1 and the increment of version 2: both halves are there in full
    assert loaded == [*halves[1], (0, 1, b"new", b"3"), *halves[0]]


def test_an_error_of_the_store_leaves_the_connection_usable(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    begun = store.begin(0, None)
    header = store.commit_header(1, {**begun, "attempt": begun["attempt"][:-4] + "0000"}, 50_000)
    with pytest.raises(Refused) as refused:
        data.request(header, [[entries(rows(50_000))]])
    assert refused.value.kind == "store.state"
    assert data.request({"op": "ping"})["ok"]
    with pytest.raises(Refused) as refused:
        data.request({**store.commit_header(1, begun, 1), "handle": 99}, [[entries(rows(1))]])
    assert refused.value.kind == "store.closed"
    assert data.request({"op": "ping"})["ok"]


def test_a_commit_whose_rows_are_not_those_announced_is_refused_and_not_published(
    engine: Engine, data: Data, url: str
) -> None:
    store = Store(engine, url)
    begun = store.begin(0, None)
    with pytest.raises(Refused) as refused:
        data.request(store.commit_header(1, begun, 4), [[entries(rows(3))]])
    assert refused.value.kind == "engine.protocol"
    assert nothing_written(store)


def test_a_commit_that_breaks_off_publishes_nothing(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    begun = store.begin(0, None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, entries([]).schema) as writer:
        writer.write_batch(entries(rows(1000)))
        writer.write_batch(entries(rows(1000)))
    stream = sink.getvalue().to_pybytes()
    # Once in the middle of a batch, once exactly between two messages, where Arrow itself would see an end.
    for cut in (len(stream) - 100, len(stream) - 8):
        connection = engine.connect()
        assert connection.greeted()
        connection.send(store.commit_header(1, begun, 2000, rows={}))
        connection.socket.sendall(stream[:cut])
        connection.close()
    while engine.call("stats")["requests"]["ops"].get("commit", {}).get("count", 0) < 2:
        pass
    assert nothing_written(store)
    assert engine.call("stats")["requests"]["ops"]["commit"]["failed"] == 2


def test_a_section_with_other_columns_is_refused(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    begun = store.begin(0, None)
    data.send(store.commit_header(1, begun, 1))
    sink = pa.BufferOutputStream()
    other = pa.record_batch({"key": [b"x"]})
    with pa.ipc.new_stream(sink, other.schema) as writer:
        writer.write_batch(other)
    data.socket.sendall(sink.getvalue())
    with pytest.raises(Refused) as refused:
        data.header()
    assert refused.value.kind == "engine.protocol"
    assert data.closed()


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"[1]",
        json.dumps({"op": "ping"}).encode(),
        json.dumps({"id": "1", "op": "ping"}).encode(),
        json.dumps({"id": 1, "op": "destroy"}).encode(),
        json.dumps({"id": 1, "op": "commit", "sections": ["other"]}).encode(),
        json.dumps({"id": 1, "op": "ping", "deadline_ms": "soon"}).encode(),
        json.dumps({"id": 1, "op": "load", "handle": 1, "version": "x"}).encode(),
    ],
)
def test_a_bad_header_is_answered_and_ends_the_connection(engine: Engine, data: Data, body: bytes) -> None:
    data.send_raw(body)
    with pytest.raises(Refused) as refused:
        data.header()
    assert refused.value.kind == "engine.protocol"
    assert data.closed()
    again = engine.connect()
    assert again.greeted()
    assert again.request({"op": "ping"})["ok"]


def test_a_header_of_absurd_length_is_refused_unread(data: Data) -> None:
    data.socket.sendall(struct.pack("<I", 0xFFFFFFFF))
    with pytest.raises(Refused, match="4294967295 bytes") as refused:
        data.header()
    assert refused.value.kind == "engine.protocol"


def test_a_wrong_token_is_refused(engine: Engine) -> None:
    connection = engine.connect("0" * 64)
    assert connection.closed()
    assert not engine.control.__class__(engine.answer["py4j_port"], "0" * 64).accepted
    assert engine.connect().greeted()


def test_another_protocol_version_is_refused(engine: Engine) -> None:
    connection = engine.connect(engine.token)
    assert connection.greeted()
    other = Data.__new__(Data)
    other.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    other.socket.connect(engine.answer["socket"])
    other.socket.sendall(b"LMNW" + struct.pack("<HH", 2, 0) + engine.token.encode())
    other._file = other.socket.makefile("rb")
    assert other.closed()


def test_a_request_that_passes_its_deadline_is_answered_and_its_connection_ends(
    engine: Engine, data: Data, url: str
) -> None:
    store = Store(engine, url)
    begun = store.begin(0, None)
    # The section never comes.
    data.send({**store.commit_header(1, begun, 1), "deadline_ms": 150})
    with pytest.raises(Refused) as refused:
        data.header()
    assert refused.value.kind == "engine.deadline"
    assert data.closed()
    assert nothing_written(store)


def test_a_deadline_that_is_kept_leaves_no_trace(engine: Engine, data: Data) -> None:
    for _ in range(3):
        assert data.request({"op": "ping", "deadline_ms": 60_000})["ok"]
    assert engine.call("stats")["requests"]["active"] == []


def test_an_earlier_deadline_is_kept_although_a_later_one_is_being_waited_for(
    engine: Engine, data: Data, url: str
) -> None:
    store = Store(engine, url)
    later = engine.connect()
    assert later.greeted()
    later.send({**store.commit_header(1, store.begin(0, None), 1), "deadline_ms": 60_000})
    while not engine.call("stats")["requests"]["active"]:
        pass
    data.send({**store.commit_header(1, store.begin(0, None), 1), "deadline_ms": 100})
    with pytest.raises(Refused) as refused:
        data.header()
    assert refused.value.kind == "engine.deadline"
    assert not later.readable(0)


def test_a_request_can_be_cancelled(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    begun = store.begin(0, None)
    request_id = data.send(store.commit_header(1, begun, 1))
    while not engine.call("cancel", request_id)["cancelled"]:
        pass  # not received yet
    with pytest.raises(Refused) as refused:
        data.header()
    assert refused.value.kind == "engine.cancelled"
    assert data.closed()
    assert nothing_written(store)
    assert engine.call("cancel", request_id)["cancelled"] is False


def test_a_load_that_nobody_reads_is_ended_by_its_deadline_and_cancel_tells_why(
    engine: Engine, data: Data, url: str
) -> None:
    store = Store(engine, url)
    attempt = store.commit(data, 1, None, entries(rows(1000, os.urandom(16 << 10))))
    header = {"op": "load", "handle": store.handle, "version": 1, "attempt": attempt, "have": None, "read_only": True}
    # Long enough for the header on a busy machine; the stream does not fit into the socket's buffers.
    request_id = data.send({**header, "deadline_ms": 8000})
    assert data.header()["ok"]
    while engine.call("stats")["requests"]["active"]:
        pass
    with pytest.raises(ConnectionError):
        data.stream()
    assert engine.call("cancel", request_id)["error"]["kind"] == "engine.deadline"


def test_further_connections_wait_until_one_ends(start_engine: Starter) -> None:
    engine = start_engine(process={PREFIX + "engine.connections": "2"})
    first, second, third = engine.connect(), engine.connect(), engine.connect()
    assert first.greeted()
    assert second.greeted()
    assert first.request({"op": "ping"})["ok"]
    assert not third.readable(0.2)
    assert engine.call("stats")["data"]["connections"] == 2
    second.close()
    assert third.greeted()
    assert third.request({"op": "ping"})["ok"]


def test_requests_of_several_connections_run_at_the_same_time(engine: Engine, data: Data, url: str) -> None:
    store = Store(engine, url)
    waiting = engine.connect()
    assert waiting.greeted()
    waiting.send(store.commit_header(1, store.begin(0, None), 1))
    assert data.request({"op": "ping"})["ok"]
    waiting.send_section([entries(rows(1))])
    assert waiting.header()["ok"]


def test_an_error_inside_a_stream_closes_the_connection_and_cancel_tells_why(
    engine: Engine, data: Data, url: str
) -> None:
    store = Store(engine, url)
    first = store.commit(data, 1, None, entries(rows(1000)))
    second = store.commit(data, 2, first, entries([(0, 1, b"x", b"y")]))
    file = next(store.directory.glob("1_*"))
    content = bytearray(file.read_bytes())
    content[200] ^= 0xFF
    file.write_bytes(content)
    header = {"op": "load", "handle": store.handle, "version": 2, "attempt": second}
    request_id = data.send({**header, "have": None, "read_only": True})
    assert data.header()["ok"]
    with pytest.raises(ConnectionError):
        data.stream()
    error = engine.call("cancel", request_id)["error"]
    assert error["kind"] == "file.damaged"
    assert file.name in error["message"]
    again = engine.connect()
    assert again.greeted()


def test_a_load_that_waits_for_memory_is_ended_by_a_cancel_and_the_next_one_gets_the_memory(
    start_engine: Starter, url: str
) -> None:
    engine = start_engine(process={PREFIX + "engine.memoryBytes": str(32 << 20)})
    data, second, third = engine.connect(), engine.connect(), engine.connect()
    assert data.greeted()
    assert second.greeted()
    assert third.greeted()
    store = Store(engine, url)
    attempt = store.commit(
        data, 1, None, entries([(0, 1, b"%d" % number, os.urandom(16 << 10)) for number in range(2500)])
    )
    header = {"op": "load", "handle": store.handle, "version": 1, "attempt": attempt, "have": None, "read_only": True}

    def budget() -> dict[str, int]:
        found: dict[str, int] = engine.call("stats")["memory"]["budget"]["requests"]
        return found

    # nobody reads it, and it does not fit into the socket's buffers
    holding = data.send(header)
    assert data.header()["ok"]
    while not budget()["held_bytes"]:
        pass
    waiting = second.send(header)
    assert second.header()["ok"]
    while budget()["waiting"] < 1:
        pass
    last = third.send(header)
    assert third.header()["ok"]
    while budget()["waiting"] < 2:
        pass
    assert last
    assert engine.call("cancel", waiting)["cancelled"]
    while budget()["waiting"] > 1:
        pass
    assert engine.call("cancel", holding)["cancelled"]
    assert sum(batch.num_rows for batch in third.stream()) == 2500
    while budget()["held_bytes"]:
        pass
    assert budget()["waits"] == 2
