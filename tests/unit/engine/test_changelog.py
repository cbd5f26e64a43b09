"""The changelog in a real engine: commits of many stores become durable together, under ids that name one object."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from lamina.format import log_object, paths
from lamina.format.attempt_id import FILE, GROUP, AttemptId
from lamina.format.log_object import PartId
from tests.unit.engine.conftest import Starter
from tests.unit.engine.engine_client import HELD, PREFIX, Data, Engine, Refused, Store, entries, greeted

LOGGED = {"changelog.enabled": "true", "changelog.persistDelayMs": "300"}
PATIENT = {**LOGGED, "changelog.batchDelayMs": "1000000", "retention.minAgeMs": "86400000"}
"""Without a task commits wait for longer than a test does."""


class Query:
    """Stores of one engine, and its stream of outcomes."""

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        count: int,
        settings: dict[str, str] | None = None,
        names: Sequence[str] = ("default",),
    ) -> None:
        self.directory = directory / "state"
        self.data, self.stream = greeted(engine), greeted(engine)
        assert self.stream.request({"op": "outcomes"})["ok"]
        self.stores = [
            Store(engine, f"file:{self.directory}", settings=settings or LOGGED, partition=number, name=name)
            for number in range(count)
            for name in names
        ]
        self.attempts: list[str | None] = [None] * len(self.stores)
        self.figures: dict[int, dict[str, int]] = {}
        """What the last outcome of each store said of log objects."""
        self.version = 0

    def begun(self) -> Query:
        """After the first version, of which each store has a file: Spark's state reader wants a directory."""
        for number, store in enumerate(self.stores):
            begun = store.begin(0, None)
            request = self.data.send(store.commit_header(1, begun, 1), [[entries([(0, 1, b"key 0", b"value")])]])
            self.attempts[number] = self.data.header()["accepted"]
            assert self.heard({request: number})[number] in {path.name for path in store.directory.iterdir()}
        self.version = 1
        return self

    def sent(self, *, patient: bool = False) -> dict[int, int]:
        """Sends the next version of each store; which store each request is of."""
        requests = {}
        for number, store in enumerate(self.stores):
            begun = store.begin(self.version, self.attempts[number])
            batch = entries([(0, 1, b"key %d" % self.version, b"value %d" % number)])
            header = store.commit_header(self.version + 1, begun, 1, patient=patient)
            request = self.data.send(header, [[batch]])
            answer = self.data.header()
            assert answer["id"] == request
            assert "durable" not in answer
            self.attempts[number] = answer["accepted"]
            requests[request] = number
        self.version += 1
        return requests

    def heard(self, requests: dict[int, int]) -> dict[int, str]:
        """What is said of each store's commit: its file, or the kind of its error."""
        found = {}
        while requests:
            header = self.stream.raw_header()
            if header["ok"]:
                self.figures[requests[header["id"]]] = header["durable"]["log"]
            found[requests.pop(header["id"])] = header["durable"]["file"] if header["ok"] else header["error"]["kind"]
        return found

    def objects(self) -> list[str]:
        return sorted(path.stem for path in (self.directory / paths.LOG).glob("*.log"))

    def ids(self) -> list[AttemptId]:
        return [AttemptId.parse(attempt or "") for attempt in self.attempts]


def rows(store: Store, data: Data, version: int, attempt: str | None) -> list[bytes]:
    return sorted(row[2] for row in store.load(data, version, attempt or "")[1])


def test_all_stores_wait_for_one_object_and_are_restored_from_it(start_engine: Starter, tmp_path: Path) -> None:
    # how many stores there are is known after the first round
    query = Query(start_engine(), tmp_path, 12, {**LOGGED, "changelog.persistDelayMs": "5000"}).begun()
    for version in (1, 2):
        requests = query.sent()
        # it is sealed with the last commit of a round that is known
        assert version > 1 or not query.objects()
        assert set(query.heard(requests)) == set(range(12))
        (log,) = {PartId.of(id).log for id in query.ids()}
        assert log in query.objects()
        assert len(query.objects()) == version
    (figures,) = query.stores[0].engine.call("stats")["stores"]["changelogs"]
    assert (figures["url"], figures["run_id"]) == (f"file:{query.directory}", "run")
    assert (figures["open"], figures["sealed"], figures["queued"]) == (0, 0, 0)
    assert (figures["uploads"], figures["commits"], figures["failed"]) == (2, 24, 0)
    assert len(list(query.directory.glob("0/*/*.lam"))) == 12
    other = start_engine()
    data = greeted(other)
    for number, attempt in enumerate(query.attempts):
        store = Store(other, f"file:{query.directory}", read_only=True, partition=number)
        assert rows(store, data, 3, attempt) == [b"key 0", b"key 1", b"key 2"]


