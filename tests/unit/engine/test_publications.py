"""Commits that are accepted before they are durable: what is answered when, and what a storage that hangs holds up.

The storage is a directory whose files are flushed, so that no publication counts as quick, and in which a test holds
publications by a pipe that nobody writes to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.conftest import Starter
from tests.unit.engine.engine_client import HELD, PREFIX, Data, Engine, Refused, Store, entries, greeted

FLUSHED = {"storage.fsync.enabled": "true"}
"""How long an answer may take on a busy machine before it counts as none."""


class Gate:
    """Holds the commits below a directory of a checkpoint until it is opened."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "gate"
        self._waiting = directory / "gate-of-those-who-wait"
        os.mkfifo(self._path)

    def open(self) -> None:
        """Lets go who waits, and whoever comes later."""
        if self._path.exists():
            os.rename(self._path, self._waiting)
            # nobody waits for it where opening fails
            with contextlib.suppress(OSError):
                os.close(os.open(self._waiting, os.O_WRONLY | os.O_NONBLOCK))
            os.unlink(self._waiting)


Held = Callable[[Path], Gate]


@pytest.fixture
def gate() -> Iterator[Held]:
    """Makes gates, which are open when the test is over."""
    gates: list[Gate] = []

    def made(directory: Path) -> Gate:
        gates.append(Gate(directory))
        return gates[-1]

    yield made
    for one in gates:
        one.open()


@pytest.fixture
def start(start_engine: Starter) -> Callable[..., Engine]:
    def started(**process: str) -> Engine:
        conf = {f"{PREFIX}engine.{name}": value for name, value in process.items()}
        return start_engine(python_path=HELD, process=conf)

    return started


def listening(engine: Engine) -> Data:
    """The stream of outcomes."""
    stream = greeted(engine)
    assert stream.request({"op": "outcomes"})["ok"]
    return stream


def send(store: Store, data: Data, key: bytes = b"key", **header: Any) -> tuple[int, str]:
    """Sends a commit of the first version: id of the request, and id of the attempt."""
    begun = store.begin(0, None)
    batch = entries([(0, 1, key, b"value")])
    return data.send({**store.commit_header(1, begun, 1), **header}, [[batch]]), begun["attempt"]


def accepted(store: Store, data: Data, **header: Any) -> int:
    """Sends a commit, whose acceptance says nothing of its being durable; the id of the request."""
    request, attempt = send(store, data, **header)
    answer = data.header()
    assert (answer["id"], answer["accepted"]) == (request, attempt)
    assert "durable" not in answer
    return request


def outcome_of(stream: Data) -> tuple[int, str]:
    """The next outcome: of which request, and the file that is durable or the kind of its error."""
    header = stream.raw_header()
    return header["id"], header["durable"]["file"] if header["ok"] else header["error"]["kind"]


def files(store: Store) -> list[str]:
    return [path.name for path in store.directory.glob("*.lam")]


def becomes(condition: Callable[[], bool]) -> None:
    while not condition():
        os.sched_yield()


