"""`transformWithState` from Python, with rows and with pandas: each kind of state, timers, TTL, initial state and
restarts, beside the built-in RocksDB provider.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from lamina.spark.configure import EXTENSION
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program
from tests.spark.streams import LAMINA, ROCKSDB, Query, Run, Streams, configured
from tests.spark.test_operators import rows, run_from_files

Frames = dict[str, DataFrame]
Key = tuple[Any, ...]

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
OUTPUT = "k string, n long, total long, smallest long, recent string, seen string, timers string"
SUMS = "k string, t timestamp, v long"


class Everything(StatefulProcessor):
    """Keeps what came for a key in one state of each kind, and ends it by a timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.totals = handle.getValueState("totals", "n long, total long")
        self.recent = handle.getListState("recent", "v long")
        self.seen = handle.getMapState("seen", "v long", "n long")
        self.kept = handle.getValueState("kept", "v long")

    def take(self, key: Key, values: list[int], watermark: int) -> dict[str, Any]:
        n, total = self.totals.get() if self.totals.exists() else (0, 0)
        self.totals.update((n + len(values), total + sum(values)))
        for value in values:
            self.recent.appendValue((value,))
            count = self.seen.getValue((value % 5,))
            self.seen.updateValue((value % 5,), ((count[0] if count else 0) + 1,))
        kept = self.kept.get() if self.kept.exists() else (10_000,)
        self.kept.update((min(kept[0], *values),))
        newest = [value for (value,) in self.recent.get()][-3:]
        if n > 20:
            self.recent.put([(value,) for value in newest])
        if self.seen.containsKey((4,)):
            self.seen.removeKey((4,))
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(watermark + 240_000)
        return self.shown(key)

    def expire(self, key: Key) -> dict[str, Any]:
        shown = self.shown(key)
        for state in (self.totals, self.recent, self.seen, self.kept):
            state.clear()
        return {**shown, "n": -shown["n"]}

    def shown(self, key: Key) -> dict[str, Any]:
        n, total = self.totals.get()
        return {
            "k": key[0],
            "n": n,
            "total": total,
            "smallest": self.kept.get()[0],
            "recent": str([value for (value,) in self.recent.get()]),
            "seen": str(sorted((v, count) for (v,), (count,) in self.seen.iterator())),
            "timers": str(len(list(self.handle.listTimers()))),
        }

    def close(self) -> None:
        pass


