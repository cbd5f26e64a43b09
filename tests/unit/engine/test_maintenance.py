"""Maintenance: what the process remembers of many stores, and a queue that goes on whatever happens to the process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina.components import RandomIds, SystemClock
from lamina.engine import maintenance, maintenance_turns, sessions
from lamina.engine.maintenance import Maintainer, Sweeper
from lamina.engine.maintenance_figures import MaintenanceFigures
from lamina.engine.maintenance_pool import Deletion, Merged, Turn
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.maintenance_turns import Job
from lamina.engine.reports import footprint_from_json, known_to_json, segment_from_json, segment_to_json
from lamina.engine.sessions import Sessions
from lamina.engine.store_opener import OpenArgument
from lamina.errors import LaminaError
from lamina.format.container import verify
from lamina.format.entries import PUT
from lamina.format.manifest import RUN
from lamina.settings import PREFIX, Settings
from lamina.storage import Storage
from lamina.storage.local import LocalBackend
from lamina.store import StoreId, Version
from lamina.store.collection.footprints import Footprint
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.materialization.materializer import Compacted, Merge
from lamina.store.memory.budget import Share
from lamina.store.restore.broken import BrokenPlaces
from lamina.store.versioned_store import VersionedStore
from lamina.store.versions.chain import Segment
from lamina.testing import ManualClock, SequenceIds
from tests.unit.engine.conftest import nothing
from tests.unit.store.writing import Query, file_name

EMPTY = Version(0)
MIN_AGE_MS = 600_000
BEGIN = {"task_attempt": 1, "load_empty": False, "force_snapshot": False, "have": True}


def job(
    directory: Path,
    partition: int,
    confirmed: Version,
    *,
    run: str = "run",
    collect: bool = True,
    closed: bool = False,
    waiting: Sequence[dict[str, Any]] = (),
    footprints: Sequence[Any] = (),
) -> dict[str, Any]:
    argument = OpenArgument(StoreId(str(directory), 0, partition, "default"), {}, {}, run, False, 2, "4.3.0", 3)
    return {
        "open": argument.to_json(),
        "confirmed": {"version": confirmed.version, "attempt": confirmed.attempt},
        "collect": collect,
        "compact": True,
        "at_once": False,
        "awaited": False,
        "closed": closed,
        "waiting": list(waiting),
        "footprints": list(footprints),
        "broken": [],
    }


def idle(query: Query, partition: int) -> Version:
    """Version 9 of a store that has changed nothing since version 2; no file says when version 1 left retention."""
    store = query.open(partition)
    first = query.commit(store, EMPTY, {b"k": (PUT, b"x")}, force_snapshot=True)
    second = query.commit(store, first, {b"k": (PUT, b"y")}, force_snapshot=True)
    return Version(9, second.attempt)


def test_a_hundred_idle_stores_are_collected_in_turn(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)), min_versions=3)
    versions = [idle(query, partition) for partition in range(100)]
    clock = ManualClock(SystemClock().now_ms())
    maintainer = Maintainer(clock, SequenceIds())

    def round_of_jobs() -> list[int]:
        reports = [maintainer.work(job(tmp_path, partition, version)) for partition, version in enumerate(versions)]
        assert all(report["ok"] for report in reports)
        return [report["collected"].get("delete_files", 0) for report in reports]

    assert round_of_jobs() == [0] * 100
    clock.advance(MIN_AGE_MS)
    assert round_of_jobs() == [1] * 100
    assert all(not kept.store._versions._manifests for kept in maintainer._kept.values())


def test_memory_is_swept_after_a_long_job_and_seldom_after_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep looks at all that a thousand stores keep; after each short job it would take most of the time."""
    sweeps: list[int] = []
    monkeypatch.setattr("gc.collect", lambda: sweeps.append(1))
    clock = ManualClock(0)
    sweeper = Sweeper(clock)
    for _ in range(40):
        clock.advance(250)
        sweeper.after_job()
    assert len(sweeps) == 2
    for _ in range(3):
        clock.advance(6_000)
        sweeper.after_job()
        assert sweeper.due_in() is None
    assert len(sweeps) == 5
    clock.advance(1_000)
    sweeper.after_job()
    assert (len(sweeps), sweeper.due_in()) == (5, 4.0)  # when there is no other job until then


@pytest.mark.parametrize("remade", [False, True])
def test_a_job_of_a_checkpoint_that_was_removed_writes_nothing(tmp_path: Path, remade: bool) -> None:
    """Neither does it come back, nor is the old run the newest one of a query that was begun in its place."""
    query = Query(Storage(str(tmp_path / "state")))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    uuid = query.open().identity.checkpoint
    asked = job(tmp_path / "state", 0, version)
    asked["open"]["claimed"] = {"checkpoint": uuid, "epoch": 1}
    shutil.rmtree(tmp_path / "state")
    if remade:
        other = Query(Storage(str(tmp_path / "state")), run="other")
        other.run_batches(other.open(), EMPTY, 6)
    before = sorted(tmp_path.rglob("*"))
    report = Maintainer(SystemClock(), RandomIds()).work(asked)
    assert report["error"]["kind"] == "file.missing" and uuid in report["error"]["message"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_job_claims_no_epoch_where_the_engine_has_one(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path / "state")))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    asked = job(tmp_path / "state", 0, version, run="another process's")
    asked["open"]["claimed"] = {"checkpoint": query.open().identity.checkpoint, "epoch": 1}
    assert Maintainer(SystemClock(), RandomIds()).work(asked)["ok"]
    assert [path.name for path in (tmp_path / "state" / "_lamina" / "runs").iterdir()] == ["1_run"]


