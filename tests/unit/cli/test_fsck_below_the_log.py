"""`lamina fsck` checks the versions, too, that the query retains below those in Spark's commit log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina.components import SystemClock
from lamina.format.manifest import StoreIdentity
from lamina.storage import Listed, Storage
from lamina.store.check.checker import StoreChecker
from lamina.testing import FaultyBackend, ManualClock
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import QueryOnDisk

HOUR_S = 3600
WHOLE = {"compaction__mode": "full", "compaction__fullInterval": 1}
BY_AGE = {"retention__minVersionAgeMs": HOUR_S * 1000}


def checked(lamina: Lamina, query: QueryOnDisk, *options: str, code: int = 0) -> dict[str, Any]:
    """What fsck says about partition 0."""
    outcome = lamina("fsck", query.directory, "--json", *options)
    assert outcome.code == code, outcome.err or outcome.out
    store = json.loads(outcome.out)["stores"][0]
    assert isinstance(store, dict)
    return store


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.fixture(params=[1, 2], ids=["format v1", "format v2"])
def by_age(request: pytest.FixtureRequest, tmp_path: Path) -> QueryOnDisk:
    """Eight versions, each whole by itself and retained by its age, of which Spark's log has the newest three."""
    query = QueryOnDisk(tmp_path / "checkpoint", request.param, min_versions=2, **WHOLE, **BY_AGE)
    query.run(8)
    query.forget(3)
    return query


def test_versions_retained_by_age_are_checked_and_their_files_are_needed(lamina: Lamina, by_age: QueryOnDisk) -> None:
    found = checked(lamina, by_age)
    assert (found["whole"], found["files"], found["not_needed"]) == ([1, 2, 3, 4, 5, 6, 7, 8], 8, {})
    by_age.age(2 * HOUR_S)
    found = checked(lamina, by_age)
    assert (found["whole"], found["files"], found["not_needed"]["commit"]["files"]) == ([6, 7, 8], 3, 5)


@pytest.mark.parametrize("version", [1, 3, 5])
def test_damage_to_a_version_retained_by_age_is_found(lamina: Lamina, by_age: QueryOnDisk, version: int) -> None:
    path = by_age.file(by_age.attempts[version - 1][0])
    flip(path)
    found = checked(lamina, by_age, code=1)
    assert found["damaged"] == [version]
    assert str(path) in found["problems"][0]["message"]
    # what is not retained any more cannot be damaged
    by_age.age(2 * HOUR_S)
    assert checked(lamina, by_age)["whole"] == [6, 7, 8]


@pytest.mark.parametrize("options", [[], ["--quick"]], ids=["all", "quick"])
@pytest.mark.parametrize("version", [1, 3, 5])
def test_a_lost_file_of_a_version_retained_by_age_is_found(
    lamina: Lamina, by_age: QueryOnDisk, version: int, options: list[str]
) -> None:
    by_age.file(by_age.attempts[version - 1][0]).unlink()
    found = checked(lamina, by_age, *options, code=1)
    assert found["damaged"] == [version]
    assert found["problems"][0]["kind"] == "file.missing"
    assert found["whole"] == [number for number in range(1, 9) if number != version]


@pytest.mark.parametrize("format_version", [1, 2])
def test_rows_of_versions_retained_by_age_are_counted(lamina: Lamina, tmp_path: Path, format_version: int) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", format_version, min_versions=1, **BY_AGE)
    # the writer takes it that every batch before had as many rows: 10, 40 where there are 30, 45, 60
    for rows in (10, 20, 15, 15):
        query.run(1, rows)
    query.forget(2)
    found = checked(lamina, query, code=1)
    assert [(problem["kind"], problem["versions"]) for problem in found["problems"]] == [("state.counts", [2])]
    assert (found["whole"], found["rows"]) == ([1, 3, 4], 60)


@pytest.mark.parametrize("format_version", [1, 2])
def test_versions_retained_by_number_below_a_log_that_was_cut_are_checked(
    lamina: Lamina, tmp_path: Path, format_version: int
) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", format_version, min_versions=4, **WHOLE)
    query.run(8)
    query.forget(2)
    assert checked(lamina, query)["whole"] == [4, 5, 6, 7, 8]
    flip(query.file(query.attempts[4][0]))
    assert checked(lamina, query, code=1)["damaged"] == [5]


def test_what_an_earlier_run_collected_is_no_damage(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", min_versions=1, **(WHOLE | {"compaction__fullInterval": 2}))
    query.run(7)
    query.forget(2)
    # version 7 stands on 6, and 5 on 4
    for version in (2, 4):
        query.file(query.attempts[version - 1][0]).unlink()
    query.restart("run-2", **WHOLE, **BY_AGE)
    query.run(1)
    query.forget(2)
    found = checked(lamina, query)
    assert (found["whole"], found["not_needed"]["commit"]["files"]) == ([1, 6, 7, 8], 2)
    # Spark can go back to version 7, which needs it
    query.file(query.attempts[5][0]).unlink()
    assert checked(lamina, query, code=1)["damaged"] == [6, 7]


def test_versions_that_leave_retention_while_they_are_checked_are_no_damage(by_age: QueryOnDisk) -> None:
    clock = ManualClock(SystemClock().now_ms())
    state = Storage(f"{by_age.directory}/state")
    gone = [by_age.file(attempts[0]) for attempts in by_age.attempts[:5]]

    class Collecting(FaultyBackend):
        """Two hours pass as soon as the store was listed, and the query collects."""

        def list(self, directory: str) -> Sequence[Listed]:
            found = super().list(directory)
            if directory == "0/0" and gone[0].exists():
                clock.advance(2 * HOUR_S * 1000)
                for path in gone:
                    path.unlink()
            return found

    uuid = json.loads((by_age.directory / "state/_lamina/checkpoint").read_text())["uuid"]
    checker = StoreChecker(
        Storage(state.url, backend=Collecting(state._backend)),
        StoreIdentity(uuid, 0, 0, "default"),
        {number: by_age.attempts[number - 1][0] for number in (6, 7, 8)},
        clock=clock,
    )
    found = checker.check()
    assert (found.whole, found.problems, found.collected) == ((6, 7, 8), (), (1, 2, 3, 4, 5))
