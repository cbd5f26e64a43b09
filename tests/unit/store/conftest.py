"""A query on local files whose age is the test's to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.storage import Storage
from lamina.testing import ManualClock
from tests.unit.store.aging import START_MS, Aged
from tests.unit.store.grouped import Grouped
from tests.unit.store.writing import Query


@pytest.fixture
def query(tmp_path: Path) -> Query:
    clock = ManualClock(START_MS)
    return Query(Storage(str(tmp_path), backend=Aged(tmp_path, clock)), min_versions=3, clock=clock)


@pytest.fixture
def grouped(query: Query) -> Grouped:
    return Grouped(query)
