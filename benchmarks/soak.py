"""Whether anything grows in a query that runs for long: `python -m benchmarks.soak --minutes 60`.

Deduplication within a watermark, at most two batches a second: each brings new keys, and as many old ones leave the
state, of which 2 million are live. Versions retained: 10. The query is restarted again and again in the same JVM,
with its table handed over and without. Sampled are memory, file handles and threads of the JVM, the engine and the
maintenance process, local disk, files and bytes of the checkpoint's state, and the time of each batch; once a start
the Java heap in use after a collection, since the JVM touches all of its heap when it starts and a leak there would
not show in its size. The slope is a least-squares line through the samples from minute 10 on (a third of a shorter
run), its interval a bootstrap over blocks of a minute. The claims of runs do not count among the files: each start
leaves one, for good.

A machine that is shared is not equally fast for an hour. So each second the processor time of a fixed piece of work is
taken, too, and the time of a batch is judged at the usual pace: divided by what the work took in its minute, as part of
what it took in the middle of the run.

The checkpoint is on the local disk, so remote storage and local copies of its files have no part in this: the S3 server
of the other benchmarks keeps every object in its own memory, and shares the cores with the query.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from benchmarks import figure, machine, session, variants
from benchmarks.processes import held
from benchmarks.rounds import RESULTS, progress, record_name, write_result
from lamina.storage import is_temporary

BATCHES_LIVE = 100
EVERY = "500 milliseconds"
"""With batches as fast as they go, whatever is young on disk would grow as the compilers make them faster."""

RESTART_EVERY_S = 75
BLOCK_S = 60
RESAMPLES = 1000

SERIES = {
    "batch": "batch time, ms",
    "pace": "a fixed piece of work, ms",
    "batch_at_pace": "batch time at the usual pace, ms",
    "jvm_memory": "JVM resident, MB",
    "heap": "Java heap in use, MB",
    "engine_memory": "engine resident, MB",
    "maintenance_memory": "maintenance resident, MB",
    "handles": "open files, all processes",
    "threads": "threads, all processes",
    "disk": "local disk, MB",
    "files": "files of the state, no claims",
    "bytes": "bytes of the state, MB",
}
OF_THE_MACHINE = frozenset({"batch", "pace"})
"""Series that also say how fast the machine was."""


def start(folder: Path) -> SparkSession:
    """The steady session of the query."""
    settings = {
        "spark.log.level": "OFF",  # a stop interrupts tasks, which Spark reports as errors
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
    }
    return session.start_steady("lamina-soak", folder, settings)


def query(spark: SparkSession, keys: int) -> DataFrame:
    """As many new keys in each batch as leave the state."""
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", keys // BATCHES_LIVE)
        .option("advanceMillisPerBatch", 1000)
        .load()
    )
    keyed = source.selectExpr("timestamp", "concat('customer-', lpad(value, 20, '0')) AS key", "value")
    # a key stays for twice the delay: until the watermark, which lags by it, has passed the key's time and the delay
    return keyed.withWatermark("timestamp", f"{BATCHES_LIVE // 2} seconds").dropDuplicatesWithinWatermark(["key"])


class Sampler:
    """Takes one sample per second, one time per batch, and the heap when it is asked to."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._jvm = session.jvm_pid(spark)
        self._folder = folder
        self._began = time.monotonic()
        self.samples: dict[str, list[tuple[float, float]]] = {name: [] for name in SERIES}
        self.rows: list[tuple[float, float]] = []
        self._seen: set[tuple[str, int]] = set()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def sample(self, running: StreamingQuery) -> None:
        """What there is now, and the batches that ended since the last sample."""
        self._add("pace", machine.pace_ms())
        found = held(self._jvm)
        for role, one in found.items():
            self._add(f"{role}_memory", one.resident / 1e6)
        self._add("handles", sum(one.files for one in found.values()))
        self._add("threads", sum(one.threads for one in found.values()))
        self._add("disk", sum(session.directory_bytes(self._folder / "tmp").values()) / 1e6)
        state = self._folder / "checkpoint" / "state"
        names = [(Path(place).name, name) for place, _, found in os.walk(state) for name in found]
        self._add("files", sum(place != "runs" or is_temporary(name) for place, name in names))
        self._add("bytes", sum(session.directory_bytes(state).values()) / 1e6)
        for batch in running.recentProgress:
            known = (batch["runId"], batch["batchId"])
            if known not in self._seen and "addBatch" in batch["durationMs"]:
                self._seen.add(known)
                self._add("batch", batch["durationMs"]["triggerExecution"])
                self.rows.append((self.elapsed, batch["stateOperators"][0]["numRowsTotal"]))

    def sample_heap(self) -> None:
        """What the JVM's heap holds after a full collection, which takes so long that no query should run."""
        self._add("heap", session.heap_after_collection(self._spark) / 1e6)

    def _add(self, name: str, value: float) -> None:
        self.samples[name].append((self.elapsed, value))