def test_an_object_says_what_its_process_has_done(start_engine: Starter, tmp_path: Path) -> None:
    query = Query(start_engine(), tmp_path, 2, {**LOGGED, "changelog.persistDelayMs": "5000"}).begun()
    said, loads = [], 0
    for version in range(2, 5):
        known = set(query.objects())
        query.heard(query.sent())
        (log,) = set(query.objects()) - known
        path = query.directory / paths.LOG / f"{log}.log"
        said.append((log, log_object.verify(path.read_bytes(), log, log).process))
        assert said[-1][1]["loads"]["loads"] == loads
        for store, attempt in zip(query.stores, query.attempts, strict=True):
            assert len(rows(store, query.data, version, attempt)) == version
            loads += 1
    assert len({process["id"] for _, process in said}) == 1
    assert [process["uploads"]["uploads"] for _, process in said] == [0, 1, 2]
    assert said[-1][1]["loads"]["replayed_bytes"] > said[1][1]["loads"]["replayed_bytes"] > 0
    assert set(said[-1][1]) == {"id", "uploads", "loads", "merges"}


def test_what_became_of_objects_is_said_to_stores_that_are_heard(start_engine: Starter, tmp_path: Path) -> None:
    """Spark drops what the other stores of a join say."""
    names = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
    query = Query(start_engine(), tmp_path, 2, {**LOGGED, "changelog.persistDelayMs": "5000"}, names).begun()
    commits = 0
    for _ in range(6):
        query.heard(query.sent())
        for number, figures in query.figures.items():
            if names[number % 4].endswith("ToNumValues"):
                assert figures == {}
            else:
                commits += figures["commits"]
    assert set(query.figures) == set(range(8))
    assert commits == 6 * 8


def test_a_commit_that_is_alone_waits_for_no_other(start_engine: Starter, tmp_path: Path) -> None:
    query = Query(start_engine(), tmp_path, 1, {**LOGGED, "changelog.persistDelayMs": "60000"}).begun()
    (store,) = query.stores
    batch = entries([(0, 1, b"key", b"value")])
    request = query.data.send(store.commit_header(2, store.begin(1, query.attempts[0]), 1, alone=True), [[batch]])
    assert query.data.header()["id"] == request
    header = query.stream.raw_header()
    assert (header["id"], header["ok"]) == (request, True)
    assert len(query.objects()) == 1


def test_a_commit_that_is_hurried_waits_as_for_a_task_and_takes_those_of_its_object_along(
    start_engine: Starter, tmp_path: Path
) -> None:
    engine = start_engine()
    query = Query(engine, tmp_path, 3, PATIENT).begun()
    requests = query.sent(patient=True)
    assert not query.objects()
    first = next(iter(requests))
    assert engine.call("hurry", first)["hurried"] is True
    assert set(query.heard(dict(requests))) == {0, 1, 2}
    assert len(query.objects()) == 1
    while engine.call("stats")["requests"]["active"]:
        os.sched_yield()
    # one that was answered, and one that there never was
    assert [engine.call("hurry", request)["hurried"] for request in (first, 10**9)] == [False, False]


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_what_was_accepted_is_published_when_the_engine_ends(
    start_engine: Starter, tmp_path: Path, number: signal.Signals | None
) -> None:
    """An executor is taken away, and the batch whose tasks have ended on it goes on."""
    engine = start_engine()
    query = Query(engine, tmp_path, 3, PATIENT).begun()
    query.sent(patient=True)
    assert not query.objects()
    if number is None:
        assert engine.end() == 0
    else:
        engine.process.send_signal(number)
        assert engine.process.wait(20) == 0
    (log,) = {PartId.of(id).log for id in query.ids()}
    assert query.objects() == [log]
    other = start_engine()
    data = greeted(other)
    for partition, attempt in enumerate(query.attempts):
        store = Store(other, f"file:{query.directory}", read_only=True, partition=partition)
        assert rows(store, data, 2, attempt) == [b"key 0", b"key 1"]


