"""Finding the stores of a checkpoint, with the versions that Spark's log names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.checkpoint import CheckpointLogs, StoreSelection, logged_stores, selected_stores, survey_operators
from lamina.errors import StateError
from lamina.storage import Storage
from lamina.testing import FaultyBackend
from tests.unit.cli.query_on_disk import QueryOnDisk

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "spark-4.3"


def selected(case: str, selection: StoreSelection) -> list[tuple[str, int, int, str]]:
    logs = CheckpointLogs(Storage(str(GOLDEN / case)))
    operators = survey_operators(logs, logs.commits()[-1])
    stores = selected_stores(operators, "uuid", selection)
    return [(store.checkpoint, store.operator, store.partition, store.name) for store in stores]


def test_every_store_of_every_partition_of_every_operator_is_found() -> None:
    assert selected("two-operators-rocksdb-v2", StoreSelection()) == [
        ("uuid", operator, partition, "default") for operator in (0, 1) for partition in (0, 1)
    ]
    assert len(selected("join-2-hdfs-v1", StoreSelection())) == 8


def test_a_global_limit_has_one_store_whatever_its_metadata_says() -> None:
    assert selected("limit-rocksdb-v2", StoreSelection()) == [("uuid", 0, 0, "default")]


def test_a_selection_takes_what_fits_all_that_it_names() -> None:
    assert selected("two-operators-rocksdb-v2", StoreSelection(operator=1, partition=0)) == [("uuid", 1, 0, "default")]
    right = [store[2:] for store in selected("join-2-hdfs-v1", StoreSelection(store="right-keyToNumValues"))]
    assert right == [(0, "right-keyToNumValues"), (1, "right-keyToNumValues")]


def test_a_selection_that_takes_nothing_says_what_there_is() -> None:
    with pytest.raises(StateError) as error:
        selected("two-operators-rocksdb-v2", StoreSelection(operator=2, store="left"))
    assert error.value.kind == "state.not-retained"
    assert error.value.message == (
        "the checkpoint has no operator 2, store left: its operators are 0 to 1, their partitions 0 to 1, their stores "
        "default"
    )


@pytest.mark.parametrize("format_version", [1, 2])
def test_a_query_that_leaves_all_of_a_listing_of_its_log_behind_is_listed_again(
    tmp_path: Path, format_version: int
) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", format_version)
    query.run(2)

    class GoingOn(FaultyBackend):
        """The query goes on as soon as its log was listed."""

        def list(self, directory: str) -> Any:
            found = super().list(directory)
            if directory == "commits" and query.version == 2:
                query.run(4)
                query.forget(3)
            return found

    checkpoint = Storage(str(query.directory))
    found = logged_stores(Storage(checkpoint.url, backend=GoingOn(checkpoint._backend)), StoreSelection())
    assert [sorted(found.log.store(one).named) for one in found.identities] == [[4, 5, 6], [4, 5, 6]]


def test_a_query_that_commits_its_first_batch_meanwhile_has_its_state(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint")
    kept = tmp_path / "kept"
    (query.directory / "state/_lamina").rename(kept)
    query.run(1)

    class Beginning(FaultyBackend):
        def list(self, directory: str) -> Any:
            if directory == "commits" and kept.exists():
                kept.rename(query.directory / "state/_lamina")
            return super().list(directory)

    inner = Storage(str(query.directory))
    stores = logged_stores(Storage(inner.url, backend=Beginning(inner._backend)), StoreSelection())
    assert len(stores.identities) == 2
    assert stores.runs