class WithRows(Everything):
    def handleInputRows(self, key: Key, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        values = sorted(row.v for row in rows)
        yield Row(**self.take(key, values, timerValues.getCurrentWatermarkInMs()))

    def handleExpiredTimer(self, key: Key, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(**self.expire(key))

    def handleInitialState(self, key: Key, initialState: Row, timerValues: Any) -> None:  # noqa: N802, N803
        self.totals.update((initialState.n, initialState.total))


class WithPandas(Everything):
    def handleInputRows(self, key: Key, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        values = sorted(int(value) for frame in rows for value in frame["v"])
        yield pd.DataFrame([self.take(key, values, timerValues.getCurrentWatermarkInMs())])

    def handleExpiredTimer(self, key: Key, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        yield pd.DataFrame([self.expire(key)])

    def handleInitialState(self, key: Key, initialState: pd.DataFrame, timerValues: Any) -> None:  # noqa: N802, N803
        self.totals.update((int(initialState["n"].iloc[0]), int(initialState["total"].iloc[0])))


class Expiring(StatefulProcessor):
    """Counts rows in states that live for a time: one shorter than a batch takes, one longer than the test.

    In the batch after the one with its rows a key shows once more what is left, by a timer.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.short = handle.getValueState("short", "n long", 1)
        self.long = handle.getValueState("long", "n long", 3_600_000)
        self.list = handle.getListState("list", "v long", 1)
        self.map = handle.getMapState("map", "v long", "n long", 3_600_000)

    def handleInputRows(self, key: Key, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        values = sorted(row.v for row in rows)
        for state in (self.short, self.long):
            state.update((self.count(state) + len(values),))
        self.list.appendList([(value,) for value in values])
        for value in values:
            self.map.updateValue((value % 5,), (value,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield self.shown(key, False)

    def handleExpiredTimer(self, key: Key, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield self.shown(key, True)

    def count(self, state: Any) -> int:
        return int(state.get()[0]) if state.exists() else 0

    def shown(self, key: Key, by_timer: bool) -> Row:
        return Row(
            k=key[0],
            short=self.count(self.short),
            long=self.count(self.long),
            list=str([value for (value,) in self.list.get()]),
            map=str(sorted((v, n) for (v,), (n,) in self.map.iterator())),
            timer=by_timer,
        )

    def close(self) -> None:
        pass


class Evolving(StatefulProcessor):
    """Keeps counts in rows that have a second column, which differs between builds of the query."""

    def __init__(self, schema: str, second: Any) -> None:
        self.schema = schema
        self.second = second

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", self.schema)
        self.list = handle.getListState("list", self.schema)
        self.map = handle.getMapState("map", "v long", self.schema)

    def handleInputRows(self, key: Key, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        found = tuple(self.value.get()) if self.value.exists() else None
        values = sorted(row.v for row in rows)
        self.value.update(((found[0] if found else 0) + len(values), self.second))
        self.list.appendValue((values[0], self.second))
        for value in values[:2]:
            self.map.updateValue((value % 5,), (value, self.second))
        yield Row(
            k=key[0],
            found=str(found),
            list=str([tuple(row) for row in self.list.get()]),
            map=str(sorted((v, tuple(row)) for (v,), row in self.map.iterator())),
        )

    def close(self) -> None:
        pass


class Counting(StatefulProcessor):
    """Counts rows in a state, and in another one that a later build of the query drops."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.kept = handle.getValueState("kept", "n long")
        self.dropped = handle.getValueState("dropped", "n long")

    def handleInputRows(self, key: Key, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        n = (self.kept.get()[0] if self.kept.exists() else 0) + sum(1 for _ in rows)
        self.kept.update((n,))
        if self.dropped is not None:
            self.dropped.update((n,))
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        pass


class CountingOnce(Counting):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.kept = handle.getValueState("kept", "n long")
        self.dropped = None
        handle.deleteIfExists("dropped")


def events(frames: Frames) -> Any:
    return frames["s"].where("k is not null").withWatermark("t", "5 minutes").groupBy("k")


def with_rows(frames: Frames) -> DataFrame:
    return events(frames).transformWithState(WithRows(), OUTPUT, "Update", "EventTime")


def with_pandas(frames: Frames) -> DataFrame:
    return events(frames).transformWithStateInPandas(WithPandas(), OUTPUT, "Update", "EventTime")


def initial(frame: DataFrame) -> Any:
    session = frame.sparkSession
    return session.createDataFrame([("a", 1000, 7), ("new", 2000, 8)], "k string, n long, total long").groupBy("k")


def with_rows_and_initial_state(frames: Frames) -> DataFrame:
    started = initial(frames["s"])
    return events(frames).transformWithState(WithRows(), OUTPUT, "Update", "EventTime", initialState=started)


def with_pandas_and_initial_state(frames: Frames) -> DataFrame:
    started = initial(frames["s"])
    return events(frames).transformWithStateInPandas(WithPandas(), OUTPUT, "Update", "EventTime", initialState=started)


def covers(*rows: str, form: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.covers(row, "Python", form) for row in rows]


WITH_ROWS, WITH_PANDAS = "transformWithState", "transformWithStateInPandas"
TIMERS, TTL, AVRO = "transformWithState: timers", "transformWithState: TTL", "transformWithState: Avro"
INITIAL = "transformWithState: initial state"

# Name, rows of the README's table, query, checkpoint format and encoding: each with each form of the operator.
QUERIES: list[tuple[str, list[str], Query, int, str]] = [
    ("rows", [WITH_ROWS, TIMERS], with_rows, 2, "unsaferow"),
    ("rows, Avro", [WITH_ROWS, TIMERS, AVRO], with_rows, 1, "avro"),
    ("rows, initial state", [WITH_ROWS, INITIAL], with_rows_and_initial_state, 1, "unsaferow"),
    ("pandas", [WITH_PANDAS, TIMERS], with_pandas, 1, "unsaferow"),
    ("pandas, Avro", [WITH_PANDAS, TIMERS, AVRO], with_pandas, 2, "avro"),
    ("pandas, initial state", [WITH_PANDAS, INITIAL], with_pandas_and_initial_state, 2, "unsaferow"),
]


class Summing(StatefulProcessor):
    """Gives a key's sum at the time of its newest row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.sum = handle.getValueState("sum", "v long")

    def handleInputRows(self, key: Key, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        came = list(rows)
        total = (self.sum.get()[0] if self.sum.exists() else 0) + sum(row.v for row in came)
        self.sum.update((total,))
        yield Row(k=key[0], t=max(row.t for row in came), v=total)

    def close(self) -> None:
        pass


def in_event_time(keyed: Any) -> DataFrame:
    return keyed.transformWithState(Summing(), SUMS, "Append", "EventTime", eventTimeColumnName="t")


def then_windows(frames: Frames) -> DataFrame:
    return in_event_time(events(frames)).groupBy(f.window("t", "4 minutes")).agg(f.count("*"), f.sum("v"))


def then_itself_then_windows(frames: Frames) -> DataFrame:
    twice = in_event_time(in_event_time(events(frames)).groupBy("k"))
    return twice.groupBy(f.window("t", "4 minutes"), "k").agg(f.max("v"))


def then_without_time(frames: Frames) -> DataFrame:
    keyed = in_event_time(events(frames)).groupBy("k")
    return keyed.transformWithState(Summing(), SUMS, "Append", "None")


def run_both(
    streams: Streams, query: Query, conf: dict[str, str], mode: str = "update", version: int = 2
) -> dict[str, Run]:
    """Runs a query on lamina and on RocksDB's provider; what lamina restores comes from files."""
    return {
        LAMINA: run_from_files(streams, query, mode=mode, format_version=version, conf=conf),
        ROCKSDB: streams.run(query, ROCKSDB, mode=mode, format_version=version, conf=conf),
    }


@pytest.mark.parametrize(
    ("query", "version", "encoding"),
    [
        pytest.param(query, version, encoding, id=name, marks=covers(*rows, form=f"v{version}"))
        for name, rows, query, version, encoding in QUERIES
    ],
)
def test_it_gives_the_same_rows_in_each_batch_and_after_a_restart(
    streams: Streams, query: Query, version: int, encoding: str
) -> None:
    conf = {
        ENCODING: encoding,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    for batch in range(3):
        streams.feed("s", rows(batch, 10 + 3 * batch, 30))
    first = run_both(streams, query, conf, version=version)
    assert first[LAMINA].batches == first[ROCKSDB].batches
    assert any(first[LAMINA].batches.values())
    for batch in range(3, 6):
        streams.feed("s", rows(batch, 10 + 3 * batch, 30))
    second = run_both(streams, query, conf, version=version)
    assert second[LAMINA].batches == second[ROCKSDB].batches
    expired = [row for run in (*first.values(), *second.values()) for row in run.all_rows if "'n': -" in row]
    assert expired, "no timer fired"


def test_a_state_that_was_dropped_is_passed_over_when_the_query_restarts_from_its_files(streams: Streams) -> None:
    def counted_by(processor: StatefulProcessor) -> Query:
        return lambda frames: (
            frames["s"].groupBy("k").transformWithState(processor, "k string, n long", "Update", "None")
        )

    for restart, processor in enumerate((Counting(), CountingOnce(), CountingOnce()), start=1):
        streams.feed("s", [{"t": "2024-01-01T00:00:00Z", "k": f"key {n % 10}", "v": n} for n in range(20)])
        run = run_from_files(streams, counted_by(processor), mode="update")
        assert run.all_rows == [str({"k": f"key {n}", "n": 2 * restart}) for n in range(10)]


@pytest.mark.covers("transformWithState: chained time modes", "Python", "v2")
@pytest.mark.long
@pytest.mark.parametrize("query", [then_windows, then_itself_then_windows, then_without_time])
def test_chained_with_another_operator_it_gives_the_same_rows(streams: Streams, query: Query) -> None:
    found = []
    for half in range(2):
        for batch in range(3 * half, 3 * half + 3):
            streams.feed("s", rows(batch, 10 + 3 * batch, 30))
        runs = run_both(streams, query, {}, mode="append")
        assert runs[LAMINA].batches == runs[ROCKSDB].batches
        found += runs[LAMINA].all_rows
    assert found


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=covers(TTL, TIMERS, form=f"v{version}")) for version in (1, 2)]
)
def test_state_with_a_time_to_live_expires_alike_and_timers_see_what_is_left(streams: Streams, version: int) -> None:
    def query(frames: Frames) -> DataFrame:
        output = "k string, short long, long long, list string, map string, timer boolean"
        keyed = frames["s"].where("k is not null").groupBy("k")
        return keyed.transformWithState(Expiring(), output, "Update", "ProcessingTime")

    # such a query always wants another batch, so availableNow would not end
    conf = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
    for _ in range(2):
        for batch in range(2):
            streams.feed("s", rows(batch, 10, 30))
        runs = run_both(streams, query, conf, version=version)
        assert runs[LAMINA].batches == runs[ROCKSDB].batches

    def count(row: str, name: str) -> int:
        return int(row.split(f"'{name}': ")[1].split(",")[0])

    assert all(count(row, "short") < count(row, "long") for row in runs[LAMINA].batches[3])
    # what the first batch after the restart shows by timers was registered before it
    assert any("'timer': True" in row for row in runs[LAMINA].batches[2])


FIRST, ADDED, RETYPED = "n long, gone string", "n long, added double", "n string, gone string"


def evolving(schema: str, second: Any) -> Query:
    def query(frames: Frames) -> DataFrame:
        keyed = frames["s"].where("k is not null").groupBy("k")
        output = "k string, found string, list string, map string"
        return keyed.transformWithState(Evolving(schema, second), output, "Update", "None")

    return query


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=covers(AVRO, form=f"v{version}")) for version in (1, 2)]
)
def test_in_avro_a_column_is_removed_from_the_state_and_another_added_by_a_restart(
    streams: Streams, version: int
) -> None:
    conf = {ENCODING: "avro"}
    found = []
    # the last run restores rows of both builds
    for restart, query in enumerate((evolving(FIRST, "x"), evolving(ADDED, 1.5), evolving(ADDED, 2.5))):
        streams.feed("s", rows(restart, 10, 30))
        runs = run_both(streams, query, conf, version=version)
        assert runs[LAMINA].batches == runs[ROCKSDB].batches
        found.append(" ".join(runs[LAMINA].all_rows))
    assert "'x')" in found[0]
    assert "None)" in found[1] and "1.5)" in found[1] and "'x')" not in found[1]
    assert "None)" in found[2] and "1.5)" in found[2] and "2.5)" in found[2]


