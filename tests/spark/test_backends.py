"""Queries whose backend is another one after each restart, and what a query tells of its tables."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from lamina.settings import LEVEL_METRICS
from tests.spark.conftest import shim_jar
from tests.spark.hadoop_jars import ODD, odd_file_system_jar
from tests.spark.streams import HDFS, LAMINA, Streams
from tests.spark.tables_program import Program, right
from tests.spark.test_restarts import Answers, rows, unload_all

PREFIX = "spark.sql.streaming.stateStore.lamina."
TABLES = {PREFIX + "backend": "rocksdb", PREFIX + "rocksdb.materializeEvery": "1"}
HEAP = {PREFIX + "backend": "heap"}
LEVELS = [f"lamina{name[0].upper()}{name[1:]}" for name in LEVEL_METRICS]


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
    found, wanted = [], []
    for number in range(3):
        for batch in range(3 * number, 3 * number + 3):
            feed_pairs(streams, batch)
        named = ", ".join(("getCount", "readBlockCacheHitCount", "totalCompactionLatencyMs", *LEVEL_METRICS))
        metrics = {PREFIX + "rocksdb.metrics": named if number else "none"}
        run = streams.run(pairs, LAMINA, conf={**TABLES, **metrics})
        found += run.all_rows
        wanted += streams.run(pairs, HDFS).all_rows
        if number > 0:
            # rows were read from tables, and counted
            assert run.metric("laminaGetCount") > 0
            assert run.metric("laminaReadBlockCacheHitCount") > 0
            assert run.metric("laminaTotalBytesRead") == 0, "nobody asked for it"
            for batch in run.progress:
                for operator in batch["stateOperators"]:
                    of = operator["customMetrics"]
                    assert sum(of[level] for level in LEVELS) == of["laminaSstFiles"]
        else:
            assert run.metric("laminaSstFiles") > 0 and run.metric("laminaGetCount") == 0
            assert all(run.metric(level) == 0 for level in LEVELS)
        unload_all(streams.spark)
    assert found == wanted
    assert len(found) > 100


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
