"""The stream of outcomes: whoever adds one never waits for the peer, which gets them whole and in their order."""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any, BinaryIO

from lamina.engine.framing import Connection
from lamina.engine.outcomes import Outcomes, OutcomeStream

OUTCOMES = 5000


def headers(file: BinaryIO, count: int) -> list[dict[str, Any]]:
    return [json.loads(file.read(struct.unpack("<I", file.read(4))[0])) for _ in range(count)]


def served(stream: OutcomeStream, ours: socket.socket) -> threading.Thread:
    thread = threading.Thread(target=stream.serve, args=(Connection(ours),))
    thread.start()
    return thread


def test_outcomes_that_the_peer_does_not_read_hold_up_nobody_and_arrive_in_their_order() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    stream = Outcomes().opened()
    # before there is a connection, while nobody reads, and when the peer has caught up
    stream.send_header({"id": 0})
    thread = served(stream, ours)

    def add(numbers: range) -> None:
        for number in numbers:
            stream.send_header({"id": number, "durable": {"file": "f" * 100}})

    add(range(1, OUTCOMES // 2))
    with theirs, theirs.makefile("rb") as file:
        meanwhile = threading.Thread(target=add, args=(range(OUTCOMES // 2, OUTCOMES),))
        meanwhile.start()
        assert [header["id"] for header in headers(file, OUTCOMES)] == list(range(OUTCOMES))
        meanwhile.join()
        stream.send_header({"id": OUTCOMES})
        assert headers(file, 1) == [{"id": OUTCOMES}]
        stream.close()
        thread.join()
    ours.close()


def test_outcomes_for_a_peer_that_is_gone_are_dropped() -> None:
    ours, theirs = socket.socketpair()
    outcomes = Outcomes()
    stream = outcomes.opened()
    thread = served(stream, ours)
    theirs.close()
    for number in range(10):
        stream.send_header({"id": number})
    thread.join()
    assert outcomes.current is None
    stream.send_header({"id": 10})
    ours.close()
