"""Several queries in one engine with settings, credentials and runs of their own; control calls; maintenance."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lamina.components import RandomIds, SystemClock
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.maintenance_turns import Job
from lamina.engine.sessions import Sessions
from lamina.settings import Settings
from lamina.storage import Storage
from lamina.store import Version
from tests.unit.engine.conftest import Starter
from tests.unit.engine.engine_client import PREFIX, Data, Engine, Refused, Store, entries
from tests.unit.engine.test_maintenance import BEGIN, job
from tests.unit.store.writing import Query


@pytest.fixture
def data(engine: Engine) -> Data:
    connection = engine.connect()
    assert connection.greeted()
    return connection


def put(key: bytes, value: bytes) -> tuple[int, int, bytes, bytes]:
    return (0, 1, key, value)


def test_two_queries_with_other_settings_and_credentials_do_not_meet(
    engine: Engine, data: Data, tmp_path: Path
) -> None:
    first = Store(engine, f"file:{tmp_path}/one/state", settings={"compression.codec": "lz4"}, run_id="one")
    second = Store(
        engine,
        f"file:{tmp_path}/two/state",
        settings={"compression.codec": "uncompressed", "storage.fsync.enabled": "true"},
        hadoop={"fs.s3a.access.key": "other"},
        run_id="two",
    )
    assert first.opened["checkpoint"] != second.opened["checkpoint"]
    assert first.opened["settings"][PREFIX + "compression.codec"] == "lz4"
    assert second.opened["settings"][PREFIX + "compression.codec"] == "uncompressed"
    attempts = [store.commit(data, 1, None, entries([put(b"k", b"v" * n)])) for n, store in ((1, first), (2, second))]
    assert first.load(data, 1, attempts[0])[1] == [put(b"k", b"v")]
    assert second.load(data, 1, attempts[1])[1] == [put(b"k", b"vv")]


def test_stores_of_one_run_share_its_checkpoint_and_epoch_and_a_new_run_has_a_later_one(
    engine: Engine, tmp_path: Path
) -> None:
    url = f"file:{tmp_path}/checkpoint/state"
    first, second = Store(engine, url, run_id="a"), Store(engine, url, run_id="a", partition=1)
    later = Store(engine, url, run_id="b")
    assert first.opened["checkpoint"] == second.opened["checkpoint"] == later.opened["checkpoint"]
    assert first.opened["epoch"] == second.opened["epoch"]
    assert later.opened["epoch"] > first.opened["epoch"]


def test_a_process_setting_that_another_query_sets_otherwise_is_a_conflict_naming_both(
    start_engine: Starter, tmp_path: Path
) -> None:
    engine = start_engine(process={PREFIX + "heap.maxBytes": "1g"})
    url = f"file:{tmp_path}/checkpoint/state"
    assert Store(engine, url).opened["settings"][PREFIX + "heap.maxBytes"] == 1 << 30
    assert Store(engine, url, settings={"heap.maxBytes": "1024m"}).handle
    with pytest.raises(Refused, match=rf"{2 << 30}.*{1 << 30}") as refused:
        Store(engine, url, settings={"heap.maxBytes": "2g"})
    assert refused.value.kind == "settings.conflict"


def test_an_unknown_setting_is_refused_and_names_the_nearest(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"compaction\.maxChain") as refused:
        Store(engine, f"file:{tmp_path}/state", settings={"compaction.maxChains": "3"})
    assert refused.value.kind == "settings.unknown"


def test_a_closed_handle_is_refused_and_others_stay(engine: Engine, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/state"
    closed, other = Store(engine, url), Store(engine, url, partition=1)
    assert engine.call("closeStore", closed.handle)["ok"]
    with pytest.raises(Refused) as refused:
        closed.begin(0, None)
    assert refused.value.kind == "store.closed"
    assert other.begin(0, None)["attempt"]


def test_resolve_follows_the_lineage(engine: Engine, data: Data, tmp_path: Path) -> None:
    store = Store(engine, f"file:{tmp_path}/state")
    first = store.commit(data, 1, None, entries([put(b"k", b"1")]))
    second = store.commit(data, 2, first, entries([put(b"k", b"3")]))
    assert engine.call("resolve", store.handle, {"version": 2, "attempt": second})["attempt"] == second


def test_a_reader_begins_nothing_and_writes_nothing(engine: Engine, data: Data, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/checkpoint/state"
    writer = Store(engine, url)
    attempt = writer.commit(data, 1, None, entries([put(b"k", b"1")]))
    before = sorted(path for path in tmp_path.rglob("checkpoint/**/*"))
    reader = Store(engine, url, read_only=True, run_id="")
    assert reader.load(data, 1, attempt)[1] == [put(b"k", b"1")]
    with pytest.raises(Refused) as refused:
        reader.begin(1, attempt)
    assert refused.value.kind == "store.state"
    assert engine.call("maintain", reader.handle, {})["queued"] is False
    assert sorted(path for path in tmp_path.rglob("checkpoint/**/*")) == before


@pytest.mark.parametrize("argument", ["no json", "[]", {}, {"version": "1", "attempt": None}])
def test_a_control_call_with_a_bad_argument_is_an_error_of_the_protocol(
    engine: Engine, tmp_path: Path, argument: object
) -> None:
    store = Store(engine, f"file:{tmp_path}/state")
    with pytest.raises(Refused) as refused:
        engine.call("begin", store.handle, argument)
    assert refused.value.kind == "engine.protocol"
    assert engine.call("hello", {})["ok"]


def test_text_that_is_not_ascii_crosses_the_control_side(engine: Engine, tmp_path: Path) -> None:
    store = Store(engine, f"file:{tmp_path}/prüfung-状態\n/state")
    assert (tmp_path / "prüfung-状態\n").exists()
    assert store.handle


def test_a_directory_that_cannot_be_written_and_a_scheme_without_file_system_are_named(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="file/state") as refused:
        Store(engine, f"file:{tmp_path}/file/state")
    assert refused.value.kind.startswith("storage.")
    with pytest.raises(Refused, match="nosuch") as refused:
        Store(engine, "nosuch://bucket/state")
    assert refused.value.kind == "storage.scheme"


def test_a_store_that_is_closed_after_each_batch_is_compacted_too(engine: Engine, data: Data, tmp_path: Path) -> None:
    """As with `unloadOnCommit`: Spark asks for maintenance right before it closes the store."""
    attempt, files = None, []
    for version in range(1, 25):
        store = Store(engine, f"file:{tmp_path}/state")
        attempt = store.commit(data, version, attempt, entries([put(b"k%d" % version, b"v")]))
        files.append(store.load(data, version, attempt)[0]["files"])
        assert engine.call("maintain", store.handle, {})["ok"]
        engine.call("closeStore", store.handle)
        deadline = time.monotonic() + 60
        while (stats := engine.call("stats")["maintenance"])["waiting"] or stats["working_on"]:
            assert time.monotonic() < deadline
    assert stats["failed"] == 0 and stats["segments"] > 0
    assert max(files) <= 2 + math.log2(len(files))


def test_the_maintenance_process_merges_increments_and_later_versions_refer_to_the_result(
    engine: Engine, data: Data, tmp_path: Path
) -> None:
    store = Store(engine, f"file:{tmp_path}/state")
    attempt = None
    for version in range(1, 25):
        attempt = store.commit(data, version, attempt, entries([put(b"k%d" % version, b"v"), put(b"same", b"v")]))
    assert engine.call("maintain", store.handle, {})["ok"]
    while not list(store.directory.glob("*.seg")):
        assert engine.call("stats")["maintenance"]["failed"] == 0
    while engine.call("stats")["maintenance"]["working_on"]:
        pass
    for version in range(25, 27):
        attempt = store.commit(data, version, attempt, entries([put(b"k%d" % version, b"v")]))
    header, loaded = store.load(data, 26, attempt)
    assert header["files"] < 26
    state: dict[bytes, bytes] = {}
    for _, _, key, value in reversed(loaded):
        state[key] = value
    assert state == {b"same": b"v"} | {b"k%d" % version: b"v" for version in range(1, 27)}
    stats = engine.call("stats")["maintenance"]
    assert stats["failed"] == 0
    assert stats["done"] >= 1


def commit_and_hear(store: Store, data: Data, version: int, base: str | None) -> tuple[str, dict[str, int]]:
    """The attempt that committed one row, and what its answer told of maintenance."""
    begun = store.begin(version - 1, base)
    answer = data.request(store.commit_header(version, begun, 1), [[entries([put(b"k", b"v")])]])
    return begun["attempt"], answer["durable"]["maintained"]


def test_neither_process_of_the_engine_imports_pandas_which_is_installed(
    engine: Engine, data: Data, tmp_path: Path
) -> None:
    assert importlib.util.find_spec("pandas") is not None
    store = Store(engine, f"file:{tmp_path}/state")
    attempt, segments = None, 0
    for version in itertools.count(1):
        attempt, maintained = commit_and_hear(store, data, version, attempt)
        segments += maintained["segments"]
        if segments:
            break
        while (stats := engine.call("stats")["maintenance"])["waiting"] or stats["working_on"]:
            pass
    store.load(data, version, attempt)
    hello = engine.call("hello", {})
    for pid in (hello["pid"], hello["maintenance_pid"]):
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "pyarrow" in maps
        assert "pandas" not in maps


def begins_itself(store: Store, version: int, base: str, **more: object) -> dict[str, object]:
    """The header of a commit of one row that begins its attempt itself."""
    header = store.commit_header(version, {"attempt": None, "base_attempt": base}, 1, **more)
    del header["attempt"]
    begin = {"version": version - 1, "attempt": base, "task_attempt": 1}
    return {**header, "begin": {**begin, "load_empty": False, "force_snapshot": False, "have": True}}


def test_a_commit_may_begin_its_attempt_itself(engine: Engine, data: Data, tmp_path: Path) -> None:
    store = Store(engine, f"file:{tmp_path}/state")
    base = store.commit(data, 1, None, entries([put(b"a", b"1")]))
    answer = data.request(begins_itself(store, 2, base), [[entries([put(b"b", b"2")])]])
    _, rows = store.load(data, 2, answer["accepted"])
    assert sorted(rows) == [put(b"a", b"1"), put(b"b", b"2")]
    with pytest.raises(Refused) as refused:
        data.request(begins_itself(store, 3, "no id"), [[entries([put(b"c", b"3")])]])
    assert refused.value.kind == "attempt-id.unknown"


def test_a_commit_that_begins_itself_and_lacks_what_is_wanted_is_answered_with_what_was_begun(
    engine: Engine, data: Data, tmp_path: Path
) -> None:
    store = Store(
        engine, f"file:{tmp_path}/state", settings={"compaction.mode": "full", "compaction.fullInterval": "1"}
    )
    base = store.commit(data, 1, None, entries([put(b"a", b"1")]))
    answer = data.request(begins_itself(store, 2, base), [[entries([put(b"b", b"2")])]])
    assert "accepted" not in answer
    begun = answer["begun"]
    assert begun["snapshot"]
    header = store.commit_header(2, begun, 1, sections=["increment", "snapshot"], rows={"increment": 1, "snapshot": 2})
    whole = entries([put(b"a", b"1"), put(b"b", b"2")])
    again = data.request(header, [[entries([put(b"b", b"2")])], [whole]])
    assert again["accepted"] == begun["attempt"]
    _, rows = store.load(data, 2, again["accepted"])
    assert sorted(rows) == [put(b"a", b"1"), put(b"b", b"2")]


def test_a_merge_is_asked_for_when_the_version_that_is_worth_it_is_confirmed(
    engine: Engine, data: Data, tmp_path: Path
) -> None:
    """Asked for at its commit, the job would look at the version before, and do nothing."""
    store = Store(engine, f"file:{tmp_path}/state")
    attempt, jobs, segments = None, 0, 0
    for version in range(1, 12):
        attempt, maintained = commit_and_hear(store, data, version, attempt)
        while (stats := engine.call("stats")["maintenance"])["waiting"] or stats["working_on"]:
            pass
        segments += maintained["segments"]
        jobs = stats["done"]
    segments += commit_and_hear(store, data, 12, attempt)[1]["segments"]
    assert segments >= 2
    # one more is the first collection; and the job that the last version asks for may have been quicker than its commit
    assert jobs - 1 <= segments <= jobs


def test_a_commit_tells_once_what_became_of_the_stores_files(engine: Engine, data: Data, tmp_path: Path) -> None:
    settings = {"retention.minAgeMs": "1"}
    store = Store(engine, f"file:{tmp_path}/state", settings=settings)
    other = Store(engine, f"file:{tmp_path}/state", settings=settings, partition=1)
    told: list[dict[str, int]] = []
    attempt = None
    for version in range(1, 13):
        attempt, maintained = commit_and_hear(store, data, version, attempt)
        told.append(maintained)
    before = {path: path.stat().st_size for path in store.directory.glob("*.lam")}
    # a segment takes effect with the next commit; what it was merged from goes when no retained version needs it
    gone: list[int] = []
    for version in range(13, 60):
        assert engine.call("maintain", store.handle, {})["ok"]
        while (stats := engine.call("stats")["maintenance"])["waiting"] or stats["working_on"]:
            pass
        attempt, maintained = commit_and_hear(store, data, version, attempt)
        told.append(maintained)
        gone = [size for path, size in before.items() if not path.exists()]
        if len(gone) > 5:
            break
    assert len(gone) > 5
    assert sum(one["segments"] for one in told) == stats["segments"] > 0
    assert sum(one["deleted_files"] for one in told) == stats["deleted_files"] >= len(gone)
    assert sum(one["deleted_bytes"] for one in told) == stats["deleted_bytes"] >= sum(gone)
    _, maintained = commit_and_hear(other, data, 1, None)
    assert set(maintained.values()) == {0}


def test_maintenance_goes_on_after_its_process_was_killed(engine: Engine, data: Data, tmp_path: Path) -> None:
    store = Store(engine, f"file:{tmp_path}/state")
    attempt = None
    for version in range(1, 6):
        attempt = store.commit(data, version, attempt, entries([put(b"k", b"v")]))
    os.kill(engine.call("hello", {})["maintenance_pid"], signal.SIGKILL)
    of_the_first = set(store.directory.glob("*.seg"))
    for version in range(6, 20):
        attempt = store.commit(data, version, attempt, entries([put(b"k", b"v")]))
    engine.call("maintain", store.handle, {})
    while engine.call("stats")["maintenance"]["starts"] < 2 or set(store.directory.glob("*.seg")) <= of_the_first:
        # The job that was in work when the process died is not repeated; the store asks again.
        engine.call("maintain", store.handle, {})
    assert engine.call("stats")["maintenance"]["starts"] == 2


def test_stores_commit_at_the_same_time(engine: Engine, tmp_path: Path) -> None:
    def work(partition: int) -> list[tuple[object, ...]]:
        connection = engine.connect()
        assert connection.greeted()
        store = Store(engine, f"file:{tmp_path}/state", partition=partition)
        attempt = None
        for version in range(1, 9):
            batch = entries([put(b"%d-%d" % (partition, row), b"%d" % version) for row in range(500)])
            attempt = store.commit(connection, version, attempt, batch)
        return store.load(connection, 8, attempt)[1][:500]

    # The test's client has one control connection.
    lock = threading.Lock()
    call = engine.call

    def one_at_a_time(method: str, *arguments: object) -> dict[str, object]:
        with lock:
            return call(method, *arguments)

    engine.call = one_at_a_time  # type: ignore[method-assign]
    with ThreadPoolExecutor(6) as pool:
        for partition, rows in enumerate(pool.map(work, range(6))):
            assert sorted(rows) == sorted(put(b"%d-%d" % (partition, row), b"8") for row in range(500))
    stats = call("stats")
    assert stats["requests"]["ops"]["commit"]["count"] == 48
    assert stats["requests"]["ops"]["commit"]["failed"] == 0
    assert stats["stores"]["open"] == 6


def test_the_first_batch_on_a_version_asks_for_a_collection_once_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may end before Spark first asks for maintenance, and so may each one after it."""
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), Version(0), 1)[-1]
    clock = SystemClock()
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=1)
    asked: list[Job] = []
    monkeypatch.setattr(queue, "submit", lambda store, one: asked.append(one))
    opened = Sessions(Settings(), queue, clock, RandomIds())

    def batch(run: str, base: Version, *, anew: bool = False) -> list[bool]:
        """Whether each job that a batch with `unloadOnCommit` asks for collects."""
        asked.clear()
        handle = opened.open(job(tmp_path, 0, base, run=run)["open"])["handle"]
        opened.get(handle).begin({"version": base.version, "attempt": base.attempt, **BEGIN, "load_empty": anew})
        opened.close(handle)
        return [one.collects for one in asked]

    # of nothing there is nothing to collect
    assert batch("run", Version(0)) == []
    assert [batch("run", version) for _ in range(3)] == [[True], [], []]
    assert [batch("second", version) for _ in range(2)] == [[True], []]
    # an offline repartition begins empty, and does not say which attempt of the version before it stands
    assert batch("third", Version(version.version), anew=True) == []