def test_what_is_kept_of_a_store_goes_with_a_newer_run_or_after_an_hour_without_a_job(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)), min_versions=3)
    versions = [idle(query, partition) for partition in range(3)]
    clock = ManualClock(SystemClock().now_ms())
    maintainer = Maintainer(clock, SequenceIds())
    for partition, version in enumerate(versions):
        maintainer.work(job(tmp_path, partition, version))
    assert len(maintainer._kept) == 3
    other = Query(Storage(str(tmp_path / "other")), min_versions=3)
    maintainer.work(job(tmp_path / "other", 3, idle(other, 3)))
    # of the run before none is used again, whichever store is opened first
    maintainer.work(job(tmp_path, 1, versions[1], run="newer"))
    assert [store.partition for store in maintainer._kept] == [3, 1]
    clock.advance(3_600_001)
    maintainer.work(job(tmp_path, 2, versions[2], run="newer"))
    assert [store.partition for store in maintainer._kept] == [2]


def test_of_stores_that_are_open_no_more_those_used_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many short queries in one driver leave their stores behind."""
    monkeypatch.setattr(maintenance, "_LEFT_KEPT", 1)
    query = Query(Storage(str(tmp_path)), min_versions=3)
    versions = [idle(query, partition) for partition in range(4)]
    clock = ManualClock(SystemClock().now_ms())
    maintainer = Maintainer(clock, SequenceIds())

    def work(partition: int, *, closed: bool = False) -> None:
        clock.advance(1)
        maintainer.work(job(tmp_path, partition, versions[partition], closed=closed))

    def leave(partition: int) -> list[int]:
        maintainer.leave(StoreId(str(tmp_path), 0, partition, "default"))
        return sorted(store.partition for store in maintainer._kept)

    for partition in range(4):
        work(partition)
    assert leave(0) == [0, 1, 2, 3]
    assert leave(1) == [1, 2, 3]
    # one that came back is not among them
    work(1)
    assert leave(2) == [1, 2, 3]
    # and one whose closed handle has its segments kept stays among them
    work(2, closed=True)
    assert leave(1) == [2, 3]
    (shared,) = maintainer._stores._shared.values()
    assert shared.users == 2
    work(0, closed=True)
    assert sorted(store.partition for store in maintainer._kept) == [0, 3]


def test_a_store_that_was_left_during_its_job_is_one_of_those(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_LEFT_KEPT", 0)
    query = Query(Storage(str(tmp_path)), min_versions=3)
    maintainer = Maintainer(SystemClock(), SequenceIds())
    steps = maintainer.steps(job(tmp_path, 0, idle(query, 0)))
    maintainer.leave(StoreId(str(tmp_path), 0, 0, "default"))
    for _ in steps:
        assert maintainer._kept
    assert not maintainer._kept


def test_a_job_of_an_older_run_takes_nothing_from_a_newer_one(tmp_path: Path) -> None:
    """A handle that was closed asks for an hour that its segments be kept, whoever has the store by then."""
    query = Query(Storage(str(tmp_path)), min_versions=3)
    versions = [idle(query, partition) for partition in range(3)]
    uuid = query.open().identity.checkpoint
    maintainer = Maintainer(SystemClock(), SequenceIds())

    def work(partition: int, run: str, epoch: int) -> dict[str, Any]:
        asked = job(tmp_path, partition, versions[partition], run=run)
        asked["open"]["claimed"] = {"checkpoint": uuid, "epoch": epoch}
        return maintainer.work(asked)

    assert work(0, "run", 1)["ok"]
    assert work(0, "newer", 2)["ok"] and work(1, "newer", 2)["ok"]
    kept, shared = dict(maintainer._kept), dict(maintainer._stores._shared)
    assert work(0, "run", 1)["error"]["kind"] == "state.superseded"
    # one that the newer run has not opened yet
    work(2, "run", 1)
    assert kept.items() <= maintainer._kept.items()
    assert shared.items() <= maintainer._stores._shared.items()
    assert work(2, "newer", 2)["ok"]
    assert {one.argument.run_id for one in maintainer._kept.values()} == {"newer"}


def test_a_checkpoint_that_was_made_anew_in_the_place_of_one_is_maintained(tmp_path: Path) -> None:
    """Its first run has its first epoch, which is smaller than that of the last run on what was there before."""
    maintainer = Maintainer(SystemClock(), RandomIds())

    def work(run: str, epoch: int) -> dict[str, Any]:
        query = Query(Storage(str(tmp_path / "state")), run=run)
        asked = job(tmp_path / "state", 0, query.run_batches(query.open(), EMPTY, 6)[-1], run=run)
        asked["open"]["claimed"] = {"checkpoint": query.open().identity.checkpoint, "epoch": epoch}
        return maintainer.work(asked)

    assert work("run", 7)["ok"]
    shutil.rmtree(tmp_path / "state")
    assert work("anew", 1)["ok"]
    assert [one.argument.run_id for one in maintainer._kept.values()] == ["anew"]
    assert [shared.state.run_id for shared in maintainer._stores._shared.values()] == ["anew"]


def test_a_segment_comes_out_of_its_report_as_it_is_in_its_file(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    clock = ManualClock(SystemClock().now_ms())
    report = Maintainer(clock, RandomIds()).work(job(tmp_path, 0, version, collect=False))
    segment = segment_from_json(json.loads(json.dumps(report["segment"])))
    data = (tmp_path / "0" / "0" / str(segment.name)).read_bytes()
    assert segment == Segment(verify(data, str(segment.name)), len(data), clock.now_ms())


def test_a_segment_that_no_commit_refers_to_yet_is_not_merged_again(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)))
    store = query.open()
    versions = query.run_batches(store, EMPTY, 12)
    maintainer = Maintainer(SystemClock(), RandomIds())
    first = maintainer.work(job(tmp_path, 0, versions[-2], collect=False))["segment"]
    assert first is not None
    # the engine had not heard of it when the next version was committed, and asks again
    second = maintainer.work(job(tmp_path, 0, versions[-1], collect=False, waiting=[first]))["segment"]
    assert second is None


@pytest.mark.parametrize("collect", [False, True])
def test_a_merge_of_many_bytes_waits_for_its_turn_and_the_collection_after_it_for_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collect: bool
) -> None:
    """Before it does, it says what was made: the collection may take long."""
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    size = sum(path.stat().st_size for path in (tmp_path / "0" / "0").iterdir())

    def waits(long_bytes: int) -> list[object]:
        monkeypatch.setattr(maintenance, "LONG_BYTES", long_bytes)
        steps = Maintainer(SystemClock(), RandomIds()).steps(job(tmp_path, 0, version, collect=collect))
        return [step if isinstance(step, Turn) else type(step) for step in steps if not isinstance(step, Share)]

    assert waits(100) == ([Turn.LONG_MERGE, Merged, Turn.WORKER] if collect else [Turn.LONG_MERGE])
    assert waits(size) == ([Merged] if collect else [])


def test_what_was_merged_is_told_once_before_the_collection_or_in_the_end(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    for collect in (False, True):
        steps = Maintainer(SystemClock(), RandomIds()).steps(job(tmp_path, 0, version, collect=collect))
        told = []
        try:
            while True:
                step = next(steps)
                if not isinstance(step, Share):
                    assert isinstance(step, Merged)
                    told.append(step.report)
        except StopIteration as end:
            told.append(end.value)
        assert len(told) == 1 + collect
        assert [report["segment"] is not None for report in told] == [True, False][: len(told)]
        assert [name for name in ("compacted", "merge_ms", "merged") if name in told[0]] == [
            "compacted",
            "merge_ms",
            "merged",
        ]
        assert not {"compacted", "merge_ms", "merged"} & {name for report in told[1:] for name in report}


@pytest.mark.parametrize("early", [False, True], ids=["while it merges", "before it began"])
def test_a_store_that_is_closed_during_its_job_leaves_no_files_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    monkeypatch.setattr(maintenance, "LONG_BYTES", 0)
    query = Query(Storage(str(tmp_path / "state")), backend="rocksdb", rocksdb__materializeEvery=2)
    versions = query.run_batches(query.open(), EMPTY, 6)
    asked = job(tmp_path / "state", 0, versions[3])
    asked["in_place"] = False
    asked["open"]["settings"] = {f"{PREFIX}backend": "rocksdb", f"{PREFIX}rocksdb.materializeEvery": "2"}
    maintainer = Maintainer(SystemClock(), RandomIds())
    steps, store = maintainer.steps(asked), OpenArgument.from_json(asked["open"]).store
    if early:
        maintainer.leave(store)
    assert next(steps) is Turn.LONG_MERGE
    if not early:
        maintainer.leave(store)
    with contextlib.suppress(StopIteration):
        while True:
            assert not isinstance(steps.send(True), Deletion)
    assert list((tmp_path / "state").rglob("*.sst"))
    assert list(own.iterdir()) == []
    # open again, it keeps them for its next job
    newest = {"version": versions[-1].version, "attempt": versions[-1].attempt}
    again = maintainer.work({**asked, "confirmed": newest})
    assert again["segment"] is not None
    assert list(own.iterdir())


def test_a_segment_that_the_engine_does_not_wait_for_any_more_is_merged_anew(tmp_path: Path) -> None:
    """Its store was closed when the report came, or a commit could not refer to it: nothing would be merged again."""
    query = Query(Storage(str(tmp_path)))
    versions = query.run_batches(query.open(), EMPTY, 12)
    maintainer = Maintainer(SystemClock(), RandomIds())
    first = maintainer.work(job(tmp_path, 0, versions[-2], collect=False))["segment"]
    second = maintainer.work(job(tmp_path, 0, versions[-1], collect=False, waiting=[]))["segment"]
    assert second is not None
    assert set(segment_from_json(first).manifest.inputs) <= set(segment_from_json(second).manifest.inputs)


def test_what_cannot_be_merged_is_no_reason_to_keep_what_nobody_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(Storage(str(tmp_path)), min_versions=3)
    version = idle(query, 0)
    clock = ManualClock(SystemClock().now_ms())
    maintainer = Maintainer(clock, SequenceIds())
    assert maintainer.work(job(tmp_path, 0, version))["ok"]
    clock.advance(MIN_AGE_MS)

    def full(*_: Any, **__: Any) -> None:
        raise LaminaError.from_kind("storage.failed", "the local disk is full")

    monkeypatch.setattr(VersionedStore, "plan_compaction", full)
    report = maintainer.work(job(tmp_path, 0, version))
    assert (report["ok"], report["error"]["message"]) == (False, "the local disk is full")
    figures = MaintenanceFigures()
    figures.add("store", report, 0.0)
    assert (figures.pop("store")["failed_merges"], figures.stats()["failed_merges"]) == (1, 1)
    assert figures.pop("store")["failed_merges"] == 0
    assert report["collected"]["delete_files"] == 1


@pytest.mark.parametrize("fails", [False, True])
def test_how_long_a_merge_took_is_reported_whatever_became_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    query = Query(Storage(str(tmp_path)), min_versions=3)
    version = query.run_batches(query.open(), EMPTY, 12)[-1]
    clock = ManualClock(SystemClock().now_ms())
    planned = VersionedStore.plan_compaction

    def slow(store: VersionedStore, **options: Any) -> Merge:
        merge = planned(store, **options)
        assert merge is not None

        def run(*arguments: Any) -> Compacted:
            clock.advance(250)
            if fails:
                raise LaminaError.from_kind("storage.failed", "the local disk is full")
            return merge.run(*arguments)

        return Merge(merge.bytes, run)

    monkeypatch.setattr(VersionedStore, "plan_compaction", slow)
    report = Maintainer(clock, SequenceIds()).work(job(tmp_path, 0, version))
    assert report["ok"] != fails
    figures = MaintenanceFigures()
    figures.add("store", report, 0.0)
    assert [figures.pop("store")["merge_ms"] for _ in range(2)] == [250, 0]


def test_a_long_merge_has_a_bound_of_memory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    monkeypatch.setattr(maintenance, "LONG_BYTES", 0)
    maintainer = Maintainer(SystemClock(), SequenceIds())
    planned = VersionedStore.plan_compaction
    had: list[tuple[bool, bool]] = []

    def looking(store: VersionedStore, **options: Any) -> Merge:
        merge = planned(store, **options)
        assert merge is not None

        def run(progress: Any, share: Share) -> Compacted:
            upload = 80 << 20
            had.append((share.try_take(2 * upload), share.try_take(upload)))
            share.close()
            return merge.run(progress, share)

        return Merge(merge.bytes, run)

    monkeypatch.setattr(VersionedStore, "plan_compaction", looking)
    assert maintainer.work(job(tmp_path, 0, version))["segment"] is not None
    assert had == [(True, False)]
    assert maintainer._memory.stats()["peak_bytes"] == 0


def test_what_a_collection_leaves_is_reported_until_it_was_told_and_never_added_up(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)), min_versions=3)
    version = idle(query, 0)
    clock = ManualClock(SystemClock().now_ms())
    maintainer, figures = Maintainer(clock, SequenceIds()), MaintenanceFigures()
    old, new = sorted(tmp_path.glob("0/0/*.lam"), key=lambda path: int(path.name.partition("_")[0]))
    sizes = [path.stat().st_size for path in (old, new)]
    for _ in range(2):
        maintainer._kept.clear()
        figures.add("store", maintainer.work(job(tmp_path, 0, version)), 0.0)
    told = figures.pop("store")
    assert (told["stored_bytes"], told["newest_bytes"]) == (sum(sizes), sizes[1])
    assert "stored_bytes" not in figures.pop("store")
    clock.advance(MIN_AGE_MS)
    figures.add("store", maintainer.work(job(tmp_path, 0, version)), 0.0)
    told = figures.pop("store")
    assert (told["deleted_bytes"], told["stored_bytes"], told["newest_bytes"]) == (sizes[0], sizes[1], sizes[1])
    # a job that does not look at files leaves what was told
    figures.add("store", maintainer.work(job(tmp_path, 0, version, collect=False)), 0.0)
    assert "stored_bytes" not in figures.pop("store")


def test_a_segment_is_reported_although_the_collection_after_it_failed(tmp_path: Path) -> None:
    """The process believes in it, and merges nothing before a commit refers to it or the chain is at its limit."""
    query = Query(Storage(str(tmp_path)))
    store = query.open()
    versions = query.run_batches(store, EMPTY, 6)
    maintainer = Maintainer(query.clock, RandomIds())
    assert maintainer.work(job(tmp_path, 0, versions[0], collect=False))["ok"]
    # the collection cannot list the runs of the query
    runs = tmp_path / "_lamina" / "runs"
    runs.rename(tmp_path / "elsewhere")
    runs.symlink_to(runs)
    report = maintainer.work(job(tmp_path, 0, versions[-1]))
    assert not report["ok"]
    assert report["error"]["kind"] == "storage.failed"
    figures = MaintenanceFigures()
    figures.add("store", report, 0.0)
    assert figures.pop("store")["failed_merges"] == 0
    store.adopt(segment_from_json(report["segment"]))
    after = query.run_batches(store, versions[-1], 1)[-1]
    manifest = store.manifest(after)
    assert manifest is not None
    assert any(reference.kind == RUN and reference.end == versions[-1].version for reference in manifest.references)


def test_a_collection_that_reads_many_manifests_says_that_it_goes_on(tmp_path: Path) -> None:
    """Whoever is silent for too long is killed, and the next process would begin anew."""
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 40)[-1]
    maintainer = Maintainer(SystemClock(), RandomIds())
    segment = maintainer.work(job(tmp_path, 0, version, collect=False))["segment"]
    told: list[int] = []
    report = maintainer.work(job(tmp_path, 0, version, waiting=[segment]), lambda done, _: told.append(done))
    assert (report["ok"], report["segment"]) == (True, None)
    assert len(told) >= 40
    assert told == sorted(told)


def test_a_collection_that_a_newer_run_stops_says_so_once_and_names_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(Storage(str(tmp_path)))
    versions = [query.run_batches(query.open(partition), EMPTY, 5) for partition in range(2)]
    clock = ManualClock(SystemClock().now_ms())
    maintainer = Maintainer(clock, RandomIds())

    def warnings_of_a_round(number: int) -> list[str]:
        caplog.clear()
        clock.advance(60_000)  # what is known of the runs is old news
        for partition in range(2):
            assert maintainer.work(job(tmp_path, partition, versions[partition][number]))["ok"]
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    assert warnings_of_a_round(2) == []
    Query(query.storage, run="second").open()
    told = warnings_of_a_round(3)
    assert len(told) == 2
    assert all("second (epoch 2)" in message for message in told)
    assert [str(job(tmp_path, 0, EMPTY)["open"]["url"]) in message for message in told] == [True, True]
    assert warnings_of_a_round(4) == []


def test_collections_come_less_often_where_all_together_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks at all retained versions, of which many stores may have very many."""
    query = Query(Storage(str(tmp_path)))
    versions = [query.run_batches(query.open(partition), EMPTY, 2) for partition in range(10)]
    clock = ManualClock(SystemClock().now_ms())
    maintainer = Maintainer(clock, RandomIds())
    judge, looked = VersionedStore.judge, []

    def slow(store: VersionedStore, *arguments: Any) -> Any:
        looked.append(store.identity.partition)
        clock.advance(takes_ms)
        return judge(store, *arguments)

    monkeypatch.setattr(VersionedStore, "judge", slow)

    def collected(number: int) -> int:
        """How many stores were looked at in a round."""
        looked.clear()
        for partition in range(10):
            report = maintainer.work(job(tmp_path, partition, versions[partition][number]))
            assert report["ok"]
        return len(looked)

    # what takes a second together is not worth a pause
    takes_ms = 100
    assert [collected(number) for number in (0, 1, 0)] == [10, 10, 10]
    takes_ms = 2_000
    for number in (1, 0):
        clock.advance(100_000)
        assert collected(number) == 10
    # all take 20 s, and come again after five times as much
    assert collected(1) == 0
    clock.advance(79_000)
    assert collected(1) == 0
    clock.advance(31_000)
    assert collected(1) == 10