@pytest.mark.parametrize(("encoding", "schema"), [("unsaferow", ADDED), ("avro", RETYPED)])
def test_a_change_of_the_state_that_spark_refuses_is_refused_alike(
    streams: Streams, encoding: str, schema: str
) -> None:
    conf = {ENCODING: encoding}
    streams.feed("s", rows(0, 10, 30))
    run_both(streams, evolving(FIRST, "x"), conf)
    streams.feed("s", rows(1, 10, 30))
    refusals = []
    for provider in (LAMINA, ROCKSDB):
        with pytest.raises(StreamingQueryException) as refusal:
            streams.run(evolving(schema, None), provider, mode="update", format_version=2, conf=conf)
        refusals.append(re.findall(r"\[([A-Z_.]+)\]", str(refusal.value)))
    assert refusals[0] == refusals[1]
    assert any("SCHEMA" in condition for condition in refusals[0])
    # the state is as it was
    runs = run_both(streams, evolving(FIRST, "x"), conf)
    assert runs[LAMINA].batches == runs[ROCKSDB].batches
    assert any(runs[LAMINA].batches.values())


def test_without_the_extension_it_fails_with_the_setting_to_add_and_goes_on_when_that_is_set(streams: Streams) -> None:
    streams.feed("s", rows(0, 10, 30))
    argument = {"jar": shim_jar(), "path": str(streams.path)}
    failures = json.loads(run_program("without_extension_query.py", json.dumps(argument)).splitlines()[-1])
    sentence = f"transformWithState runs on lamina only with spark.sql.extensions={EXTENSION}; set it before"
    batches = {}
    for query in (with_rows, with_pandas):
        assert f"[settings.invalid] {sentence}" in failures[query.__name__]
        assert "RocksDB" not in failures[query.__name__]
        batches[query] = run_from_files(streams, query, mode="update", checkpoint=query.__name__).batches
    assert batches[with_rows] == batches[with_pandas]
    assert batches[with_rows][0]


@pytest.mark.covers("transformWithState: batch query", "Python", "no checkpoint")
@pytest.mark.parametrize("query", [with_rows_and_initial_state, with_pandas_and_initial_state], ids=["rows", "pandas"])
def test_a_batch_query_with_initial_state_runs_where_lamina_is_the_provider(
    streams: Streams, spark: SparkSession, query: Query
) -> None:
    frame = spark.createDataFrame(
        [Row(k=row["k"], v=row["v"], t=row["t"]) for row in rows(1, 10)], "k string, v long, t string"
    ).select(f.col("t").cast("timestamp").alias("t"), "k", "v")
    answers = {}
    for provider in (LAMINA, ROCKSDB):
        with configured(spark, {"spark.sql.streaming.stateStore.providerClass": provider}):
            answers[provider] = sorted(map(str, query({"s": frame}).collect()))
    assert answers[LAMINA] == answers[ROCKSDB]
    assert any("n=10" in row for row in answers[LAMINA])
