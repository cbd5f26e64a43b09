"""Machines that run out of something, or whose clock is set: the query fails clearly or goes on, and restarts right."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lamina.storage import Storage
from lamina.store.direct.open import open_store
from lamina.testing import ManualClock, MemoryBackend, SequenceIds
from lamina.testing.expect import fails_with
from tests.faults.children import NO_MOUNT, namespace, run_child
from tests.faults.machine_child import CASES, HOUR_MS, MOUNTED
from tests.spark.streams import OF_MODE

START_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def results(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the cases gave; those that need a mount are missing where this user may not have one."""
    own = namespace()
    cases = [case for case in CASES if own is not None or case not in MOUNTED]
    folder = tmp_path_factory.mktemp("machine")
    (folder / "faults").mkdir()
    hook = repository / "tests" / "faults" / "machine_hook"
    found: dict[str, dict[str, Any]] = run_child(
        repository, own or (), "machine_child", str(folder), *cases,
        timeout_s=1800, paths=[hook], LAMINA_MACHINE=str(folder / "faults"),
    )  # fmt: skip
    return found


def result_of(results: dict[str, dict[str, Any]], case: str) -> dict[str, Any]:
    if case not in results:
        pytest.skip(NO_MOUNT)
    return results[case]


@pytest.mark.parametrize("case", CASES)
def test_a_query_restarts_right_after_the_machine_failed_it(results: dict[str, dict[str, Any]], case: str) -> None:
    result = result_of(results, case)
    assert result["before"] is None
    assert result["restarted"] is None
    assert result["further"] is None
    assert result["right"]
    assert result["reloads"] >= 2


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("full disk", "No space left on device"),
        ("read only", "Read-only file system"),
        ("quota", os.strerror(errno.EDQUOT)),
    ],
)
def test_a_query_that_cannot_write_says_which_file_and_why(
    results: dict[str, dict[str, Any]], case: str, reason: str
) -> None:
    error = result_of(results, case)["error"]
    assert error is not None
    assert "[storage.failed]" in error
    assert reason in error
    assert (".log" if OF_MODE else ".lam") in error


@pytest.mark.parametrize("case", ["full disk", "quota"])
def test_a_publication_without_room_leaves_no_part_of_a_file(results: dict[str, dict[str, Any]], case: str) -> None:
    assert result_of(results, case)["temporary_files"] == []


def test_commits_go_on_where_the_disk_of_the_tables_is_full(results: dict[str, dict[str, Any]]) -> None:
    result = result_of(results, "full disk of the engine")
    assert result["error"] is None
    # it was: no tables were made
    assert result["failed_merges"] > 0


def test_a_query_that_has_no_room_for_its_tables_says_where_and_why(results: dict[str, dict[str, Any]]) -> None:
    error = result_of(results, "full disk of the engine")["opened"]
    assert error is not None
    assert "[storage.failed]" in error
    assert re.search(r"/engine/lamina-\S+ on local disk: .*No space left on device", error), error
    assert "engine.localDirectory" in error, error


def test_a_query_without_room_for_its_shuffles_fails_by_them(results: dict[str, dict[str, Any]]) -> None:
    error = result_of(results, "full disk of Spark")["error"]
    assert error is not None
    assert "No space left on device" in error


def test_a_query_goes_on_when_the_clock_is_set_back(results: dict[str, dict[str, Any]]) -> None:
    result = results["clock"]
    assert result["error"] is None
    # it was: what was written a moment ago looks an hour old
    assert result["newest_age_ms"] > HOUR_MS


def test_an_engine_without_file_handles_fails_clearly_or_goes_on(results: dict[str, dict[str, Any]]) -> None:
    result = results["too many open files"]
    assert result["error"] is None or "Too many open files" in result["error"], result["error"]
    assert result["refused"] > 0


class Quota(MemoryBackend):
    """Refuses what would exceed `room` bytes, as a file system with quotas does."""

    room = 1 << 40

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        data = b"".join(bytes(chunk) for chunk in chunks)
        if sum(len(stored) for stored, _ in self.objects.values()) + len(data) > self.room:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return super().publish(path, [data])


def test_a_commit_over_the_quota_is_refused_and_the_one_after_it_counts() -> None:
    clock, ids = ManualClock(START_MS), SequenceIds()
    backend = Quota(clock)
    storage = Storage("quota:/state", backend=backend)
    store = open_store("quota:/", writable=True, storage=storage, clock=clock, ids=ids)
    store.put(b"a", b"1")
    store.commit()
    files = set(backend.objects)
    backend.room = 0
    store.put(b"b", b"2")
    with fails_with("storage.failed") as caught:
        store.commit()
    assert "quota" in caught.error.message
    assert set(backend.objects) == files
    backend.room = 1 << 40
    store.commit()
    again = open_store("quota:/", storage=storage, clock=clock, ids=ids)
    assert dict(again.scan()) == {b"a": b"1", b"b": b"2"}


def test_a_clock_that_jumps_back_an_hour_loses_nothing_and_files_go_later() -> None:
    clock, ids = ManualClock(START_MS), SequenceIds()
    storage = Storage("clock:/state", backend=MemoryBackend(clock))
    arguments: dict[str, Any] = {"storage": storage, "clock": clock, "ids": ids, "min_versions": 3}
    store = open_store("clock:/", writable=True, **arguments)
    states = {}
    for number in range(40):
        if number in (11, 23):
            clock.advance(-HOUR_MS)
        store.put(b"%d" % (number % 7), b"%d" % number)
        version = store.commit()
        states[version] = dict(store.scan())
        store.compact()
        store.collect()
        clock.advance(1_000)
    kept = [version for version in states if version.version >= 37]
    reader = open_store("clock:/", writable=True, **arguments)
    for version in kept:
        reader.restore(version)
        assert dict(reader.scan()) == states[version]
    files = len(storage.list("0/0"))
    clock.advance(3 * HOUR_MS)
    reader.restore(kept[-1])
    reader.put(b"x", b"y")
    reader.commit()
    reader.collect()
    assert len(storage.list("0/0")) < files
