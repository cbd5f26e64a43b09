"""A query whose processes are killed again and again, on each storage: nothing is lost, doubled or left behind.

Kills for three fifths of KILL_MINUTES with the checkpoint on this machine's disk, and for two fifths on S3 with tables
of RocksDB; the nightly profile has each backend on each storage, and one that is short of memory. Each campaign has
processes and files of its own, so they go side by side; the report shows what each prints.
"""

from __future__ import annotations

import os

import pytest
from rich.console import Console

from tests.kill.__main__ import run
from tests.kill.campaign import CHANGELOG, SPILLING, TABLES_CHANGELOG
from tests.kill.report import faults, shortfalls, show
from tests.kill.storage import APART, DISK, S3

MINUTES = float(os.environ.get("KILL_MINUTES", "3"))
CAMPAIGNS = [(DISK, "heap", 0.6), (S3, "rocksdb", 0.4)]
if os.environ.get("LAMINA_REPEATS"):
    CAMPAIGNS += [(S3, "heap", 0.4), (DISK, "rocksdb", 0.6), (DISK, SPILLING, 0.6)]
    CAMPAIGNS += [(DISK, CHANGELOG, 0.6), (APART, CHANGELOG, 0.6), (S3, CHANGELOG, 0.4), (DISK, TABLES_CHANGELOG, 0.6)]
LIMIT_S = 60 * (1.5 * MINUTES + 20)
"""A long campaign takes half as long again where it falls short, and at its end a slow machine may need minutes."""


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(("storage", "backend", "share"), CAMPAIGNS)
def test_no_kill_loses_doubles_or_leaves_anything_and_each_error_of_a_task_has_its_kill(
    storage: str, backend: str, share: float
) -> None:
    result = run(MINUTES * share, seed=1, storage=storage, broken=None, keep=None, backend=backend)
    show(result, Console(width=130))
    assert faults(result) == []
    assert shortfalls(result) == []