def run(minutes: float, keys: int) -> dict[str, Any]:
    """The soak, in a session of its own."""
    variants.shim_jar()
    restarts = 0
    with tempfile.TemporaryDirectory(prefix="lamina-soak-") as name:
        folder = Path(name)
        spark = start(folder)
        sampler = Sampler(spark, folder)
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            # every other restart finds no table to take over and loads its state from the files
            hand_over = "120000" if restarts % 2 else "0"
            spark.conf.set("spark.sql.streaming.stateStore.lamina.heap.handOverMs", hand_over)
            running = (
                query(spark, keys)
                .writeStream.format("noop")
                .trigger(processingTime=EVERY)
                .option("checkpointLocation", str(folder / "checkpoint"))
                .start()
            )
            until = min(end, time.monotonic() + RESTART_EVERY_S)
            while time.monotonic() < until and running.isActive:
                time.sleep(1)
                sampler.sample(running)
            if running.exception() is not None:
                raise SystemExit(str(running.exception()))
            running.stop()
            # before a table is closed: each start leaves as many open
            sampler.sample_heap()
            restarts += 1
            if hand_over == "0":
                session.jvm(spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()
            keys_now = int(sampler.rows[-1][1]) if sampler.rows else 0
            progress(f"{sampler.elapsed / 60:.1f} minutes, {len(sampler.rows)} batches, {keys_now} keys")
        spark.stop()
    return result_of(sampler, minutes, keys, restarts)


def result_of(sampler: Sampler, minutes: float, keys: int, restarts: int) -> dict[str, Any]:
    """The result as JSON."""
    first = min(600.0, minutes * 20)
    sampled = {**sampler.samples, "batch_at_pace": at_pace(sampler.samples["batch"], sampler.samples["pace"])}
    return {
        "benchmark": "soak",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "minutes": minutes,
        "keys": keys,
        "live_keys": int(statistics.median(rows for moment, rows in sampler.rows if moment >= first)),
        "batches": len(sampler.rows),
        "restarts": restarts,
        "from_minute": first / 60,
        "series": {
            name: {"samples": thinned(samples), **trend([one for one in samples if one[0] >= first])}
            for name, samples in sampled.items()
        },
    }


def at_pace(batches: Sequence[tuple[float, float]], pace: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Batch times, each divided by how slow the machine was in its minute, relative to the middle of all."""
    usual = statistics.median(value for _, value in pace)
    slow = {block: statistics.median(value for _, value in taken) / usual for block, taken in blocks(pace).items()}
    known = [(block, those) for block, those in blocks(batches).items() if block in slow]
    return [(moment, value / slow[block]) for block, those in known for moment, value in those]


def blocks(samples: Sequence[tuple[float, float]], seconds: float = BLOCK_S) -> dict[int, list[tuple[float, float]]]:
    """Samples by the number of the block of so many seconds that they are in, a minute unless said."""
    found: dict[int, list[tuple[float, float]]] = {}
    for one in samples:
        found.setdefault(int(one[0] // seconds), []).append(one)
    return found


def thinned(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about 600 samples, for the figure."""
    step = max(1, len(samples) // 600)
    return [(round(moment, 1), round(value, 2)) for moment, value in samples[::step]]


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line, per hour."""
    mean_x = statistics.fmean(x for x, _ in samples)
    mean_y = statistics.fmean(y for _, y in samples)
    square = sum((x - mean_x) ** 2 for x, _ in samples)
    return 3600 * sum((x - mean_x) * (y - mean_y) for x, y in samples) / square if square else 0.0


def trend(samples: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Median, slope per hour with its 95 % interval, and whether that interval holds zero or little."""
    chosen = list(blocks(samples).values())
    drawn = random.Random(1)
    slopes = sorted(
        slope([one for block in drawn.choices(chosen, k=len(chosen)) for one in block]) for _ in range(RESAMPLES)
    )
    median = statistics.median(value for _, value in samples)
    low, high = slopes[int(0.025 * RESAMPLES)], slopes[int(0.975 * RESAMPLES)]
    return {
        "median": median,
        "slope_an_hour": slope(samples),
        "low": low,
        "high": high,
        "flat": low <= 0 or slope(samples) < 0.02 * median,
    }


HEADS = ("what", "median", "slope an hour", "95 %", "flat")


def rows_of(result: dict[str, Any]) -> list[list[str]]:
    """The series as text."""
    rows = []
    for name, title in SERIES.items():
        found = result["series"][name]
        interval = f"{found['low']:.1f} to {found['high']:.1f}"
        flat = "yes" if found["flat"] else "NO"
        rows.append([title, f"{found['median']:.1f}", f"{found['slope_an_hour']:.1f}", interval, flat])
    return rows


def show(result: dict[str, Any], console: Console) -> None:
    """A table of slopes."""
    table = Table(
        title=f"{result['minutes']:g} minutes, {result['batches']} batches, {result['live_keys']:,} live keys, "
        f"{result['restarts']} starts; slopes from minute {result['from_minute']:.1f} on"
    )
    for heading in HEADS:
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows_of(result):
        table.add_row(*row)
    console.print(table)


def draw(result: dict[str, Any], path: Path) -> None:
    """Every series relative to its median, smoothed over a minute."""
    series = {}
    for name, title in SERIES.items():
        found = result["series"][name]
        if found["median"]:
            halves = sorted(blocks(found["samples"], 30).items())
            xs = [(block + 0.5) / 2 for block, _ in halves]
            ys = [statistics.median(value for _, value in those) / found["median"] for _, those in halves]
            series[title.split(",")[0]] = (xs, ys)
    title = f"Soak: {result['live_keys']:,} live keys, {result['batches']} batches, {result['restarts']} starts"
    figure.lines(path, series, title=title, x="minutes", y="relative to the median")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--keys", type=int, default=2_000_000)
    given = parser.parse_args()
    result = run(given.minutes, given.keys)
    name = record_name("soak", given.minutes)
    write_result(name, result)
    draw(result, RESULTS / f"{name}.png")
    show(result, Console(width=130))
    ours = {name: found for name, found in result["series"].items() if name not in OF_THE_MACHINE}
    if growing := [SERIES[name] for name, found in ours.items() if not found["flat"]]:
        raise SystemExit(f"not flat: {'; '.join(growing)}")


if __name__ == "__main__":
    main()
