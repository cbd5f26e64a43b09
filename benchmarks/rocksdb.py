"""State on tables of RocksDB beside Spark's RocksDB store, with the same memory: `python -m benchmarks.rocksdb`.

Each question is measured by itself and keeps its last answer, with commit, date and parameters, in
`benchmarks/results/rocksdb.json`; a short run writes its answers beside that.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from benchmarks import batches, rocksdb_modes, rocksdb_restart, rocksdb_rows, rocksdb_stores, rocksdb_uploads, variants
from benchmarks.bars import Bar, Figures, between, least, most
from benchmarks.processes import ROLES
from benchmarks.questions import Parameters, Question, Questions
from benchmarks.statistics import spread
from benchmarks.variants import LAMINA, ON_TABLES, SNAPSHOTS, TITLES, TUNED

FEW = "Count, max and sum per key."
STORES = [LAMINA, ON_TABLES, SNAPSHOTS, TUNED]
BUILT_IN = (SNAPSHOTS, TUNED)
_MANY = 50
"""Batches after which a state counts as one that has been there for a while."""

JVM_CONSTANT_MB = 600
"""Of a JVM with Spark, beside its heap and what is set."""
ENGINE_CONSTANT_MB = 700


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all stores, each in a JVM of its own."""
    variants.prepare(parameters["variants"])
    runs = batches.alternating(parameters["variants"], rounds, partial(batches.with_memory, parameters))
    found = batches.figures(runs, ON_TABLES)
    found["state_rows"] = statistics.median(run["state_rows"] for run in runs[ON_TABLES])
    found["bytes"] = {
        variant: spread([run["bytes_a_batch"] + run["segment_bytes_a_batch"] for run in answers])
        for variant, answers in runs.items()
    }
    found["merged_bytes"] = {
        variant: spread([run["segment_bytes_a_batch"] for run in answers]) for variant, answers in runs.items()
    }
    found["pause"] = batches.pauses(runs)
    found["resident_mb"] = {
        variant: {role: max(run["resident_bytes"].get(role, 0) for run in answers) / 1e6 for role in ROLES}
        for variant, answers in runs.items()
    }
    return found


def faster(bar: float, parameters: Parameters, figures: Figures) -> list[Bar]:
    """How many times as fast as each built-in store."""
    cell = f"backend rocksdb, {parameters['keys'] / 1e6:g}M/{parameters['rows'] / 1e3:g}k, {parameters['memory_mb']} MB"
    if parameters["warmup"] >= _MANY:
        cell += f", after {parameters['warmup']} batches"
    return [
        least(f"{cell}: faster than {TITLES[other]}", bar, figures["add_batch_ms_faster_than"][other], " times")
        for other in BUILT_IN
        if other in parameters["variants"]
    ]