def test_a_collection_of_an_empty_store_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    maintainer = Maintainer(SystemClock(), RandomIds())
    report = maintainer.work(job(tmp_path, 0, Version(4, f"L1.0.1.e.-.{'0f' * 16}")))
    assert report["stopped"] == "the store is empty"
    assert caplog.records == []


class Reports:
    """What a queue's jobs reported in the end, and what of that they had said after their merges."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._merged: dict[str, Any] = {}
        self._changed = threading.Condition()

    def __call__(self, report: dict[str, Any]) -> None:
        with self._changed:
            if report["ok"] and "collected" not in report:
                self._merged = {name: value for name, value in report.items() if name != "ok"}
                return
            self.all.append({**report, **self._merged})
            self._merged = {}
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, timeout=60)


NewQueue = Callable[..., MaintenanceQueue]
"""Makes a queue whose process works in a directory and may be silent for some seconds, with a number of workers; the
test's end closes it."""


@pytest.fixture
def new_queue() -> Iterator[NewQueue]:
    made: list[MaintenanceQueue] = []

    def new(directory: Path, silence_s: float, workers: int = 1) -> MaintenanceQueue:
        made.append(MaintenanceQueue(SystemClock(), str(directory), silence_s, workers))
        return made[-1]

    yield new
    for queue in made:
        queue.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_hangs_in_storage_ends_and_the_other_one_is_done(
    tmp_path: Path, new_queue: NewQueue, workers: int
) -> None:
    """With one worker the other one is done by the next process, with two beside it."""
    query = Query(Storage(str(tmp_path)))
    versions = [query.run_batches(query.open(partition), EMPTY, 6)[-1] for partition in range(2)]
    assert versions[0].attempt is not None
    # whoever opens this file waits for a writer for ever, as on a network file system whose server is gone
    path = tmp_path / "0" / "0" / file_name(versions[0].attempt)
    path.unlink()
    os.mkfifo(path)
    queue = new_queue(tmp_path, 120, workers)
    queue.start()
    hanging, other = Reports(), Reports()
    for partition, reports in enumerate((hanging, other)):
        queue.submit(partition, Job(job(tmp_path, partition, versions[partition]), reports, nothing))
    if workers > 1:
        other.wait_for(1)
    with queue._changed:
        queue._silence_s = 1.0
        queue._changed.notify_all()
    hanging.wait_for(1)
    assert len(other.all) == workers - 1
    queue._silence_s = 120  # the next process may start slowly
    other.wait_for(1)
    assert hanging.all[0]["error"]["kind"] == "engine.deadline"
    assert other.all[0]["ok"]
    while queue.stats()["starts"] < 2:
        time.sleep(0)
    assert queue.stats()["hanging"] == 0


