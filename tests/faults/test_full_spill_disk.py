"""Spark's local disk without room for the changes of a batch: the query says so, leaves nothing, and loses no row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.children import NO_MOUNT, namespace, run_child


@pytest.fixture(scope="module")
def result(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    own = namespace()
    if own is None:
        pytest.skip(NO_MOUNT)
    folder = str(tmp_path_factory.mktemp("spill"))
    found: dict[str, Any] | None = run_child(
        repository, own, "full_spill_disk_child", folder, timeout_s=900, PYSPARK_PYTHON=sys.executable
    )
    assert found is not None, "the query did not end"
    return found


def test_a_batch_whose_changes_find_no_room_fails_and_says_where_and_what_to_do(result: dict[str, Any]) -> None:
    full = result["full"]
    # the batch that outgrows the memory is the second one
    assert full["answers"] == {"0": [1_000, 1_000]}
    assert "[storage.failed] changes of a batch for which memory is short cannot be kept in " in full["failure"]
    assert "/lamina-spill-" in full["failure"]
    assert "No space left on device" in full["failure"]
    assert "make room in Spark's local directory (spark.local.dir)" in full["failure"]


def test_what_it_kept_there_until_then_is_gone(result: dict[str, Any]) -> None:
    assert result["left"] == []


def test_with_room_it_goes_on_and_has_lost_nothing(result: dict[str, Any]) -> None:
    assert result["with room"]["failure"] is None
    assert result["with room"]["answers"] == {"1": [500_000, 501_000], "2": [500_000, 501_010]}
    assert result["with room"]["spilled"] > 1 << 20
