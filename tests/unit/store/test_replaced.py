"""Versions built from nothing by who knows the number of the one before alone, as Spark's offline repartition does."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.checkpoint import CheckpointLogs
from lamina.format.entries import PUT
from lamina.storage import Storage
from lamina.store import Version
from lamina.testing import ManualClock
from tests.unit.cli.query_on_disk import QueryOnDisk
from tests.unit.store.writing import Query


@pytest.mark.parametrize("format_version", [1, 2])
def test_what_is_there_stays_retained_where_the_store_rested_before(format_version: int) -> None:
    """Or was no partition's for a while."""
    clock = ManualClock(1_000_000_000_000)
    query = Query(format_version=format_version, clock=clock)
    store = query.open()
    versions = query.run_batches(store, Version(0), 5)
    emptied = query.commit(store, Version(versions[-1].version + 2), {b"x": (PUT, b"y")}, load_empty=True)
    found = query.open().manifest(emptied)
    assert found is not None
    assert [attempt for attempt, _ in found.lineage] == [version.attempt for version in reversed(versions)]
    assert found.base is None
    clock.advance(86_400_000)
    query.run = "next"
    query.open().collect(emptied, dry_run=False)
    query.assert_restores(query.open(), versions[0])
    query.assert_restores(query.open(), emptied)


def test_of_two_attempts_the_one_that_sparks_log_names_is_replaced(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "query")
    query.run(2)
    query.plan()
    named, later = query.execute(), query.execute(task_attempt=9)
    assert named != later
    query.finish(named)
    assert [query.replace(partition).manifest.lineage[0] for partition in (0, 1)] == [(one, 3) for one in named]


def test_without_ids_the_attempt_is_found_by_arbitration(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "query", format_version=1)
    query.run(2)
    query.plan()
    query.execute()
    later = query.execute(task_attempt=9)
    query.finish(later)
    assert query.replace(0).manifest.lineage[0] == (later[0], 3)


def test_a_partition_that_sparks_log_did_not_have_is_found_by_its_files(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "query")
    query.run(2)
    query.plan()
    named = query.execute()
    query.execute(task_attempt=9)
    query.finish(named)
    # the second partition was taken away, and comes back
    query.plan()
    query.finish(query.execute()[:1])
    for path in query.directory.glob("state/0/1/4_*"):
        path.unlink()
    assert query.replace(1).manifest.lineage[0] == (named[1], 3)


def test_without_ids_a_query_has_as_many_partitions_as_its_newest_batch_was_planned_with(tmp_path: Path) -> None:
    """Operator metadata v1 stays as it was; a batch that is not there says nothing."""
    query = QueryOnDisk(tmp_path / "query", format_version=1)
    query.run(1)
    planned = query.directory / "offsets/0"
    planned.write_text(planned.read_text().replace('shuffle.partitions":"2"', 'shuffle.partitions":"5"'))
    logs = CheckpointLogs(Storage(str(query.directory)))
    (operator,) = logs.operators()
    (entry,) = logs.commits()
    assert logs.partitions(operator, entry) == 5
    planned.unlink()
    assert logs.partitions(operator, entry) == 2