def test_a_process_that_reads_no_more_is_ended_however_much_it_is_told(tmp_path: Path, new_queue: NewQueue) -> None:
    """What a job says of a store with many files does not fit into the pipe."""
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    assert version.attempt is not None
    footprints = [[version.attempt, [file_name(version.attempt)] * 12, None]] * 256
    queue = new_queue(tmp_path, 120)
    queue.start()
    reports = Reports()
    queue.submit(0, Job(job(tmp_path, 0, version), reports, nothing))
    reports.wait_for(1)
    assert queue.pid is not None
    os.kill(queue.pid, signal.SIGSTOP)
    queue.submit(0, Job(job(tmp_path, 0, version), reports, lambda _: {"waiting": [], "footprints": footprints}))
    while not queue.stats()["working_on"]:
        time.sleep(0)
    with queue._changed:
        queue._silence_s = 1.0
        queue._changed.notify_all()
    reports.wait_for(2)
    assert reports.all[1]["error"]["kind"] == "engine.deadline"
    while queue.stats()["starts"] < 2:
        time.sleep(0)


def not_startable(tmp_path: Path, new_queue: NewQueue) -> tuple[MaintenanceQueue, Path, Version]:
    """A queue whose process cannot be started until its directory is there, that directory, and a store's version."""
    query = Query(Storage(str(tmp_path / "state")))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    directory = tmp_path / "not there yet"
    queue = new_queue(directory, 60)
    queue.start()
    assert queue.pid is None
    return queue, directory, version


