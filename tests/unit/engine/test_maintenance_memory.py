"""What the jobs of the maintenance process have in memory together, and that none of them stops for another's."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.components import SystemClock
from lamina.engine.maintenance import SHORT_MERGES_BYTES, Maintainer
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.maintenance_turns import Job
from lamina.format.entries import PUT
from lamina.settings import PREFIX
from lamina.storage import Storage
from lamina.store.tables.database import Database
from lamina.testing import SequenceIds
from tests.unit.engine.conftest import nothing
from tests.unit.engine.test_maintenance import EMPTY, Reports, job
from tests.unit.store.writing import Change, Query, file_name

WORKERS = 8

HOOK = """
import os, sys

if sys.orig_argv[1:3] == ["-m", "lamina.engine.maintenance"]:
    from lamina.storage.local import LocalBackend

    path_of = LocalBackend._path

    def gated(self, path):
        found = path_of(self, path)
        if os.path.exists(found + ".gate"):
            with open(found + ".gate") as gate:
                gate.read()
        return found

    LocalBackend._path = gated
"""
"""Has the maintenance process wait, before it uses a local file beside which there is a pipe, until that has had a
writer and has none any more."""


def test_as_many_jobs_make_tables_at_once_as_there_are_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(Storage(str(tmp_path)), backend="rocksdb", rocksdb__materializeEvery=2)
    jobs = []
    for partition in range(WORKERS):
        version = query.run_batches(query.open(partition), EMPTY, 2)[-1]
        jobs.append(job(tmp_path, partition, version, collect=False))
        settings = {PREFIX + "backend": "rocksdb", PREFIX + "rocksdb.materializeEvery": "2"}
        jobs[-1] |= {"open": {**jobs[-1]["open"], "settings": settings}, "in_place": False}
    together, ingest = threading.Barrier(WORKERS), Database.ingest

    def meeting(database: Database, run: Iterator[pa.RecordBatch]) -> int:
        # each has a database open, and memory for its first rows
        first = next(run)
        together.wait(60)
        return ingest(database, itertools.chain([first], run))

    monkeypatch.setattr(Database, "ingest", meeting)
    maintainer = Maintainer(SystemClock(), SequenceIds())
    with ThreadPoolExecutor(WORKERS) as pool:
        reports = list(pool.map(maintainer.work, jobs))
    assert all(report["ok"] for report in reports), reports
    assert 0 < maintainer._memory.stats()["peak_bytes"] <= SHORT_MERGES_BYTES
    assert maintainer._memory.stats()["held_bytes"] == 0


def test_a_job_that_waits_for_the_memory_of_others_says_that_it_goes_on(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path)))
    asked = job(tmp_path, 0, query.run_batches(query.open(), EMPTY, 6)[-1], collect=False)
    maintainer = Maintainer(SystemClock(), SequenceIds())
    other = maintainer._memory.share()
    other.take(SHORT_MERGES_BYTES)
    said = threading.Semaphore(0)

    def progress(*_: Any) -> None:
        if maintainer._memory.stats()["waiting"]:
            said.release()

    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(maintainer.work, asked, progress)
        try:
            assert all(said.acquire(timeout=60) for _ in range(2))
        finally:
            other.close()
        assert report.result(60)["segment"] is not None


def test_a_job_that_hangs_with_memory_keeps_no_other_one_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "hook"), os.environ.get("PYTHONPATH", "")]))
    query = Query(Storage(str(tmp_path)))
    store = query.open()
    versions = query.run_batches(store, EMPTY, 6)
    # small in its file, and in memory more than all short merges have together
    rows: dict[bytes, Change] = {b"%d" % key: (PUT, bytes(1 << 16)) for key in range(320)}
    newest = query.commit(store, versions[-1], rows)
    # it is read after that
    gate = tmp_path / "0" / "0" / (file_name(versions[-1].attempt or "") + ".gate")
    os.mkfifo(gate)
    jobs = [job(tmp_path, 0, newest, collect=False)]
    jobs.append(job(tmp_path, 1, query.run_batches(query.open(1), EMPTY, 6)[-1], collect=False))
    queue = MaintenanceQueue(SystemClock(), str(tmp_path), 120, workers=2)
    queue.start()
    hanging, other = Reports(), Reports()
    queue.submit(0, Job(jobs[0], hanging, nothing))
    with contextlib.ExitStack() as opened:
        opened.callback(queue.close)
        writer = None
        while writer is None:
            # there is no reader yet
            with contextlib.suppress(OSError):
                writer = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0)
        opened.callback(os.close, writer)
        queue.submit(1, Job(jobs[1], other, nothing))
        while len(queue.stats()["working_on"]) < 2 and not other.all:
            time.sleep(0)
        with queue._changed:
            for work in queue._work.values():
                if work.store == 0:
                    assert work.heard is not None
                    work.heard -= 120
            queue._changed.notify_all()
        hanging.wait_for(1)
        other.wait_for(1)
    assert hanging.all[0]["error"]["kind"] == "engine.deadline"
    assert other.all[0]["segment"] is not None