def test_a_commit_is_accepted_before_it_is_durable_and_its_connection_serves_other_requests(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    engine = start()
    data, stream = greeted(engine), listening(engine)
    store = Store(engine, f"file:{tmp_path}/state", settings=FLUSHED)
    held = gate(tmp_path / "state")
    request = accepted(store, data)
    assert data.request({"op": "ping"})["ok"]
    assert not files(store)
    active = engine.call("stats")["requests"]["active"]
    assert [one["id"] for one in active if one["op"] == "commit"] == [request]
    held.open()
    assert outcome_of(stream) == (request, files(store)[0])
    becomes(lambda: not engine.call("stats")["requests"]["active"])
    assert engine.call("stats")["requests"]["ops"]["commit"]["failed"] == 0


def test_where_nobody_listens_or_the_storage_is_quick_a_commit_is_answered_once(
    start: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = start()
    data = greeted(engine)
    flushed = Store(engine, f"file:{tmp_path}/one/state", settings=FLUSHED)
    _, attempt = send(flushed, data)
    answer = data.header()
    assert (answer["accepted"], [answer["durable"]["file"]]) == (attempt, files(flushed))
    stream = listening(engine)
    quick = Store(engine, f"file:{tmp_path}/two/state")
    send(quick, data)
    assert [data.header()["durable"]["file"]] == files(quick)
    assert not stream.readable(0)


def test_a_publication_that_fails_reaches_exactly_its_commit(start: Callable[..., Engine], tmp_path: Path) -> None:
    engine = start()
    data, stream = greeted(engine), listening(engine)
    stores = [Store(engine, f"file:{tmp_path}/state", settings=FLUSHED, partition=number) for number in range(3)]
    stores[1].directory.mkdir(parents=True, exist_ok=True)
    (stores[1].directory / "refusal").touch()
    requests = [accepted(store, data) for store in stores]
    outcomes = dict(outcome_of(stream) for _ in stores)
    assert outcomes == {
        requests[0]: files(stores[0])[0],
        requests[1]: "storage.failed",
        requests[2]: files(stores[2])[0],
    }
    assert not files(stores[1])


def test_hundreds_of_commits_wait_without_a_connection_or_a_thread_of_their_own(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    engine = start(connections="4")
    data, stream = greeted(engine), listening(engine)
    stores = [Store(engine, f"file:{tmp_path}/state", settings=FLUSHED, partition=number) for number in range(300)]
    held = gate(tmp_path / "state")

    def threads() -> int:
        return len(os.listdir(f"/proc/{engine.process.pid}/task"))

    before = threads()
    requests = [accepted(store, data) for store in stores]
    # a commit is answered a moment before it waits
    becomes(lambda: engine.call("stats")["publications"]["waiting"] == 296)
    stats = engine.call("stats")
    assert stats["publications"]["in_work"] == 4
    # the connection and the stream
    assert stats["data"]["connections"] == 2
    assert threads() - before <= 4
    held.open()
    outcomes = dict(outcome_of(stream) for _ in stores)
    assert outcomes == {request: files(store)[0] for request, store in zip(requests, stores, strict=True)}
    becomes(lambda: engine.call("stats")["publications"]["held_bytes"] == {})
    assert engine.call("stats")["memory"]["budget"]["requests"]["held_bytes"] == 0


def test_commits_to_storages_that_hang_leave_places_for_those_to_another(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    engine = start(connections="2")
    data, stream = greeted(engine), listening(engine)
    for name in ("first", "second"):
        gate(tmp_path / name / "state")
        url = f"file:{tmp_path}/{name}/state"
        for number in range(10):
            accepted(Store(engine, url, settings=FLUSHED, partition=number), data)
    becomes(lambda: engine.call("stats")["publications"]["waiting"] == 17)
    assert engine.call("stats")["publications"]["in_work"] == 3
    other = Store(engine, f"file:{tmp_path}/other/state", settings=FLUSHED)
    request = accepted(other, data)
    assert outcome_of(stream) == (request, files(other)[0])


def test_a_commit_that_is_cancelled_while_it_waits_publishes_nothing(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    engine = start(connections="1")
    # from now on it takes no place
    stream = listening(engine)
    data = greeted(engine)
    first, second = (Store(engine, f"file:{tmp_path}/state", settings=FLUSHED, partition=number) for number in range(2))
    held = gate(tmp_path / "state")
    in_work = accepted(first, data)
    becomes(lambda: engine.call("stats")["publications"]["in_work"] == 1)
    held_bytes = engine.call("stats")["publications"]["held_bytes"]
    waiting = accepted(second, data)
    becomes(lambda: engine.call("stats")["publications"]["waiting"] == 1)
    assert engine.call("cancel", waiting)["cancelled"]
    assert outcome_of(stream) == (waiting, "engine.cancelled")
    becomes(lambda: engine.call("stats")["publications"]["waiting"] == 0)
    assert engine.call("stats")["publications"]["held_bytes"] == held_bytes
    held.open()
    assert outcome_of(stream) == (in_work, files(first)[0])
    assert not files(second)
    assert data.request({"op": "ping"})["ok"]


def test_a_commit_whose_publication_passes_its_deadline_fails_and_gives_its_place_and_memory_back(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    engine = start(connections="4")
    data, stream = greeted(engine), listening(engine)
    store = Store(engine, f"file:{tmp_path}/state", settings=FLUSHED)
    held = gate(tmp_path / "state")
    request = accepted(store, data, deadline_ms=3000)
    assert outcome_of(stream) == (request, "engine.deadline")
    becomes(lambda: engine.call("stats")["publications"]["abandoned"] == 1)
    stats = engine.call("stats")
    assert (stats["publications"]["in_work"], stats["publications"]["held_bytes"]) == (0, {})
    assert stats["stores"]["late_calls"] == {f"file:{tmp_path}/state": 1}
    # the thread of the connection is none of those that hang
    assert stats["data"]["abandoned"] == 0
    assert data.request({"op": "ping"})["ok"]
    held.open()
    becomes(lambda: engine.call("stats")["publications"]["abandoned"] == 0)
    # it may still become durable: nobody confirms its attempt
    assert len(files(store)) == 1
    assert not stream.readable(0)


def test_a_storage_in_which_publications_hang_past_their_deadlines_gets_no_further_ones(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    engine = start(connections="4")
    data, stream = greeted(engine), listening(engine)
    url = f"file:{tmp_path}/state"
    stores = [Store(engine, url, settings=FLUSHED, partition=number) for number in range(3)]
    begun = stores[2].begin(0, None)
    gate(tmp_path / "state")
    requests = [accepted(store, data, deadline_ms=3000) for store in stores[:2]]
    assert dict(outcome_of(stream) for _ in requests) == dict.fromkeys(requests, "engine.deadline")
    with pytest.raises(Refused, match=f"{url} does not answer: 2 calls") as refused:
        data.request(stores[2].commit_header(1, begun, 1), [[entries([(0, 1, b"key", b"value")])]])
    assert refused.value.kind == "storage.failed"


def send_large(store: Store, data: Data, megabytes: int) -> tuple[int, str]:
    """Sends a first commit of so many values of 1 MiB; its request, and the attempt that it was begun as."""
    begun = store.begin(0, None)
    batch = entries([(0, 1, b"%d" % number, os.urandom(1 << 20)) for number in range(megabytes)])
    return data.send(store.commit_header(1, begun, megabytes), [[batch]]), begun["attempt"]


def test_a_commit_for_which_there_is_no_room_is_accepted_when_it_is_durable(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    # of which commits that wait in one storage get 12 MiB
    engine = start(memoryBytes=str(32 << 20))
    data, stream = greeted(engine), listening(engine)
    store = Store(engine, f"file:{tmp_path}/state", settings=FLUSHED)
    held = gate(tmp_path / "state")
    send_large(store, data, 13)
    # all of it has arrived: it holds no batches any more, and the file
    becomes(lambda: 13 << 20 < engine.call("stats")["memory"]["budget"]["requests"]["held_bytes"] < 17 << 20)
    small = greeted(engine)
    other = Store(engine, f"file:{tmp_path}/state", settings=FLUSHED, partition=1)
    request = accepted(other, small)
    assert not data.readable(0)
    held.open()
    assert [data.header()["durable"]["file"]] == files(store)
    assert outcome_of(stream) == (request, files(other)[0])


def test_a_file_that_waits_for_local_storage_is_in_memory_and_counted_once(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    # of which commits that wait in one storage get 12 MiB
    engine = start(memoryBytes=str(32 << 20))
    data, stream = greeted(engine), listening(engine)
    store = Store(engine, f"file:{tmp_path}/state", settings=FLUSHED)
    held = gate(tmp_path / "state")
    request, attempt = send_large(store, data, 8)
    assert data.readable(20)
    assert data.header()["accepted"] == attempt
    becomes(lambda: bool(engine.call("stats")["publications"]["held_bytes"]))
    (counted,) = engine.call("stats")["publications"]["held_bytes"].values()
    held.open()
    assert outcome_of(stream) == (request, files(store)[0])
    size = next(store.directory.glob("*.lam")).stat().st_size
    assert size == counted


def test_a_new_stream_takes_the_place_of_the_one_before(start: Callable[..., Engine], tmp_path: Path) -> None:
    engine = start(connections="1")
    before = listening(engine)
    stream = listening(engine)
    assert before.closed()
    data = greeted(engine)
    store = Store(engine, f"file:{tmp_path}/state", settings=FLUSHED)
    request = accepted(store, data)
    assert outcome_of(stream) == (request, files(store)[0])


def test_an_engine_that_is_killed_between_acceptance_and_publication_loses_that_attempt_alone(
    start: Callable[..., Engine], gate: Held, tmp_path: Path
) -> None:
    engine = start()
    data, stream = greeted(engine), listening(engine)
    url = f"file:{tmp_path}/state"
    store = Store(engine, url, settings=FLUSHED)
    request, first = send(store, data)
    assert data.header()["accepted"] == first
    assert outcome_of(stream)[0] == request
    held = gate(tmp_path / "state")
    begun = store.begin(1, first)
    data.send(store.commit_header(2, begun, 1), [[entries([(0, 1, b"key", b"lost")])]])
    assert data.header()["accepted"] == begun["attempt"]
    engine.process.kill()
    assert stream.closed()
    held.open()
    following = start()
    data = greeted(following)
    store = Store(following, url, settings=FLUSHED, run_id="next")
    again = store.commit(data, 2, first, entries([(0, 1, b"key", b"again")]))
    assert store.load(data, 2, again)[1] == [(0, 1, b"key", b"again"), (0, 1, b"key", b"value")]