def test_a_process_that_cannot_be_started_is_tried_again_and_the_jobs_wait(tmp_path: Path, new_queue: NewQueue) -> None:
    queue, directory, version = not_startable(tmp_path, new_queue)
    reports = Reports()
    queue.submit(1, Job(job(tmp_path / "state", 0, version), reports, nothing))
    while (queue.stats()["last_error"] or {}).get("kind") != "engine.start":
        time.sleep(0)
    directory.mkdir()
    reports.wait_for(1)
    assert reports.all[0]["ok"]
    assert queue.stats()["alive"]


def test_nobody_waits_for_a_job_while_its_process_cannot_be_started(tmp_path: Path, new_queue: NewQueue) -> None:
    queue, directory, version = not_startable(tmp_path, new_queue)
    waits, later = Reports(), Reports()
    queue.submit(1, Job({**job(tmp_path / "state", 0, version), "awaited": True}, waits, nothing))
    queue.submit(1, Job(job(tmp_path / "state", 0, version), later, nothing))
    waits.wait_for(1)
    (told,) = waits.all
    assert not told["ok"] and told["awaited"] and told["confirmed"]["version"] == version.version
    assert told["error"]["kind"] == "engine.start" and str(directory) in told["error"]["message"]
    # of merges that says nothing: so many that fail would end the query
    assert not told["merge_failed"] and not later.all
    directory.mkdir()
    later.wait_for(1)
    assert later.all[0]["ok"]


