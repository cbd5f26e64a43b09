"""`lamina gc` explains each file, deletes by the collector's rules, and nothing above Spark's commit log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina.storage import Storage
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import QueryOnDisk

HOUR_S = 3600


def files(query: QueryOnDisk) -> dict[str, Path]:
    return {path.name: path for path in (query.directory / "state/0/0").iterdir() if path.suffix in (".lam", ".seg")}


def collected(lamina: Lamina, query: QueryOnDisk, *options: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """What gc says about the files of partition 0, by name."""
    outcome = lamina("gc", query.directory, "--json", *options)
    assert outcome.code == code, outcome.err
    (store,) = [store for store in json.loads(outcome.out)["stores"] if store["partition"] == 0]
    return {file["file"]: file for file in store["files"]}


@pytest.fixture
def lost(query: QueryOnDisk) -> tuple[QueryOnDisk, str]:
    """Three versions, the second of which has an attempt that lost; and that attempt's file."""
    query.run(1)
    query.plan()
    first = query.execute()
    query.finish(query.execute(task_attempt=1))
    query.run(1)
    return query, query.file(first[0]).name


def test_an_attempt_that_sparks_log_names_stays_whatever_the_lineage_says(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint")
    query.plan()
    first, other = query.execute()[0], query.execute(task_attempt=1)
    query.finish(other)
    query.run(1)
    entry = query.directory / "commits" / "0"
    entry.write_text(entry.read_text().replace(other[0], first))
    name = query.file(first).name
    query.age(24 * HOUR_S)
    found = collected(lamina, query)[name]
    assert (found["action"], found["reason"]) == ("keep", "a version in Spark's log needs it")


def test_an_attempt_that_lost_goes_after_the_minimum_age_and_the_rest_stays(
    lamina: Lamina, lost: tuple[QueryOnDisk, str]
) -> None:
    query, name = lost
    before = set(files(query))
    young = collected(lamina, query)
    assert young[name]["action"] == "wait"
    assert young[name]["reason"].startswith("no retained version needs it")
    assert set(files(query)) == before
    query.age(HOUR_S)
    dry = collected(lamina, query, "--dry-run")
    assert dry[name]["action"] == "delete"
    assert dry[name]["age_ms"] >= HOUR_S * 1000
    assert set(files(query)) == before
    assert collected(lamina, query) == {
        **dry,
        name: {**dry[name], "age_ms": pytest.approx(dry[name]["age_ms"], abs=60_000)},
    } | {other: {**file, "age_ms": pytest.approx(file["age_ms"], abs=60_000)} for other, file in dry.items()}
    assert set(files(query)) == before - {name}
    assert lamina("fsck", query.directory).code == 0


@pytest.mark.parametrize("format_version", [1, 2])
@pytest.mark.parametrize(
    ("min_versions", "settings", "kept", "waiting"),
    [
        # a version every half an hour, of which Spark's log has the newest two
        (1, {}, [9, 10], []),
        (4, {}, [6, 7, 8, 9, 10], []),
        (1, {"retention__minAgeMs": 50 * 60_000}, [9, 10], [8]),
        (1, {"retention__minVersionAgeMs": 100 * 60_000}, [7, 8, 9, 10], []),
        (1, {"retention__minVersionAgeMs": 100 * 60_000, "retention__minAgeMs": 50 * 60_000}, [7, 8, 9, 10], [5, 6]),
    ],
)
def test_the_query_is_collected_by_what_it_was_last_run_with(
    lamina: Lamina,
    tmp_path: Path,
    format_version: int,
    min_versions: int,
    settings: dict[str, int],
    kept: list[int],
    waiting: list[int],
) -> None:
    whole = {"compaction__mode": "full", "compaction__fullInterval": 1}
    query = QueryOnDisk(tmp_path / "checkpoint", format_version, min_versions=min_versions, **whole, **settings)
    for _ in range(10):
        query.run(1)
        query.age(29 * 60)
    query.forget(2)
    found = collected(lamina, query)
    actions = [found[query.file(attempts[0]).name]["action"] for attempts in query.attempts]
    assert actions == ["keep" if n in kept else "wait" if n in waiting else "delete" for n in range(1, 11)]
    assert set(files(query)) == {query.file(query.attempts[n - 1][0]).name for n in (*waiting, *kept)}
    assert lamina("fsck", query.directory).code == 0


def test_every_version_in_sparks_log_stays_whatever_the_query_was_last_run_with(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", min_versions=1, compaction__mode="full", compaction__fullInterval=1)
    query.run(6)
    query.forget(4)
    query.age(HOUR_S)
    collected(lamina, query)
    assert set(files(query)) == {query.file(attempts[0]).name for attempts in query.attempts[2:]}


@pytest.mark.parametrize("log", ["commits/0", "commits/1", "commits/2", "state/0/_metadata/metadata"])
def test_beside_an_unknown_version_of_one_of_sparks_logs_nothing_goes(
    lamina: Lamina, lost: tuple[QueryOnDisk, str], log: str
) -> None:
    query, name = lost
    query.age(HOUR_S)
    before = set(files(query))
    path = query.directory / log
    known = path.read_text()
    path.write_text("v9" + known[2:])
    outcome = lamina("gc", query.directory)
    assert outcome.code == 1
    assert f"{path}: has version v9" in outcome.err
    assert set(files(query)) == before
    path.write_text(known)
    assert collected(lamina, query)[name]["action"] == "delete"
    assert set(files(query)) == before - {name}


def test_each_file_is_explained(lamina: Lamina, lost: tuple[QueryOnDisk, str]) -> None:
    query, name = lost
    query.plan()
    above = query.execute()
    (query.directory / "state/0/0/notes.txt").write_text("mine")
    query.age(HOUR_S)
    found = collected(lamina, query, "--dry-run")
    assert found[query.file(above[0]).name]["reason"].startswith("newer than version 3")
    assert found["notes.txt"]["reason"] == "not a file of lamina"
    assert found[query.file(query.attempts[0][0]).name]["reason"] == "version 3 needs it"
    outcome = lamina("gc", query.directory, "--dry-run")
    assert "2 files" in outcome.out
    assert "would be deleted; nothing was" in outcome.out
    assert name.split(".")[-2][:8] in outcome.out
    assert query.attempts[0][0].split(".")[-1][:8] not in outcome.out
    assert query.attempts[0][0].split(".")[-1][:8] in lamina("gc", query.directory, "--dry-run", "--details").out


def test_a_narrow_terminal_shows_each_store_in_a_line(
    lamina: Lamina, lost: tuple[QueryOnDisk, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    query, _ = lost
    lines = lamina("gc", query.directory, "--dry-run").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("0/0/default", " 0/0/default")) and "KiB)" in line for line in lines) == 1


def test_nothing_above_the_newest_version_in_sparks_log_goes_however_old_it_is(
    lamina: Lamina, query: QueryOnDisk
) -> None:
    query.run(2)
    query.plan()
    query.execute()
    query.execute(task_attempt=1)
    query.age(100 * HOUR_S)
    before = set(files(query))
    assert all(file["action"] == "keep" for file in collected(lamina, query).values())
    assert set(files(query)) == before


def test_before_the_first_commit_nothing_goes(lamina: Lamina, query: QueryOnDisk) -> None:
    query.plan()
    query.execute()
    query.age(100 * HOUR_S)
    before = set(files(query))
    outcome = lamina("gc", query.directory)
    assert outcome.code == 0
    assert "committed no batch yet" in outcome.out
    assert set(files(query)) == before


def test_a_store_whose_lineage_is_damaged_is_left_alone_and_named(
    lamina: Lamina, lost: tuple[QueryOnDisk, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, name = lost
    query.age(HOUR_S)
    damaged = query.file(query.attempts[1][0])
    damaged.write_bytes(damaged.read_bytes()[:-1])
    monkeypatch.setenv("COLUMNS", "40")
    outcome = lamina("gc", query.directory)
    assert outcome.code == 1
    assert str(damaged) in outcome.out
    assert name in files(query)


def test_where_a_deletion_fails_it_is_not_said_that_nothing_was_deleted(
    lamina: Lamina, lost: tuple[QueryOnDisk, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, name = lost
    query.age(HOUR_S)
    delete = Storage.delete_many

    def deleted_in_part(storage: Storage, paths: Sequence[str]) -> None:
        delete(storage, paths)
        raise LaminaError.from_kind("storage.denied", "the other bucket is not ours")

    monkeypatch.setattr(Storage, "delete_many", deleted_in_part)
    outcome = lamina("gc", query.directory)
    assert name not in files(query)
    assert outcome.code == 1
    assert "the other bucket is not ours; part of what goes may be gone" in " ".join(outcome.out.split())
    assert "nothing is deleted" not in outcome.out
