"""Queries whose backend is another one after each restart, and what a query tells of its tables."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from lamina.settings import CACHE_METRICS, LEVEL_METRICS, MERGE_METRICS, READ_METRICS
from tests.spark.conftest import shim_jar
from tests.spark.hadoop_jars import ODD, odd_file_system_jar
from tests.spark.streams import HDFS, LAMINA, Streams
from tests.spark.tables_program import Program, right
from tests.spark.test_restarts import Answers, rows, unload_all

PREFIX = "spark.sql.streaming.stateStore.lamina."
TABLES = {PREFIX + "backend": "rocksdb", PREFIX + "rocksdb.materializeEvery": "1"}
HEAP = {PREFIX + "backend": "heap"}
FROM_FILES = {PREFIX + "heap.handOverMs": "0"}
"""Nothing is handed over: after `unload_all` each run restores from files."""


def shown(name: str) -> str:
    """How progress calls a metric of `rocksdb.metrics`."""
    return f"lamina{name[0].upper()}{name[1:]}"


SCANNED = ("totalBytesRead", "totalBytesReadThroughIterator")
"""What a join does not show: it scans those of its stores of which Spark drops what they say, and the others look in
tables for keys that are new."""

LEVELS = [shown(name) for name in LEVEL_METRICS]
COUNTED = [shown(name) for name in (*READ_METRICS, *CACHE_METRICS, *MERGE_METRICS)]


def totals(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def pairs(frames: dict[str, DataFrame]) -> DataFrame:
    left, right = (frames[name].withWatermark("t", "10 seconds") for name in ("a", "b"))
    renamed = right.select(f.col("k").alias("rk"), f.col("v").alias("rv"), f.col("t").alias("rt"))
    near = f.expr("k = rk and rt between t - interval 5 seconds and t + interval 5 seconds")
    return left.join(renamed, near, "left_outer").select("k", "v", "rv")


def feed_pairs(streams: Streams, batch: int) -> None:
    """A minute of both sides of `pairs`."""
    for source, step in (("a", 1), ("b", 3)):
        streams.feed(
            source,
            [
                {
                    "t": f"2024-01-01T00:{batch:02}:{second:02}Z",
                    "k": f"key {second * step % 7}",
                    "v": batch * 60 + second,
                }
                for second in range(0, 60, step)
            ],
        )


def test_the_backend_changes_at_each_restart_and_no_table_of_the_other_one_is_taken_over(streams: Streams) -> None:
    """Some restarts find a table of the run before in the JVM, the others none."""
    answers = Answers()
    batch = 0
    for number in range(6):
        on_tables = number % 2 == 1
        for _ in range(3):
            streams.feed("s", rows(batch))
            batch += 1
        settings = {**(TABLES if on_tables else HEAP), "spark.sql.streaming.stateStore.maintenanceInterval": "200ms"}
        run = streams.run(totals, LAMINA, mode="complete", conf=settings, each_batch=answers)
        last = run.progress[-1]["stateOperators"][0]["customMetrics"]
        # the first batch of a backend restores from the files of the other one
        assert run.metric("laminaHandOvers") == 0
        if number > 0:
            assert run.metric("laminaReloads") == 2
        assert (last["laminaSstFileSize"] > 0) == on_tables
        if number >= 3:
            unload_all(streams.spark)
    assert sorted(answers.batches) == list(range(batch))
    answers.check()


def test_a_join_on_tables_gives_what_it_gives_on_a_built_in_provider(streams: Streams) -> None:
    """And tells what is asked for of its tables: nothing, some metrics, most of them, until tables were merged."""
    found, wanted, batch = [], [], 0
    some = ("getCount", "readBlockCacheHitCount", *LEVEL_METRICS)
    most = tuple(
        name for name in (*READ_METRICS, *CACHE_METRICS, *MERGE_METRICS, *LEVEL_METRICS) if name not in SCANNED
    )
    for named, batches in (((), 3), (some, 3), (most, 6)):
        for _ in range(batches):
            feed_pairs(streams, batch)
            batch += 1
        metrics = {PREFIX + "rocksdb.metrics": ", ".join(named) or "none"}
        run = streams.run(pairs, LAMINA, conf={**TABLES, **FROM_FILES, **metrics})
        found += run.all_rows
        wanted += streams.run(pairs, HDFS).all_rows
        assert run.metric("laminaSstFiles") > 0
        assert run.metric("laminaLocalDiskBytes") > 0
        # what was asked for happened, and nothing else was counted
        counted = {name: run.metric(name) for name in COUNTED}
        assert {name for name, count in counted.items() if count > 0} == {shown(name) for name in named} - {*LEVELS}
        for progress in run.progress:
            for operator in progress["stateOperators"]:
                of = operator["customMetrics"]
                assert sum(of[level] for level in LEVELS) == (of["laminaSstFiles"] if named else 0)
        unload_all(streams.spark)
    assert found == wanted
    assert len(found) > 100


def test_rows_that_a_restarted_query_finds_and_scans_in_tables_are_counted(streams: Streams) -> None:
    """Its keys come in turns: so tables overlap, and no increment has those that come next."""

    def feed(turn: int) -> None:
        streams.feed("s", [{"t": "2024-01-01T00:00:00Z", "k": f"key {n}", "v": n} for n in range(turn, 80, 4)])

    for turn in range(4):
        feed(turn)
    streams.run(totals, LAMINA, mode="complete", conf={**TABLES, **FROM_FILES})
    unload_all(streams.spark)
    feed(0)
    named = {PREFIX + "rocksdb.metrics": ", ".join(SCANNED)}
    run = streams.run(totals, LAMINA, mode="complete", conf={**TABLES, **FROM_FILES, **named})
    assert {name for name in COUNTED if run.metric(name) > 0} == {shown(name) for name in SCANNED}
    assert len(run.all_rows) == 80


def test_a_restart_tells_which_tables_it_found_on_this_machine_and_which_it_fetched(tmp_path: Path) -> None:
    """The checkpoint is on a file system of which the machine keeps copies."""
    cache = tmp_path / "cache"
    session = {
        "jar": f"{shim_jar()},{odd_file_system_jar()}",
        "spark.hadoop.fs.odd.impl": ODD,
        PREFIX + "storage.cache.directory": str(cache),
    }
    first, with_copies, without = Program(tmp_path).run(
        [{"batches": 3}, {"batches": 2}, {"unlink": [f"{cache}/*"], "batches": 2}], "odd:", **session
    )
    assert right(first, 0, 1, 2)
    assert first["laminaFetchedBytes"] == first["laminaReusedBytes"] == 0, "nothing was restored"
    assert right(with_copies, 3, 4)
    assert with_copies["laminaFetchedBytes"] == 0 < with_copies["laminaReusedBytes"]
    assert right(without, 5, 6)
    assert without["laminaReusedBytes"] == 0 < without["laminaFetchedBytes"]
