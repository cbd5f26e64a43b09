"""What crosses a data connection is the same however it was cut on its way."""

from __future__ import annotations

import json
import socket
import struct
import threading

import pyarrow as pa
import pytest

from lamina.engine.framing import Connection, PeerGone
from lamina.format import SCHEMA


def batch(rows: int, value: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([0] * rows, pa.uint16()),
            pa.array([1] * rows, pa.uint8()),
            pa.array([b"key %d" % number for number in range(rows)], pa.binary()),
            pa.array([value] * rows, pa.binary()),
        ],
        schema=SCHEMA,
    )


def request(number: int, batches: list[pa.RecordBatch]) -> bytes:
    header = json.dumps({"id": number}).encode()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for one in batches:
            writer.write_batch(one)
    return struct.pack("<I", len(header)) + header + sink.getvalue().to_pybytes()


REQUESTS = [[batch(3, b"small")], [], [batch(5, b"v" * 9_000), batch(2_000, b"w" * 40)], [batch(1, b"")]]


@pytest.mark.parametrize("piece", [1 << 20, 16 << 10, 4_096, 333, 7])
def test_requests_are_read_as_they_were_sent_whatever_pieces_they_come_in(piece: int) -> None:
    ours, theirs = socket.socketpair()
    data = b"".join(request(number, batches) for number, batches in enumerate(REQUESTS))

    def send() -> None:
        with theirs:
            for start in range(0, len(data), piece):
                theirs.sendall(data[start : start + piece])

    sender = threading.Thread(target=send)
    sender.start()
    with ours:
        connection = Connection(ours)
        for number, batches in enumerate(REQUESTS):
            assert connection.receive_header() == {"id": number}
            assert list(connection.receive_stream()) == batches
        assert connection.receive_header() is None
        assert connection.received == len(data)
    sender.join()


@pytest.mark.parametrize("missing", [1, 30, 500])
def test_an_end_in_the_middle_of_a_request_is_no_end_between_requests(missing: int) -> None:
    ours, theirs = socket.socketpair()
    data = request(1, [batch(20, b"value")])
    with ours:
        theirs.sendall(data[: len(data) - missing])
        theirs.close()
        connection = Connection(ours)
        connection.receive_header()
        with pytest.raises(PeerGone):
            list(connection.receive_stream())