def test_an_engine_whose_storage_hangs_ends_all_the_same(start_engine: Starter, tmp_path: Path) -> None:
    engine = start_engine(python_path=HELD)
    query = Query(engine, tmp_path, 3, PATIENT).begun()
    query.directory.joinpath(paths.LOG).mkdir()
    os.mkfifo(query.directory / paths.LOG / "gate")
    query.sent(patient=True)
    assert engine.end() == 0
    assert not query.objects()
    assert not engine.directory.exists()


def test_what_fails_is_told_to_all_that_waited_for_it(start_engine: Starter, tmp_path: Path) -> None:
    waits = {"changelog.upload.attempts": "2", "changelog.persistDelayMs": "5000"}
    query = Query(start_engine(), tmp_path, 3, {**LOGGED, **waits}).begun()
    first = list(query.attempts)
    # a file where the directory of log objects would be
    query.directory.joinpath(paths.LOG).write_bytes(b"")
    assert set(query.heard(query.sent()).values()) == {"storage.failed"}
    query.directory.joinpath(paths.LOG).unlink()
    query.attempts, query.version = first, 1
    assert not {"storage.failed"} & set(query.heard(query.sent()).values())
    assert len(query.objects()) == 1


def test_it_is_switched_off_and_on_again_on_a_live_checkpoint(start_engine: Starter, tmp_path: Path) -> None:
    attempts = Query(start_engine(), tmp_path, 2).begun().attempts
    kinds = []
    for version in range(1, 7):
        on = version % 2 == 1
        # flushed files are not answered at once, either
        query = Query(start_engine(), tmp_path, 2, LOGGED if on else {"storage.fsync.enabled": "true"})
        query.attempts, query.version = attempts, version
        query.heard(query.sent())
        attempts = query.attempts
        kinds += [id.kind for id in query.ids()]
    assert kinds == [GROUP, GROUP, FILE, FILE] * 3
    for store, attempt in zip(query.stores, attempts, strict=True):
        assert rows(store, query.data, 7, attempt) == [b"key %d" % version for version in range(7)]


def test_a_checkpoint_whose_logs_name_no_attempts_is_refused(start_engine: Starter, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="format v1, whose logs name no attempts") as refused:
        Store(start_engine(), f"file:{tmp_path}/state", settings=LOGGED, format_version=1)
    assert refused.value.kind == "settings.invalid"


def test_uploads_that_may_take_longer_than_what_they_stand_on_stays_are_refused(
    start_engine: Starter, tmp_path: Path
) -> None:
    engine = start_engine()
    settings = {**LOGGED, "retention.minAgeMs": "80000", "changelog.upload.attempts": "3"}
    settings["changelog.batchDelayMs"] = "10"
    with pytest.raises(Refused) as caught:
        Store(engine, f"file:{tmp_path}/state", settings={**settings, "changelog.upload.timeoutMs": "10000"})
    assert "changelog.upload.timeoutMs" in str(caught.value)
    assert "retention.minAgeMs" in str(caught.value)
    settings["changelog.upload.timeoutMs"] = "8000"
    Store(engine, f"file:{tmp_path}/state", settings=settings)
    waits = {**settings, "durability.level": "executor", "changelog.barrierTimeoutMs": "28000"}
    with pytest.raises(Refused, match=r"or raise \S+\.changelog\.barrierTimeoutMs, 28000 ms"):
        Store(engine, f"file:{tmp_path}/other/state", settings=waits)
    Store(engine, f"file:{tmp_path}/other/state", settings={**waits, "changelog.barrierTimeoutMs": "29000"})


