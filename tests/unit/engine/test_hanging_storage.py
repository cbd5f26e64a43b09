"""A storage that hangs: the place of a request that was given up, further requests to that storage, and other queries.

The storage is a directory in which a file of the state is a pipe that nobody writes to: whoever opens it waits in the
operating system, as on a network file system whose server is gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.engine.conftest import Starter
from tests.unit.engine.engine_client import ANSWER_S, PREFIX, Data, Refused, Store, entries, greeted

CONNECTIONS = 64
"""How long an answer may take on a busy machine before it counts as none."""


class HangingStore:
    """A store of one version, whose file cannot be read until `release`."""

    def __init__(self, start_engine: Starter, directory: Path) -> None:
        self.url = f"file:{directory}/state"
        engine = start_engine()
        store = Store(engine, self.url)
        data = greeted(engine)
        self.attempt = store.commit(data, 1, None, entries([(0, 1, b"key", b"value")]))
        data.close()
        engine.end()
        (self.file,) = store.directory.glob("1_*")
        self._whole = self.file.read_bytes()
        self.file.unlink()
        os.mkfifo(self.file)
        self._waiting = self.file.with_name("pipe")
        os.link(self.file, self._waiting)

    def load(self, store: Store, data: Data, deadline_ms: int) -> int:
        """Sends a request that hangs; its id."""
        header = {"op": "load", "handle": store.handle, "version": 1, "attempt": self.attempt, "have": None}
        return data.send({**header, "read_only": True, "deadline_ms": deadline_ms})

    def release(self) -> None:
        """Puts the file in its place and lets those go on that wait for the pipe."""
        temporary = self.file.with_name("whole")
        temporary.write_bytes(self._whole)
        os.replace(temporary, self.file)
        # whoever waits reads nothing, which is no file of ours
        with contextlib.suppress(OSError):
            os.close(os.open(self._waiting, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture
def hanging(start_engine: Starter, tmp_path: Path) -> Iterator[HangingStore]:
    store = HangingStore(start_engine, tmp_path / "hanging")
    yield store
    store.release()


def given_up(data: Data) -> str:
    """The kind of error that a request was answered with; its connection is over then."""
    with pytest.raises(Refused) as refused:
        data.header()
    return refused.value.kind


def test_requests_that_hang_in_one_storage_do_not_stop_the_queries_on_another(
    start_engine: Starter, hanging: HangingStore, tmp_path: Path
) -> None:
    engine = start_engine()
    stuck = Store(engine, hanging.url, read_only=True)
    connections = [greeted(engine) for _ in range(CONNECTIONS)]
    for data in connections:
        hanging.load(stuck, data, 1000)
    assert [given_up(data) for data in connections] == ["engine.deadline"] * CONNECTIONS
    # all threads hang as before, and as many connections as ever are served
    assert engine.call("stats")["data"]["abandoned"] == CONNECTIONS
    others = [greeted(engine) for _ in range(CONNECTIONS)]
    store = Store(engine, f"file:{tmp_path}/other/state")
    attempt = store.commit(others[0], 1, None, entries([(0, 1, b"a", b"1")]))
    assert store.load(others[-1], 1, attempt)[1] == [(0, 1, b"a", b"1")]


def test_a_storage_in_which_many_requests_hang_gets_no_further_ones_until_it_answers(
    start_engine: Starter, hanging: HangingStore, tmp_path: Path
) -> None:
    engine = start_engine(process={PREFIX + "engine.connections": "8"})
    stuck = Store(engine, hanging.url, read_only=True)
    for _ in range(4):
        data = greeted(engine)
        hanging.load(stuck, data, 100)
        assert given_up(data) == "engine.deadline"
    data = greeted(engine)
    for _ in range(20):
        hanging.load(stuck, data, 0)
        with pytest.raises(Refused, match=f"{hanging.url} does not answer: 4 calls") as refused:
            data.header()
        assert refused.value.kind == "storage.failed"
    with pytest.raises(Refused, match="does not answer"):
        engine.call("resolve", stuck.handle, {"version": 1, "attempt": None})
    with pytest.raises(Refused, match="does not answer"):
        Store(engine, hanging.url)
    stats = engine.call("stats")
    assert stats["stores"]["late_calls"] == {hanging.url: 4}
    assert stats["data"]["abandoned"] == 4
    # the connection goes on, and other storages do not notice
    other = Store(engine, f"file:{tmp_path}/other/state")
    other.commit(data, 1, None, entries([(0, 1, b"a", b"1")]))
    hanging.release()
    while engine.call("stats")["data"]["abandoned"]:
        pass
    assert stuck.load(data, 1, hanging.attempt)[1] == [(0, 1, b"key", b"value")]
    assert engine.call("stats")["stores"]["late_calls"] == {}


def test_a_request_that_was_cancelled_while_it_hung_gives_its_place_back(
    start_engine: Starter, hanging: HangingStore
) -> None:
    engine = start_engine(process={PREFIX + "engine.connections": "1"})
    stuck = Store(engine, hanging.url, read_only=True)
    data = greeted(engine)
    request = hanging.load(stuck, data, 0)
    while not engine.call("cancel", request)["cancelled"]:
        pass  # not received yet
    assert given_up(data) == "engine.cancelled"
    assert greeted(engine).request({"op": "ping"})["ok"]
    assert engine.call("stats")["stores"]["late_calls"] == {}


def test_the_threads_that_outlive_their_requests_are_bounded(start_engine: Starter, hanging: HangingStore) -> None:
    """Beyond four for each place a request keeps its own: further connections wait, as for any busy engine."""
    engine = start_engine(process={PREFIX + "engine.connections": "1"})
    stuck = Store(engine, hanging.url, read_only=True)
    for _ in range(5):
        data = greeted(engine)
        request = hanging.load(stuck, data, 0)
        while not engine.call("cancel", request)["cancelled"]:
            pass
        assert given_up(data) == "engine.cancelled"
    assert engine.call("stats")["data"]["abandoned"] == 4
    waiting = engine.connect()
    assert not waiting.readable(0.2)
    hanging.release()
    waiting.socket.settimeout(ANSWER_S)
    assert waiting.greeted()
    while engine.call("stats")["data"]["abandoned"]:
        pass
    assert waiting.request({"op": "ping"})["ok"]
