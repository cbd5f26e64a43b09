"""A local disk without room for tables of RocksDB: what fails says so, commits go on, and nothing is lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.faults.children import NO_MOUNT, namespace, run_child


@pytest.fixture(scope="module")
def result(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    own = namespace()
    if own is None:
        pytest.skip(NO_MOUNT)
    folder = str(tmp_path_factory.mktemp("disk"))
    found: dict[str, Any] = run_child(repository, own, "full_local_disk_child", folder, timeout_s=600)
    return found


@pytest.mark.parametrize("step", ["materialization", "restore"])
def test_what_has_no_room_says_so_and_what_to_do(result: dict[str, Any], step: str) -> None:
    error = result["steps"][step]
    assert error is not None
    assert error["kind"] == "storage.failed"
    # a merge of RocksDB's says only that it failed
    assert any(words in error["message"] for words in ("No space left on device", "is the local disk full"))
    assert "local disk" in error["message"] or "room for the tables" in error["message"]


def test_the_step_that_had_no_room_is_named_by_the_file_that_it_was_writing(result: dict[str, Any]) -> None:
    for step, file in (
        ("ingesting", r"lamina-database-\w+/ingested-0\.tmp"),
        ("linking", r"lamina-database-\w+/\d+\.sst"),
    ):
        error = result["steps"][step]
        assert error is not None and error["kind"] == "storage.failed", (step, error)
        assert "No space left on device" in error["message"]
        assert re.search(file, error["message"]), (step, error)


@pytest.mark.parametrize(
    "step",
    [
        "commit after it",
        "materialization with room",
        "materialization after ingesting",
        "materialization after linking",
        "restore with room",
    ],
)
def test_all_else_goes_on(result: dict[str, Any], step: str) -> None:
    assert result["steps"][step] is None


def test_no_row_is_lost_and_no_part_of_a_job_is_left(result: dict[str, Any]) -> None:
    assert result["right"]
    assert not [name for name in result["left"] if name.startswith("lamina-database-")]
