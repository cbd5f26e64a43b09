"""`lamina fsck`, `gc` and `inspect`, and `open_store`, where log objects lie in places of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lamina.checkpoint import StoreSelection, logged_stores
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.storage import Storage
from lamina.storage.temporary import temporary_name
from lamina.store.admin.check import check_log, check_stores
from lamina.store.direct.open import open_store
from lamina.store.files.log_indexes import Found
from lamina.store.files.log_parts import LogObjects
from lamina.testing.expect import fails_with
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import PARTITIONS, QueryOnDisk

HOUR_S = 3600


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    return tmp_path / "fast"


@pytest.fixture
def query(tmp_path: Path, fast: Path) -> QueryOnDisk:
    """Five versions: files, an object in the checkpoint, two in a place, and one in the checkpoint again."""
    query = QueryOnDisk(tmp_path / "checkpoint", grouped=True)
    query.run(2)
    query.restart("run-2", changelog__path=fast)
    query.run(2)
    query.restart("run-3", storage__roots=fast)
    query.run(1)
    return query


def in_place(fast: Path) -> list[Path]:
    return sorted(fast.rglob("*.log"), key=lambda path: path.stat().st_mtime_ns)


def of_checkpoint(query: QueryOnDisk) -> list[Path]:
    return sorted((query.directory / "state" / paths.LOG).glob("*.log"))


def found_by(lamina: Lamina, command: str, query: QueryOnDisk, *options: object, code: int = 0) -> dict[str, Any]:
    outcome = lamina(command, query.directory, "--json", *options)
    assert outcome.code == code, outcome.err + outcome.out
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def test_fsck_checks_objects_wherever_they_lie(lamina: Lamina, query: QueryOnDisk, fast: Path) -> None:
    found = found_by(lamina, "fsck", query, "--root", fast)
    everything = [*in_place(fast), *of_checkpoint(query)]
    assert (len(in_place(fast)), len(everything)) == (2, 4)
    assert found["log"]["objects"] == 4
    assert found["log"]["bytes"] == sum(path.stat().st_size for path in everything)
    assert [store["whole"] for store in found["stores"]] == [[1, 2, 3, 4, 5]] * PARTITIONS
    assert found["log"]["not_needed"] == {}


def test_fsck_finds_a_damaged_object_of_a_place_and_what_nobody_needs_there(
    lamina: Lamina, query: QueryOnDisk, fast: Path
) -> None:
    directory = in_place(fast)[0].parent
    (directory / temporary_name(f"{'b' * 32}.log", 1, 2)).write_bytes(b"half")
    (directory / "notes.txt").write_bytes(b"not of lamina")
    # an attempt that Spark's log does not name
    query.restart("run-4", changelog__path=fast)
    query.plan()
    query.execute(task_attempt=7)
    # whether that one counts nobody knows before the batch is committed
    assert set(found_by(lamina, "fsck", query, "--root", fast)["log"]["not_needed"]) == {"temporary"}
    query.finish(query.execute())
    found = found_by(lamina, "fsck", query, "--root", fast)
    assert set(found["log"]["not_needed"]) == {"object", "temporary"}
    assert found["log"]["not_needed"]["temporary"]["bytes"] == 4
    damaged = in_place(fast)[0]
    data = bytearray(damaged.read_bytes())
    data[3] ^= 0xFF
    damaged.write_bytes(bytes(data))
    found = found_by(lamina, "fsck", query, "--root", fast, code=1)
    for store in found["stores"]:
        (problem,) = store["problems"]
        assert problem["kind"] == "file.damaged"
        assert str(damaged) in problem["message"]


def test_a_place_that_is_not_there_is_no_small_matter(lamina: Lamina, query: QueryOnDisk, fast: Path) -> None:
    fast.rename(fast.with_name("away"))
    found = found_by(lamina, "fsck", query, "--root", fast, code=1)
    (problem,) = found["log"]["problems"]
    assert problem["kind"] == "file.unread"
    assert str(fast) in problem["message"]
    # nobody knows whether what was not read is damaged
    assert found["damaged"] is False
    said = lamina("fsck", query.directory, "--root", fast).out
    assert "what was read is whole" in said
    assert "damaged" not in said.splitlines()[-1]
    assert ".at" in problem["message"]
    # the check of all else went on
    for store in found["stores"]:
        (problem,) = store["problems"]
        assert (problem["kind"], problem["versions"]) == ("file.unread", [3, 4, 5])
        assert store["whole"] == [1, 2]
    query.age(HOUR_S)
    before = of_checkpoint(query)
    outcome = lamina("gc", query.directory, "--root", fast)
    assert outcome.code == 1
    assert str(fast) in outcome.out.replace("\n", "")
    assert of_checkpoint(query) == before
    outcome = lamina("inspect", query.directory, "--root", fast)
    assert outcome.code == 1
    assert str(fast) in outcome.out.replace("\n", "")


@pytest.mark.parametrize("command", ["fsck", "inspect"])
def test_a_place_is_read_only_where_it_is_named(lamina: Lamina, query: QueryOnDisk, fast: Path, command: str) -> None:
    outcome = lamina(command, query.directory)
    assert outcome.code == 1
    assert "storage.roots" in outcome.out
    with fails_with("storage.denied"):
        list(open_store(str(query.directory)).scan())
    assert lamina(command, query.directory, "--root", fast).code == 0


def test_gc_deletes_in_places_too(lamina: Lamina, query: QueryOnDisk, fast: Path) -> None:
    query.restart("run-4", changelog__path=fast)
    query.min_versions = 1
    query.restart("run-5", changelog__path=fast)
    query.materialize()
    query.run(4)
    query.forget(1)
    old = [*in_place(fast), *of_checkpoint(query)]
    query.age(HOUR_S)
    for path in fast.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_atime - HOUR_S, path.stat().st_mtime - HOUR_S))
    planned = found_by(lamina, "gc", query, "--root", fast, "--dry-run")
    logs = [one["file"] for store in planned["stores"] for one in store["files"] if one["kind"] == "log"]
    assert {str(path) in logs or f"{paths.LOG}/{path.name}" in logs for path in old[:2]} == {True}
    assert [*in_place(fast), *of_checkpoint(query)] == old
    found_by(lamina, "gc", query, "--root", fast)
    left = [*in_place(fast), *of_checkpoint(query)]
    assert len(logs) == len(old) - len(left)
    assert not of_checkpoint(query)
    assert found_by(lamina, "fsck", query, "--root", fast)["damaged"] is False


def test_inspect_counts_what_lies_where(lamina: Lamina, query: QueryOnDisk, fast: Path) -> None:
    log = found_by(lamina, "inspect", query, "--root", fast)["log"]
    (place,) = log["places"]
    assert (log["objects"], place["objects"]) == (4, 2)
    assert place["bytes"] == sum(path.stat().st_size for path in in_place(fast))
    assert place["url"] == str(in_place(fast)[0].parent)
    assert "2 of them" in lamina("inspect", query.directory, "--root", fast).out


@pytest.mark.parametrize("named", ["storage_roots", "changelog_path"])
def test_a_store_is_read_from_all_places(query: QueryOnDisk, fast: Path, named: str) -> None:
    value = str(fast) if named == "changelog_path" else (str(fast),)
    for partition in range(PARTITIONS):
        store = open_store(str(query.directory), partition=partition, **{named: value})
        assert len(list(store.scan())) == 50
        changes = [key for batch in store.changes(2, 5) for key in batch.column("key").to_pylist()]
        assert len(changes) == 40
        store.restore(3)
        assert len(list(store.scan())) == 30


def test_the_check_of_all_else_goes_on_where_what_lies_below_the_log_is_out_of_reach(
    lamina: Lamina, tmp_path: Path, fast: Path
) -> None:
    """What an earlier run has written may have been collected since, for which the files are looked at."""
    query = QueryOnDisk(
        tmp_path / "checkpoint",
        min_versions=2,
        grouped=True,
        changelog__path=fast,
        retention__minVersionAgeMs=HOUR_S * 1000,
    )
    query.run(5)
    query.restart("run-2", storage__roots=fast, retention__minVersionAgeMs=HOUR_S * 1000)
    query.run(3)
    query.forget(2)
    fast.rename(fast.with_name("away"))
    found = found_by(lamina, "fsck", query, "--root", fast, code=1)
    assert found["damaged"] is False
    for store in found["stores"]:
        assert {problem["kind"] for problem in store["problems"]} == {"file.unread"}
    outcome = lamina("inspect", query.directory, "--root", fast)
    assert outcome.code == 1
    assert str(fast) in outcome.out.replace("\n", "")


def test_an_object_that_the_storage_does_not_give_is_not_read_and_the_check_goes_on(
    query: QueryOnDisk, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = logged_stores(Storage(str(query.directory), roots=(str(fast),)), StoreSelection())
    checks = check_stores(found, contents=False, progress=lambda done, total: None)
    refused = in_place(fast)[0].stem
    find = LogObjects.find

    def refuse(objects: LogObjects, log: str) -> Found:
        if log == refused:
            raise LaminaError.from_kind("storage.failed", f"{log} is not given")
        return find(objects, log)

    monkeypatch.setattr(LogObjects, "find", refuse)
    log = check_log(found, checks, contents=True)
    assert [(problem.kind, problem.message) for problem in log.problems] == [("file.unread", f"{refused} is not given")]
    assert log.objects == 3