def test_a_commit_with_a_file_of_its_own_does_not_wait_for_those_that_wait_in_a_group(
    start_engine: Starter, tmp_path: Path
) -> None:
    engine = start_engine(process={f"{PREFIX}engine.connections": "4"})
    settings = {**LOGGED, "changelog.persistDelayMs": "60000"}
    query = Query(engine, tmp_path, 200, settings).begun()

    def threads() -> int:
        return len(os.listdir(f"/proc/{engine.process.pid}/task"))

    before = threads()
    requests = query.sent()
    # a commit is answered a moment before it waits
    stats = engine.call("stats")["publications"]
    while stats["in_groups"] + stats["waiting"] + stats["in_work"] < 200:
        stats = engine.call("stats")["publications"]
    after = threads()
    # the first commit of a store is a file
    other = Store(engine, f"file:{query.directory}", settings=settings, partition=200)
    begun, batch = other.begin(0, None), entries([(0, 1, b"key", b"value")])
    first = query.data.send(other.commit_header(1, begun, 1), [[batch]])
    attempt = query.data.header()["accepted"]
    header = query.stream.raw_header()
    assert (header["id"], header["ok"]) == (first, True)
    assert engine.call("stats")["publications"]["in_groups"] == 200
    assert after <= before
    # one that is alone ends the group
    requests[query.data.send(other.commit_header(2, other.begin(1, attempt), 1, alone=True), [[batch]])] = 200
    assert query.data.header()["accepted"]
    assert set(query.heard(requests)) == set(range(201))
    assert len(query.objects()) == 1
    stats = engine.call("stats")
    while stats["requests"]["active"]:
        stats = engine.call("stats")
    assert (stats["publications"]["in_groups"], stats["publications"]["held_bytes"]) == (0, {})
    assert stats["memory"]["budget"]["requests"]["held_bytes"] == 0


def test_a_commit_that_is_cancelled_in_a_group_gives_its_memory_back_and_the_others_become_durable(
    start_engine: Starter, tmp_path: Path
) -> None:
    engine = start_engine()
    query = Query(engine, tmp_path, 3, {**LOGGED, "changelog.persistDelayMs": "60000"}).begun()
    requests = query.sent()
    while engine.call("stats")["publications"]["in_groups"] < 3:
        os.sched_yield()
    (held,) = engine.call("stats")["publications"]["held_bytes"].values()
    cancelled = next(iter(requests))
    assert engine.call("cancel", cancelled)["cancelled"]
    header = query.stream.raw_header()
    assert (header["id"], header["error"]["kind"]) == (cancelled, "engine.cancelled")
    stats = engine.call("stats")["publications"]
    assert (stats["in_groups"], [*stats["held_bytes"].values()]) == (2, [held * 2 // 3])
    del requests[cancelled]
    store = query.stores[0]
    alone = store.commit_header(2, store.begin(1, _first(store)), 1, alone=True)
    requests[query.data.send(alone, [[entries([(0, 1, b"key", b"value")])]])] = 0
    assert query.data.header()["accepted"]
    assert set(query.heard(requests)) == {0, 1, 2}
    while (stats := engine.call("stats"))["requests"]["active"]:
        os.sched_yield()
    assert (stats["publications"]["in_groups"], stats["publications"]["held_bytes"]) == (0, {})
    assert not query.stream.readable(0)


def _first(store: Store) -> str:
    """The attempt of a store's first version."""
    return next(store.directory.glob("1_*.lam")).stem.removeprefix("1_")


def test_log_objects_lie_where_the_setting_says_and_are_read_where_that_is_allowed(
    start_engine: Starter, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    query = Query(start_engine(), tmp_path / "checkpoint", 2, {**LOGGED, "changelog.path": f"{fast}/"}).begun()
    query.heard(query.sent())
    query.heard(query.sent())
    assert query.objects() == []
    assert {PartId.of(id).log for id in query.ids()} <= {path.stem for path in fast.rglob("*.log")}
    other = start_engine()
    data = greeted(other)
    for settings in ({"storage.roots": str(fast)}, {"changelog.path": str(fast)}):
        for number, attempt in enumerate(query.attempts):
            store = Store(other, f"file:{query.directory}", read_only=True, partition=number, settings=settings)
            assert rows(store, data, 3, attempt) == [b"key 0", b"key 1", b"key 2"]
    store = Store(other, f"file:{query.directory}", read_only=True)
    with pytest.raises(Refused) as caught:
        rows(store, data, 3, query.attempts[0])
    assert caught.value.kind == "storage.denied"
    assert "storage.roots" in str(caught.value)


@pytest.mark.parametrize("path", ["fast", "memory://fast", "/", "/a/../b", "file:{checkpoint}/log", "{checkpoint}"])
def test_a_path_that_cannot_keep_objects_is_refused(start_engine: Starter, tmp_path: Path, path: str) -> None:
    settings = {**LOGGED, "changelog.path": path.format(checkpoint=tmp_path)}
    with pytest.raises(Refused, match=r"changelog\.path") as caught:
        Store(start_engine(), f"file:{tmp_path}/state", settings=settings)
    assert caught.value.kind == "settings.invalid"
