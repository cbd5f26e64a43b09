"""`lamina fsck` and `lamina gc` beside a query that commits, compacts and collects: no false alarm, nothing lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina.store import Version
from lamina.store.direct.rows import newest_first
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import PARTITIONS, QueryOnDisk

RETAINED = 20
"""Versions before the newest one, and entries in Spark's log."""

SETTINGS = {"retention__minAgeMs": 6_000, "compaction__maxChain": 20}


class RunningQuery(QueryOnDisk):
    """Batches in one thread, maintenance in another one, until it is stopped; every third batch has two attempts."""

    def __init__(self, directory: Path, format_version: int) -> None:
        super().__init__(directory, format_version, min_versions=RETAINED, **SETTINGS)
        self.segments = 0
        self.collected = 0
        self.errors: list[BaseException] = []
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_stopped, args=[do]) for do in (self._batch, self._maintain)
        ]

    def __enter__(self) -> RunningQuery:
        self.run(1)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _until_stopped(self, do: Callable[[], None]) -> None:
        try:
            while not self._stopped.is_set():
                do()
        except BaseException as error:
            self.errors.append(error)

    def _batch(self) -> None:
        self.plan()
        attempts = self.execute()
        if self.version % 3 == 0:
            attempts = self.execute(task_attempt=1)
        self.finish(attempts)
        self.forget(RETAINED + 1)

    def _maintain(self) -> None:
        for partition, store in enumerate(self._stores):
            # what a batch has certainly been begun on
            number = self.version - 1
            attempt = self.attempts[number - 1][partition] if number else None
            confirmed = store.confirm(Version(number, attempt))
            compacted = store.compact()
            if compacted is not None:
                store.adopt(compacted.made)
                self.segments += 1
            # what it leaves, gc collects
            if number % 7 == 0:
                self.collected += len(store.collect(confirmed, dry_run=False).deleted)


def stores(lamina: Lamina, command: str, query: QueryOnDisk) -> list[dict[str, Any]]:
    outcome = lamina(command, query.directory, "--json")
    assert outcome.code == 0, outcome.err or outcome.out
    found: list[dict[str, Any]] = json.loads(outcome.out)["stores"]
    assert len(found) == PARTITIONS
    return found


@pytest.mark.parametrize("format_version", [1, 2])
def test_both_run_beside_a_query_that_commits_compacts_and_collects(
    lamina: Lamina, tmp_path: Path, format_version: int
) -> None:
    deleted = 0
    with RunningQuery(tmp_path / "checkpoint", format_version) as query:
        for runs in range(200):
            if query.errors or (runs >= 8 and query.segments and query.collected and deleted):
                break
            before = query.version
            assert all(store["problems"] == [] for store in stores(lamina, "fsck", query))
            files = [file for store in stores(lamina, "gc", query) for file in store["files"]]
            deleted += sum(file["action"] == "delete" for file in files)
            assert query.errors or query.version > before
    assert query.errors == []
    assert min(query.segments, query.collected, deleted) > 0
    found = stores(lamina, "fsck", query)
    retained = range(query.version - RETAINED, query.version + 1)
    assert [store["whole"] for store in found] == [list(retained)] * PARTITIONS
    for partition, store in enumerate(query._stores):
        for number in retained:
            attempt = query.attempts[number - 1][partition] if format_version == 2 else None
            rows = newest_first(store.load(Version(number, attempt), have=None, read_only=True).batches)
            assert rows.keys() == {(0, f"{batch}-{row}".encode()) for batch in range(number) for row in range(10)}
