"""Stateful operators through Spark Connect, in a session that `lamina.configure` made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.connect_queries import QUERIES, RUNS, feed
from tests.spark.programs import run_program
from tests.spark.streams import BACKEND, LAMINA, OF_MODE, Query, Streams

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `connect_queries` left: a Connect server and a classic session cannot be in one process."""
    folder = tmp_path_factory.mktemp("connect")
    # SPARK_TESTING: the server takes a port that is free.
    run_program("connect_queries.py", str(folder), SPARK_TESTING="1")
    return folder


def rows_of(folder: Path) -> list[str]:
    return sorted(line for path in folder.glob("part-*.json") for line in path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(
    ("name", "query", "provider"),
    [
        pytest.param(*entry, marks=pytest.mark.covers(entry[0], "Python, Spark Connect", "v2"), id=entry[0])
        for entry in QUERIES
    ],
)
def test_a_query_through_connect_gives_the_same_rows_before_and_after_a_restart(
    connected: Path, streams: Streams, name: str, query: Query, provider: str
) -> None:
    for run in range(RUNS):
        theirs: list[str] = []
        feed(streams, name, run)
        streams.run(query, provider, each_batch=lambda frame, _, to=theirs: to.extend(frame.toJSON().collect()))
        assert rows_of(connected / name / "rows" / str(run)) == sorted(theirs)
    assert theirs
    state = connected / name / "checkpoint" / LAMINA.rsplit(".", 1)[1] / "state"
    assert any(state.rglob("*.lam"))
    assert any(state.rglob("*.log")) == bool(OF_MODE)
    assert any(state.rglob("*.sst")) == (BACKEND == "rocksdb")