def of_ceilings(parameters: Parameters, figures: Figures) -> list[Bar]:
    """What the processes take at most, held against the heap, the memory that is set, and a constant."""
    resident = figures["resident_mb"][ON_TABLES]
    heap_mb = float(parameters["driver_memory"].removesuffix("g")) * 1024
    jvm = spread([resident["jvm"]])
    others = spread([resident["engine"] + resident["maintenance"]])
    return [
        most("JVM: resident", heap_mb + parameters["memory_mb"] + JVM_CONSTANT_MB, jvm, " MB", digits=0),
        most("engine and maintenance: resident", ENGINE_CONSTANT_MB, others, " MB", digits=0),
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each store."""
    heads, rows = batches.table(figures, "RocksDB mode to it")
    for variant, row in zip(batches.present(figures), rows, strict=True):
        row += [f"{figures[name][variant]['median'] / 1000:,.0f}" for name in ("bytes", "merged_bytes")]
        row.append(between(figures["pause"][variant]))
        row += [f"{figures['resident_mb'][variant][role]:,.0f}" for role in ROLES]
    heads = [*heads, "kB kept a batch", "of it merged", "p99 to median", "resident MB: JVM", "engine", "maintenance"]
    return heads, rows


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran, and how the stores were set."""
    words = f"{FEW} {figures['state_rows']:,.0f} keys in the state, {parameters['rows']:,} rows a batch, "
    words += f"{parameters['memory_mb']} MB for RocksDB and all that is in memory for it, heap "
    words += f"{parameters['driver_memory']}; {parameters['timed']} timed batches after "
    words += f"{parameters['preload'] + parameters['warmup']}. "
    words += "; ".join(f"{TITLES[one]}: {batches.set_up(one)}" for one in parameters["variants"] if one in BUILT_IN)
    return f"{words}. {batches.same_results(figures)}"


def cell(name: str, keys: int, rows: int, megabytes: int, fits: bool, **more: Any) -> Question:
    """How long batches take, with a state that fits into memory or one of which a tenth does."""
    bar = 2.0 if fits else 1.5
    return Question(
        name=name,
        asks=f"{keys / 1e6:g}M keys, {rows:,} rows a batch, "
        + ("all in memory" if fits else "a tenth in memory")
        + (f", after {more['warmup']} batches" if "warmup" in more else ""),
        goal=f"≥ {bar:g} times faster than the built-in",
        full={
            "variants": STORES, "keys": keys, "rows": rows, "memory_mb": megabytes,
            "preload": max(2, keys // 1_000_000), "warmup": 10, "timed": 150 if fits else 20, "driver_memory": "4g",
            "closing": 20_000, **more,
        },
        quick={"keys": 20_000, "rows": 4_000, "preload": 1, "warmup": 2, "timed": 4, "driver_memory": "2g",
               "memory_mb": 16 if not fits else 256, "closing": 2_000},
        rounds=3, measure=measure, bars=partial(faster, bar), table=table, setup=setup,
    )  # fmt: skip


def uploads(name: str, asks: str, every_s: float) -> Question:
    """How much is uploaded where batches come without a pause, or one in so many seconds."""
    return Question(
        name=name,
        asks=asks,
        goal="no more bytes than the built-in"
        + ("" if every_s else f"; p99 ≤ {rocksdb_uploads.PAUSE_BAR} of the median"),
        full={
            "every_s": every_s, "keys": 1_000_000, "rows": 10_000, "memory_mb": 512, "preload": 2, "warmup": 150,
            "timed": 200 if every_s else 400, "driver_memory": "4g", "closing": 20_000,
        },
        quick={"keys": 20_000, "rows": 1_000, "preload": 1, "warmup": 2, "timed": 25, "driver_memory": "2g",
               "closing": 2_000},
        rounds=2, measure=rocksdb_uploads.measure, bars=rocksdb_uploads.bars, table=rocksdb_uploads.table,
        setup=rocksdb_uploads.setup,
    )  # fmt: skip


WORDS = """Lamina keeps rows in memory outside of the Java heap, its RocksDB mode on the local disk and as many in
memory as it may have. The built-in store runs with a bound of its own on memory, which is the same. Each store runs in
a fresh JVM, in turns. Where all batches are retained, what is kept is what was uploaded. Rounds are few: given are
medians and the range of all rounds.
"""

ROCKSDB = Questions(
    "rocksdb",
    "State on tables of RocksDB",
    "asks what a state on the local disk costs, and holds each answer against its bar",
    WORDS,
    (
        cell("1M-in-memory", 1_000_000, 100_000, 1024, fits=True),
        cell("4M-in-memory", 4_000_000, 10_000, 2048, fits=True),
        cell("20M-in-memory", 20_000_000, 100_000, 6144, fits=True),
        cell("1M-a-tenth", 1_000_000, 100_000, 16, fits=False),
        cell("4M-a-tenth", 4_000_000, 10_000, 64, fits=False),
        cell("20M-a-tenth", 20_000_000, 100_000, 320, fits=False, timed=10),
        # by then what each has in memory has been through it, and what it wrote has been merged
        cell("20M-a-tenth-later", 20_000_000, 100_000, 320, fits=False, variants=[ON_TABLES, TUNED],
             warmup=_MANY, timed=10),
        Question(
            name="rows",
            asks="what it costs to read a row: in the table, from RocksDB's cache of blocks, from the page cache",
            goal=f"≤ {rocksdb_rows.CACHED_US} µs, ≤ {rocksdb_rows.BLOCK_CACHE_US} µs, "
            f"≤ {rocksdb_rows.TO_ROCKSDB} times RocksDB's own get",
            full={"keys": 4_000_000, "rows": 100_000, "passes": 15},
            quick={"keys": 200_000, "rows": 20_000, "passes": 3},
            rounds=3, measure=rocksdb_rows.measure, bars=rocksdb_rows.bars, table=rocksdb_rows.table,
            setup=rocksdb_rows.setup,
        ),
        Question(
            name="restart",
            asks="how long a restart with a state of 4 GB takes, from S3, and where its files are on the machine",
            goal=f"≥ {rocksdb_restart.FASTER:g} times faster than the built-in; ≤ {rocksdb_restart.COPIES_S:g} s",
            full={
                "value_bytes": 1024, "keys": 4_000_000, "rows": 10_000, "preload": 16, "warmup": 24, "rest_s": 120,
                "timed": 6, "driver_memory": "3g", "closing": 20_000, "latency_s": 0.05, "bytes_per_s": 50e6,
            },
            quick={"keys": 40_000, "rows": 1_000, "preload": 2, "rest_s": 2, "driver_memory": "2g"},
            rounds=2, measure=rocksdb_restart.measure, bars=rocksdb_restart.bars, table=rocksdb_restart.table,
            setup=rocksdb_restart.setup,
        ),
        uploads("uploads", "what 400 batches upload, and how even they are while tables are made", 0),
        uploads("uploads-each-second", "what 200 batches upload where there is one each second", 1),
        Question(
            name="modes",
            asks="the checkpoint modes as FLIP-151 compares them: runtime, size, duration, synchronous part",
            goal="incremental snapshots of the heap beat the others in each column",
            full={
                "value_bytes": 1024, "keys": 1_000_000, "rows": 10_000, "preload": 10, "warmup": 6, "timed": 48,
                "driver_memory": "3g", "closing": 20_000,
            },
            quick={"keys": 20_000, "rows": 1_000, "preload": 1, "warmup": 2, "timed": 18, "closing": 2_000},
            rounds=1, measure=rocksdb_modes.measure, bars=rocksdb_modes.bars, table=rocksdb_modes.table,
            setup=rocksdb_modes.setup,
        ),
        Question(
            name="stores",
            asks="what 1,024 stores hold: threads, descriptors, memory, local disk",
            goal="that it does not go on growing",
            full={
                "queries": 4, "partitions": 64, "rounds": 40, "peer_rounds": 8, "rows_a_partition": 100,
                "memory_mb": 512, "driver_memory": "4g",
            },
            quick={"partitions": 4, "rounds": 10, "peer_rounds": 4},
            rounds=1, measure=rocksdb_stores.measure, bars=rocksdb_stores.bars, table=rocksdb_stores.table,
            setup=rocksdb_stores.setup,
        ),
        Question(
            name="ceilings",
            asks="what the processes take at most, with 256 MB set and a state of 4 GB, over 300 batches",
            goal="the heap, what is set, and a constant",
            full={
                "variants": [ON_TABLES, TUNED], "value_bytes": 1024, "keys": 4_000_000, "rows": 10_000,
                "memory_mb": 256, "preload": 80, "warmup": 20, "timed": 200, "driver_memory": "2g", "closing": 20_000,
            },
            quick={"keys": 40_000, "rows": 1_000, "preload": 4, "warmup": 2, "timed": 10, "closing": 2_000},
            rounds=1, measure=measure, bars=of_ceilings, table=table, setup=setup,
        ),
    ),
)  # fmt: skip


if __name__ == "__main__":
    ROCKSDB.main(__doc__)