@pytest.mark.parametrize("name", ["lamina-maintenance-reports", "lamina-maintenance-jobs"])
def test_a_process_for_which_there_is_no_thread_is_tried_again_and_none_is_left(
    tmp_path: Path, new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    query = Query(Storage(str(tmp_path / "state")))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    begin, failed = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name == name and not failed:
            failed.append(queue.pid)
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    queue = new_queue(tmp_path, 60)
    queue.start()
    assert queue.stats()["last_error"]["kind"] == "engine.start"
    assert not os.path.exists(f"/proc/{failed[0]}")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    reports = Reports()
    queue.submit(1, Job(job(tmp_path / "state", 0, version), reports, nothing))
    reports.wait_for(1)
    assert reports.all[0]["ok"]
    assert queue.stats()["starts"] == 1


def test_the_job_of_a_closed_store_keeps_its_turn_for_a_while(
    tmp_path: Path, new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_turns, "LEFT_S", 0.0)
    query = Query(Storage(str(tmp_path)))
    versions = [query.run_batches(query.open(partition), EMPTY, 1)[-1] for partition in range(3)]
    queue = new_queue(tmp_path, 60)
    all_reports = [Reports() for _ in versions]
    for partition, (version, reports) in enumerate(zip(versions, all_reports, strict=True)):
        queue.submit(partition, Job(job(tmp_path, partition, version), reports, nothing))
    for partition, reports in enumerate(all_reports[:2]):
        queue.leave(partition, reports)
    queue.leave(2, Reports())  # an older handle of it
    # the second is open again
    queue.submit(1, Job(job(tmp_path, 1, versions[1]), all_reports[1], nothing))
    queue.start()
    all_reports[2].wait_for(1)
    assert [len(reports.all) for reports in all_reports] == [0, 1, 1]


def test_a_job_is_sent_with_the_segments_that_wait_when_its_turn_comes(tmp_path: Path, new_queue: NewQueue) -> None:
    """A job that was queued while the one before it was in work knows what that one made."""
    query = Query(Storage(str(tmp_path)))
    store = query.open()
    versions = query.run_batches(store, EMPTY, 12)
    queue = new_queue(tmp_path, 60)
    reports = Reports()

    def adopted(report: dict[str, Any]) -> None:
        if report["segment"] is not None:
            store.adopt(segment_from_json(report["segment"]))
        reports(report)

    second = Job(
        job(tmp_path, 0, versions[-1], collect=False),
        adopted,
        lambda collects: known_to_json(store, BrokenPlaces(), collects),
    )

    def ask_again(collects: bool) -> dict[str, Any]:
        # the first job is in work by now
        assert queue.submit(0, second)
        return known_to_json(store, BrokenPlaces(), collects)

    queue.submit(0, Job(job(tmp_path, 0, versions[-2], collect=False), adopted, ask_again))
    queue.start()
    reports.wait_for(2)
    assert [report["segment"] is not None for report in reports.all] == [True, False]


def test_a_segment_that_waits_is_stamped_by_each_job_and_the_report_says_so(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)))
    versions = query.run_batches(query.open(), EMPTY, 6)
    clock = ManualClock(SystemClock().now_ms())
    maintainer = Maintainer(clock, RandomIds())
    first = maintainer.work(job(tmp_path, 0, versions[-1], collect=False))
    segment = segment_from_json(first["segment"])
    assert first["stamped"] == []
    for _ in range(10):
        clock.advance(MIN_AGE_MS * 2 // 5)
        (stamped,) = maintainer.work(job(tmp_path, 0, versions[-1], waiting=[segment_to_json(segment)]))["stamped"]
        assert stamped["name"] == str(segment.name)
        segment = segment_from_json(stamped["segment"])
        assert segment.published_ms == clock.now_ms()
    store = query.open()
    store.adopt(segment)
    assert isinstance(query.clock, ManualClock)
    query.clock.advance(clock.now_ms() - query.clock.now_ms())
    manifest = store.manifest(query.run_batches(store, versions[-1], 1)[-1])
    assert manifest is not None
    assert str(segment.name) in {reference.path for reference in manifest.references}


def test_a_process_that_took_the_place_of_a_killed_one_stamps_the_segments_that_wait(tmp_path: Path) -> None:
    """It learns them from the job. Without their stamps no commit could name them, nor any that is finished later."""
    query = Query(Storage(str(tmp_path)))
    versions = query.run_batches(query.open(), EMPTY, 6)
    clock = ManualClock(SystemClock().now_ms())
    segment = Maintainer(clock, RandomIds()).work(job(tmp_path, 0, versions[-1], collect=False))["segment"]
    clock.advance(MIN_AGE_MS * 2 // 5)
    (stamped,) = Maintainer(clock, RandomIds()).work(job(tmp_path, 0, versions[-1], waiting=[segment]))["stamped"]
    assert stamped["name"] == str(segment_from_json(segment).name)
    assert stamped["segment"]["published_ms"] == clock.now_ms()


@pytest.mark.parametrize("remote", [False, True])
def test_who_opens_a_store_is_told_whether_its_files_are_on_another_machine(
    remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 1)[-1]
    clock = SystemClock()
    opened = Sessions(Settings(), MaintenanceQueue(clock, str(tmp_path), 60, workers=1), clock, RandomIds())
    monkeypatch.setattr(LocalBackend, "remote", remote)
    assert opened.open(job(tmp_path, 0, version)["open"])["remote"] == remote


@pytest.mark.parametrize(("closed_for_s", "again"), [(3500, True), (3700, False)])
def test_the_segments_of_a_closed_store_are_stamped_for_an_hour(
    closed_for_s: int, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be opened again for its next batch; that of a query that has ended must leave its file to collectors."""
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    clock = ManualClock(SystemClock().now_ms())
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=1)
    asked: list[Hashable] = []
    monkeypatch.setattr(queue, "call_later", lambda store, delay_s, submit: asked.append(store))
    opened = Sessions(Settings(), queue, clock, RandomIds())
    handle = opened.open(job(tmp_path, 0, version)["open"])["handle"]
    store = opened.get(handle)
    store.begin({"version": 6, "attempt": version.attempt, **BEGIN})
    report = Maintainer(clock, RandomIds()).work(job(tmp_path, 0, version, collect=False))
    opened.close(handle)
    asked.clear()
    clock.advance(closed_for_s * 1000)
    store._maintained(report)
    assert asked == [store.argument.store] * again
    # no commit of its run comes any more
    opened.open(job(tmp_path, 1, version, run="newer")["open"])
    asked.clear()
    store._maintained(report)
    assert not asked


def test_a_store_whose_segment_waits_is_asked_for_again_although_nobody_maintains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed store: with `unloadOnCommit` the query's next batch opens it."""
    monkeypatch.setattr(sessions, "_SHORTEST_STAMP_S", 0.0)
    query = Query(Storage(str(tmp_path)))
    version = query.run_batches(query.open(), EMPTY, 6)[-1]
    queue = MaintenanceQueue(SystemClock(), str(tmp_path), 60, workers=1)
    submitted = threading.Semaphore(0)
    handed: list[Job] = []
    monkeypatch.setattr(queue, "submit", lambda store, one: (handed.append(one), submitted.release()))
    opened = Sessions(Settings(), queue, SystemClock(), RandomIds())
    argument = {**job(tmp_path, 0, version)["open"], "settings": {PREFIX + "retention.minAgeMs": "0"}}
    store = opened.get(opened.open(argument)["handle"])
    store.begin({"version": 6, "attempt": version.attempt, **BEGIN})
    report = Maintainer(SystemClock(), RandomIds()).work(job(tmp_path, 0, version, collect=False))
    store._maintained(report)
    queue.start()
    try:
        assert submitted.acquire(timeout=60)
    finally:
        queue.close()
    assert handed[0].argument["collect"] is False
    assert handed[0].known(False) == {"waiting": [report["segment"]], "footprints": [], "broken": []}


def test_a_job_says_whether_the_base_of_the_last_commit_is_worth_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is not, the process need not read the manifest to find that out."""
    query = Query(Storage(str(tmp_path)))
    versions = query.run_batches(query.open(), EMPTY, 6)
    queue = MaintenanceQueue(SystemClock(), str(tmp_path), 60, workers=1)
    handed: list[Job] = []
    monkeypatch.setattr(queue, "submit", lambda store, one: handed.append(one))
    opened = Sessions(Settings(), queue, SystemClock(), RandomIds())
    store = opened.get(opened.open(job(tmp_path, 0, versions[-1])["open"])["handle"])
    for version in (versions[0], versions[-1], versions[0]):
        store.begin({"version": version.version, "attempt": version.attempt, **BEGIN})
        store.maintain({})
    assert [(one.collects, one.argument["compact"]) for one in handed] == [
        # the first of all is asked for by the batch
        (True, False),
        (True, False),
        (False, True),
        (True, True),
        (True, False),
    ]
    maintainer = Maintainer(SystemClock(), RandomIds())
    told = job(tmp_path, 0, versions[-1])
    assert maintainer.work({**told, "compact": False})["segment"] is None
    assert maintainer.work(told)["segment"] is not None


def test_a_collection_reads_no_manifest_of_commits_by_handles_that_were_closed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `unloadOnCommit` each batch opens its store anew."""
    query = Query(Storage(str(tmp_path)))
    clock = SystemClock()
    queue = MaintenanceQueue(clock, str(tmp_path), 60, workers=1)
    handed: list[Job] = []
    monkeypatch.setattr(queue, "submit", lambda store, one: handed.append(one))
    opened = Sessions(Settings(), queue, clock, RandomIds())
    maintainer = Maintainer(clock, RandomIds())
    read: list[str] = []
    open_commit = StoreFiles.open_commit

    def counted(files: StoreFiles, attempt: str) -> Opened:
        read.append(attempt)
        return open_commit(files, attempt)

    version = EMPTY
    for batch in range(1, 13):
        handle = opened.open(job(tmp_path, 0, version)["open"])["handle"]
        store = opened.get(handle)
        version = query.run_batches(store.store, version, 1)[-1]
        if batch % 6 == 0:
            store.begin({"version": version.version, "attempt": version.attempt, **BEGIN})
            handed.clear()
            store.maintain({})
            with monkeypatch.context() as patched:
                patched.setattr(StoreFiles, "open_commit", counted)
                argument = {**handed[-1].argument, "compact": False}
                told = json.loads(json.dumps(handed[-1].known(True)))
                read.clear()
                assert maintainer.work({**argument, **told})["ok"]
        opened.close(handle)
    assert read == []


def test_a_job_that_collects_has_the_footprints_of_all_commits_since_the_last_one(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)))
    store = query.open()
    versions = query.run_batches(store, EMPTY, 4)
    assert known_to_json(store, BrokenPlaces(), collects=False)["footprints"] == []
    told = json.loads(json.dumps(known_to_json(store, BrokenPlaces(), collects=True)))["footprints"]
    reader = query.open()
    assert [footprint_from_json(one) for one in told] == [
        (version.attempt, Footprint.of(reader._versions.open(str(version.attempt)))) for version in versions
    ]
    versions += query.run_batches(store, versions[-1], 1)
    told = known_to_json(store, BrokenPlaces(), collects=True)["footprints"]
    assert [one[0] for one in told] == [versions[-1].attempt]
    assert known_to_json(store, BrokenPlaces(), collects=True)["footprints"] == []
