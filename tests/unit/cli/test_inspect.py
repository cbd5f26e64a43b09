"""`lamina inspect` on checkpoints that VersionedStore wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import GOLDEN, QueryOnDisk

PYTHON = Path(__file__).resolve().parents[3] / "python"


def inspected(lamina: Lamina, query: QueryOnDisk, *options: str, code: int = 0) -> dict[str, Any]:
    outcome = lamina("inspect", query.directory, "--json", "--details", *options)
    assert outcome.code == code, outcome.err
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def statuses(store: dict[str, Any]) -> dict[str, str]:
    return {version["attempt"]: version["status"] for version in store["versions"]}


def test_versions_are_committed_uncommitted_or_superseded(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(2)
    query.plan()
    query.execute()
    query.restart("run-2")
    retried = query.execute(task_attempt=1)
    query.finish(retried)
    query.run(1)
    query.plan()
    pending = query.execute()
    found = inspected(lamina, query)
    for partition, store in enumerate(found["stores"]):
        by_status = statuses(store)
        committed = [attempts[partition] for attempts in query.attempts]
        assert [attempt for attempt, status in by_status.items() if status == "committed"] == committed
        assert by_status.pop(pending[partition]) == "uncommitted"
        assert [status for attempt, status in by_status.items() if attempt not in committed] == ["superseded"]
        assert (store["version"], store["attempt"]) == (4, committed[-1])
    assert found["format_version"] == query.format_version
    assert [run["epoch"] for run in found["runs"]] == [1, 2]


def test_the_attempt_that_the_commit_log_names_counts_and_not_a_later_one(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", 2)
    query.run(1)
    query.plan()
    named, later = query.execute(), query.execute(task_attempt=9)
    query.finish(named)
    (first, _) = inspected(lamina, query)["stores"]
    assert first["attempt"] == named[0]
    assert statuses(first)[later[0]] == "superseded"


def test_rows_sizes_and_chains_are_those_of_the_manifests(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(3, rows=20)
    store = inspected(lamina, query)["stores"][1]
    assert (store["rows"], store["state_bytes"]) == (60, 480)
    newest = store["versions"][-1]
    manifest = newest["manifest"]
    assert newest["bytes"] == query.file(query.attempts[-1][1], 1).stat().st_size
    assert (manifest["kind"], manifest["base"], manifest["changes"]) == ("increment", 2, 20)
    assert [(link["from"], link["to"]) for link in manifest["chain"]] == [(2, 3), (1, 2), (0, 1)]
    assert [file["used"] for file in store["files"]] == [True] * 3


def test_what_was_merged_is_not_to_be_replayed(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", grouped=True, changelog__materializeParts=2)
    query.run(4)
    query.materialize()
    query.run(1)
    for store in inspected(lamina, query)["stores"]:
        (increment,) = [link for link in store["versions"][-1]["manifest"]["chain"] if link["kind"] == "increment"]
        assert store["unmerged"] == {"increments": 1, "bytes": increment["length"], "in_log": 1}
    out = lamina("inspect", query.directory).out
    assert re.search(r"not merged +2 commits, .* to replay at a restart; 2 of them in the log; 1 of one store", out)
    whole = QueryOnDisk(tmp_path / "whole", compaction__mode="full", compaction__fullInterval=1)
    whole.run(2)
    assert re.search(r"not merged +no commit *\n", lamina("inspect", whole.directory).out)


def test_what_is_stored_is_measured_by_what_the_newest_version_needs(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", compaction__mode="full", compaction__fullInterval=1)
    query.run(3)
    stores = inspected(lamina, query)["stores"]
    for store in stores:
        *old, newest = (version["bytes"] for version in store["versions"])
        assert (store["stored_bytes"], store["newest_bytes"]) == (sum(old) + newest, newest)
    stored, newest = (sum(store[name] for store in stores) for name in ("stored_bytes", "newest_bytes"))
    assert re.search(
        rf"space +[0-9.]+ KiB, {stored / newest:.2f} times what the newest", lamina("inspect", query.directory).out
    )


def test_a_query_before_its_first_commit_has_only_uncommitted_versions(lamina: Lamina, query: QueryOnDisk) -> None:
    query.plan()
    query.execute()
    found = inspected(lamina, query)
    assert found["batches"] == {"planned": [0], "committed": []}
    assert all(set(statuses(store).values()) == {"uncommitted"} for store in found["stores"])
    assert all(store["version"] is None for store in found["stores"])
    assert all(store["unmerged"] is None for store in found["stores"])
    assert "replay" not in lamina("inspect", query.directory).out


def test_versions_whose_commit_log_was_purged_are_known_by_lineage(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(4)
    for batch in range(3):
        (query.directory / "commits" / str(batch)).unlink()
    (store, _) = inspected(lamina, query)["stores"]
    assert list(statuses(store).values()) == ["committed"] * 4


def test_a_batch_that_changed_nothing_has_no_file_of_its_own(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", 2)
    query.run(1)
    query.plan()
    query.finish(query.attempts[0])
    (store, _) = inspected(lamina, query)["stores"]
    assert (store["version"], store["attempt"], store["rows"]) == (2, query.attempts[0][0], 10)
    assert list(statuses(store).values()) == ["committed"]
    assert store["problems"] == []


def test_a_store_that_never_had_rows_is_empty(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", 2)
    query.plan()
    query.finish([f"L1.0.1.e.-.{partition:032x}" for partition in range(2)])
    outcome = lamina("inspect", query.directory, "--partition", "0")
    assert outcome.code == 0
    assert "the store is empty" in outcome.out


def test_without_details_only_the_newest_committed_manifest_is_read(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(3)
    (store, _) = json.loads(lamina("inspect", query.directory, "--json").out)["stores"]
    assert [version["manifest"] is not None for version in store["versions"]] == [False, False, True]
    (only,) = json.loads(lamina("inspect", query.directory, "--json", "--partition", "0").out)["stores"]
    assert all(version["manifest"] is not None for version in only["versions"])


def test_filters_select_stores(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(1)
    found = inspected(lamina, query, "--operator", "0", "--partition", "1", "--store", "default")
    assert [(store["operator"], store["partition"]) for store in found["stores"]] == [(0, 1)]


def test_a_filter_that_selects_nothing_says_what_there_is(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(1)
    outcome = lamina("inspect", query.directory, "--partition", "7")
    assert outcome.code == 1
    assert "has no partition 7" in outcome.err
    assert "partitions 0 to 1" in outcome.err


def test_a_lost_file_of_the_newest_version_is_a_problem(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(3)
    lost = query.file(query.attempts[0][0])
    lost.unlink()
    found = inspected(lamina, query, code=1)
    (problem,) = found["problems"]
    assert str(lost) in problem
    assert found["stores"][1]["problems"] == []


def test_a_file_of_another_size_than_referred_to_is_a_problem(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(2)
    longer = query.file(query.attempts[0][0])
    longer.write_bytes(longer.read_bytes() + b"x")
    outcome = lamina("inspect", query.directory)
    assert outcome.code == 1
    assert f"{longer} has {longer.stat().st_size} bytes; version 2 needs" in outcome.out


def test_a_damaged_manifest_is_a_problem_and_the_rest_is_shown(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(3)
    damaged = query.file(query.attempts[2][0])
    data = bytearray(damaged.read_bytes())
    data[-100] ^= 1
    damaged.write_bytes(data)
    found = inspected(lamina, query, code=1)
    assert all(str(damaged) in problem for problem in found["problems"])
    assert found["problems"]
    assert found["stores"][1]["rows"] == 30
    outcome = lamina("inspect", query.directory)
    assert outcome.code == 1
    assert "✗" in outcome.out
    assert "✓" in outcome.out
    told = " ".join(outcome.out.split())
    assert re.search(r"not merged 3 commits, .* 3 of one store at most; 1 store could not be read", told)


def test_tables_show_operators_and_stores_and_details_of_a_single_store(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(2)
    query.plan()
    query.execute()
    outcome = lamina("inspect", query.directory)
    assert outcome.code == 0
    assert "stateStoreSave" in outcome.out
    assert "2 is planned and not committed" in outcome.out
    assert len(re.findall(r"^ 0/[01]/default ", outcome.out, re.MULTILINE)) == 2
    assert "uncommitted" not in outcome.out
    single = lamina("inspect", query.directory, "--partition", "0").out
    assert "uncommitted" in single
    assert "window, carrier" in single
    assert f"{query.attempts[0][0][-32:-24]}….lam" in single


@pytest.mark.parametrize("columns", [80, 140])
def test_no_number_is_cut_or_folded(
    lamina: Lamina, query: QueryOnDisk, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    query.run(2, rows=1234)
    out = lamina("inspect", query.directory, "--details").out
    assert max(len(line) for line in out.splitlines()) <= columns
    assert "2,468" in out
    assert "…" not in out.replace("….lam", "")


def test_a_checkpoint_of_another_provider_shows_what_spark_wrote(lamina: Lamina) -> None:
    outcome = lamina("inspect", GOLDEN, "--details")
    assert outcome.code == 0
    assert "RocksDBStateStoreProvider, checkpoint format v2; lamina does not keep this state" in outcome.out
    assert "window, carrier" in outcome.out


def test_names_that_output_cannot_hold_are_shown_by_their_numbers(query: QueryOnDisk) -> None:
    query.run(1)
    state = os.fsencode(query.directory / "state" / "0" / "0")
    with open(state + b"/caf\xe9-\xc3\xa9", "wb"):
        pass
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), "PYTHONIOENCODING": "ascii"}
    for options in (["--details"], ["--details", "--json"]):
        command = [sys.executable, "-m", "lamina.cli", "inspect", str(query.directory), *options]
        answer = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        assert "caf" in answer.stdout
    names = [file["name"] for store in json.loads(answer.stdout)["stores"] for file in store["files"]]
    assert "caf\udce9-\xe9" in names


def test_inspect_changes_nothing(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(2)
    before = {path: path.stat().st_mtime_ns for path in query.directory.rglob("*")}
    lamina("inspect", query.directory, "--details")
    assert {path: path.stat().st_mtime_ns for path in query.directory.rglob("*")} == before


def test_a_commit_log_that_names_too_few_stores_is_a_problem(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", 2)
    query.run(1)
    entry = query.directory / "commits" / "0"
    entry.write_text(entry.read_text().replace(f'[["{query.attempts[0][0]}"], ', "[[], "))
    (problem,) = inspected(lamina, query, code=1)["problems"]
    assert str(entry) in problem
    assert "partition 0, store default" in problem


def test_files_are_listed_in_the_order_of_versions(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(11, rows=1)
    files = inspected(lamina, query)["stores"][0]["files"]
    assert [int(file["name"].partition("_")[0]) for file in files] == list(range(1, 12))


@pytest.mark.parametrize("command", ["inspect", "fsck", "gc"])
def test_brackets_in_a_path_are_shown_as_they_are(lamina: Lamina, tmp_path: Path, command: str) -> None:
    query = QueryOnDisk(tmp_path / "w[bold]y[" / "x]", 2)
    query.run(1)
    outcome = lamina(command, query.directory)
    assert outcome.code == 0, outcome.err
    if command == "inspect":
        assert "w[bold]y[" in "".join(outcome.out.split())
    (tmp_path / "closed[").mkdir()
    query = QueryOnDisk(tmp_path / "closed[" / "x]", 2)
    query.run(1)
    assert lamina(command, query.directory).code == 0
