"""What cut-off publications leave in `_lamina`, and that the claims there stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lamina.format import paths
from lamina.storage import Storage
from lamina.store import CheckpointState, Version
from lamina.store.collection.leftovers import SHARED_TEMPORARY
from lamina.store.model import DELETE, WAIT
from lamina.testing import ManualClock
from tests.unit.store.writing import Query, names

MIN_AGE_MS = 600_000


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(Storage(str(tmp_path)), clock=ManualClock(time.time_ns() // 1_000_000))


def cut_off(tmp_path: Path, query: Query) -> set[str]:
    """Leaves what killed processes left of their publications, as old as the minimum age; gives the paths."""
    published = (paths.CHECKPOINT, paths.run_path(1, "run"), f"{paths.PINS}/clone")
    left = {f"{directory}/.{name}.7-1.tmp" for directory, name in map(paths.directory_and_name, published)}
    (tmp_path / paths.PINS).mkdir()
    aged = query.clock.now_ms() - MIN_AGE_MS
    for path in left:
        (tmp_path / path).write_bytes(b"half")
        os.utime(tmp_path / path, ns=(aged * 1_000_000, aged * 1_000_000))
    return left


def test_cut_off_publications_go_at_the_minimum_age_and_what_was_published_stays(query: Query, tmp_path: Path) -> None:
    store = query.open()
    version = query.run_batches(store, Version(0), 1)[-1]
    left = cut_off(tmp_path, query)
    (tmp_path / paths.RUNS / "notes.txt").write_bytes(b"not ours")
    young = tmp_path / paths.RUNS / ".2_run.7-2.tmp"
    young.write_bytes(b"half")
    os.utime(young, ns=((query.clock.now_ms() - MIN_AGE_MS + 1) * 1_000_000,) * 2)
    dry = store.collect(version, dry_run=True)
    assert all((tmp_path / path).exists() for path in left)
    done = store.collect(version, dry_run=False)
    for collected in (dry, done):
        found = {verdict.path: verdict for verdict in collected.verdicts if verdict.kind == SHARED_TEMPORARY}
        assert {path for path, verdict in found.items() if verdict.action == DELETE} == left
        assert found[f"{paths.RUNS}/{young.name}"].action == WAIT
        metrics = collected.metrics()
        assert (metrics["delete_shared_temporary_files"], metrics["delete_shared_temporary_bytes"]) == (3, 12)
    assert names(query.storage, "_lamina") == {"checkpoint"}
    assert names(query.storage, paths.RUNS) == {"1_run", "notes.txt", young.name}


def test_stores_of_other_partitions_do_not_look_there(query: Query, tmp_path: Path) -> None:
    store = query.open(partition=1)
    version = query.run_batches(store, Version(0), 1)[-1]
    left = cut_off(tmp_path, query)
    assert SHARED_TEMPORARY not in {verdict.kind for verdict in store.collect(version, dry_run=False).verdicts}
    assert all((tmp_path / path).exists() for path in left)


def test_a_store_that_a_late_process_of_an_old_run_opens_is_of_the_old_run_however_old_its_claim(
    query: Query, tmp_path: Path
) -> None:
    """Were the claim collected, the old run would claim the greatest epoch, and win over the newer one."""
    query.run_batches(query.open(), Version(0), 1)
    for name in names(query.storage, paths.RUNS):
        os.utime(tmp_path / paths.RUNS / name, ns=(10**9, 10**9))
    query.run = "newer"
    store = query.open()
    version = query.run_batches(store, Version(0), 3)[-1]
    store.collect(version, dry_run=False)
    late = CheckpointState.open(query.storage, run_id="run", read_only=False, clock=query.clock, ids=query.ids)
    newer = late.newer_run()
    assert newer is not None
    assert newer.id == "newer"
