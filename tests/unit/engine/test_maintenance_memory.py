"""What the jobs of the maintenance process have in memory together, and that none of them stops for another's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.components import SystemClock
from lamina.engine.maintenance import SHORT_MERGES_BYTES, Maintainer
from lamina.settings import PREFIX
from lamina.storage import Storage
from lamina.store.tables.database import Database
from lamina.testing import SequenceIds
from tests.unit.engine.test_maintenance import EMPTY, job
from tests.unit.store.writing import Query

WORKERS = 8


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
