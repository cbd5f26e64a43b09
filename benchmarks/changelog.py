"""What the changelog costs and gives, on a storage as slow as S3: `python -m benchmarks.changelog`.

`waits` and `processor` are about stores of one engine, without Spark; the others are queries, each store in a fresh
JVM. Each question is measured by itself and keeps its last answer, with commit, date and parameters, in
`benchmarks/results/changelog.json`; a short run writes its answers beside that.

Examples:
  python -m benchmarks.changelog --only objects --quick
  python -m benchmarks.changelog --only query-waits-fast --rounds 1
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

import fsspec
import pyarrow as pa

from benchmarks import (
    changelog_batches,
    changelog_looks,
    changelog_objects,
    changelog_restarts,
    changelog_space,
    changelog_waits,
)
from benchmarks.bars import Bar, Figures, between, least, most, percentile
from benchmarks.changelog_modes import EXECUTOR, OFF, PATIENT, TASK, UNHEDGED
from benchmarks.changelog_waits import PERCENTS
from benchmarks.questions import Parameters, Question, Questions
from benchmarks.rounds import progress
from benchmarks.slow_storage import PUBLISHED, SlowStorage
from benchmarks.statistics import spread
from benchmarks.variants import FLOOR, SNAPSHOTS, TUNED
from lamina.components import RandomIds, SystemClock
from lamina.engine.cycles import collect_seldom
from lamina.engine.ticker import Ticker
from lamina.format import paths
from lamina.format.entries import PUT, SCHEMA
from lamina.format.manifest import ColumnFamily, Count
from lamina.settings import PREFIX, Settings
from lamina.store import CheckpointState, CommitRequest, StoreConf, StoreId, Version
from lamina.store.changelog.changelog import Changelog
from lamina.store.factory import make_store
from lamina.store.files.log_places import LogPlace
from lamina.store.model import Accepted
from lamina.store.versioned_store import VersionedStore

HEDGED, PLAIN, FILES = "hedged", "plain", "files"
TITLES = {HEDGED: "changelog", PLAIN: "changelog, without hedging", FILES: "a file each"}
LIVE_ROWS = 1_000
FAMILY = ColumnFamily(0, "default", {"multi_value": False})
FOLDER = "/changelog-benchmark"
FEWER = 60
"""Times fewer batches where each commit is a file, as each takes long then."""

_SEEDS = itertools.count(1)
EMPTY = Version(0, None)


class Run:
    """Stores of one checkpoint, whose commits are merged between batches where that is due."""

    def __init__(self, parameters: Parameters, variant: str, seed: int) -> None:
        self.rows = parameters["rows"]
        self._increment = self._entries()
        clock, ids = SystemClock(), RandomIds()
        settings = Settings.parse(
            {
                PREFIX + "changelog.enabled": str(variant != FILES).lower(),
                PREFIX + "changelog.hedging.enabled": str(variant == HEDGED).lower(),
                PREFIX + "changelog.upload.timeoutMs": "60000",
            }
        )
        self.storage = SlowStorage(f"memory:/{FOLDER}/{next(_SEEDS)}", seed, 0.0)
        state = CheckpointState.open(self.storage, run_id="run", read_only=False, clock=clock, ids=ids)
        self.changelog = Changelog(LogPlace(self.storage), state.uuid or "", settings, clock, ids)
        self._ticker = Ticker()
        self._ticker.add(self.changelog.groups)
        self.stores = [
            make_store(
                state,
                StoreId(self.storage.url, 0, partition, "default"),
                StoreConf(settings, 2, "4.3.0", 100),
                clock=clock,
                ids=ids,
                groups=None if variant == FILES else self.changelog.groups,
            )
            for partition in range(parameters["stores"])
        ]
        self.bases = [EMPTY] * len(self.stores)
        first = self.accepted()
        for accepted in first:
            accepted.publish()
        self.bases = [Version(1, accepted.attempt) for accepted in first]
        self._due: list[VersionedStore] = []
        self.storage.scale = parameters["scale"]
        self.storage.waits.clear()

    def accepted(self) -> list[Accepted]:
        """An attempt of the next version of each store, accepted."""
        return [self._accept(store, base) for store, base in zip(self.stores, self.bases, strict=True)]

    def _accept(self, store: VersionedStore, base: Version) -> Accepted:
        begun = store.begin(base, task_attempt=0, load_empty=False, force_snapshot=False, have=True)
        if begun.compaction_due:
            self._due.append(store)
        request = CommitRequest(
            begun.attempt,
            base.version + 1,
            None if base.version == 0 else base,
            {0: Count(LIVE_ROWS, 24 * LIVE_ROWS)},
            (FAMILY,),
            1,
            0,
            {"increment": self.rows},
            patient=True,
        )
        return store.accept(request, {"increment": [self._increment]}, most_held=1 << 20)

    def _entries(self) -> pa.RecordBatch:
        keys = [b"key %012d" % one for one in range(self.rows)]
        columns = {"cf": [0] * self.rows, "op": [PUT] * self.rows, "key": keys, "value": [b"8 bytes!"] * self.rows}
        return pa.record_batch([columns[field.name] for field in SCHEMA], schema=SCHEMA)

    def batch(self) -> float:
        """Seconds that a batch waits after its last commit was accepted."""
        waiting = self.accepted()
        started = time.monotonic()
        for accepted in waiting:
            accepted.publish()
        took = time.monotonic() - started
        self.bases = [
            Version(base.version + 1, accepted.attempt) for base, accepted in zip(self.bases, waiting, strict=True)
        ]
        return took

    def merge(self) -> None:
        """What maintenance does beside the batches: nobody waits for it, and its writes are not counted."""
        scale, waits = self.storage.scale, len(self.storage.waits)
        self.storage.scale = 0.0
        at = dict(zip(self.stores, self.bases, strict=True))
        for store in self._due:
            store.confirm(at[store])
            if (made := store.compact()) is not None:
                store.adopt(made.made)
        self._due.clear()
        self.storage.scale = scale
        del self.storage.waits[waits:]

    def objects(self) -> int:
        """Log objects that are there."""
        return len(self.storage.list(paths.LOG))

    def close(self) -> None:
        """Gives its threads and its files up; each listing of the file system in memory goes through all files."""
        self._ticker.remove(self.changelog.groups)
        self.changelog.close()
        fsspec.filesystem("memory").rm(FOLDER, recursive=True)


def waits(parameters: Parameters, rounds: int) -> Figures:
    """How long batches wait, in turns."""
    variants: list[str] = parameters["variants"]
    found: dict[str, dict[str, list[float]]] = {variant: {} for variant in variants}
    for number in range(rounds):
        for variant in variants if number % 2 == 0 else reversed(variants):
            run = Run(parameters, variant, seed=number)
            count = parameters["batches"] // (FEWER if variant == FILES else 1)
            try:
                # the first one knows nothing of how many stores there are
                run.batch()
                run.storage.waits.clear()
                took = []
                for _ in range(max(1, count)):
                    took.append(run.batch())
                    run.merge()
                objects = run.objects() / (len(took) + 1)
            finally:
                run.close()
            figures = {f"p{percent:g}": 1000 * percentile(took, percent) for percent in PERCENTS}
            figures["storage_p99"] = 1000 * percentile(run.storage.waits, 99)
            figures["requests"] = len(run.storage.waits) / len(took)
            figures["objects"] = objects
            for name, value in figures.items():
                found[variant].setdefault(name, []).append(value)
            progress(f"round {number + 1}/{rounds} {variant}: {figures}")
    result: Figures = {
        variant: {name: spread(values) for name, values in figures.items()} for variant, figures in found.items()
    }
    if HEDGED in found and PLAIN in found:
        pairs = {name: zip(found[PLAIN][name], found[HEDGED][name], strict=True) for name in ("p99.9", "requests")}
        result["tail_to_hedged"] = spread([plain / hedged for plain, hedged in pairs["p99.9"]])
        result["more_requests"] = spread([100 * (hedged / plain - 1) for plain, hedged in pairs["requests"]])
    if PLAIN in found:
        to_storage = zip(found[PLAIN]["p99"], found[PLAIN]["storage_p99"], strict=True)
        result["p99_to_storage"] = spread([wait / own for wait, own in to_storage])
    return result


def of_waits(_: Parameters, figures: Figures) -> list[Bar]:
    """The tail, requests and objects."""
    return [
        most("p99 of the wait without hedging, to the storage's own p99", 1.3, figures["p99_to_storage"], " times"),
        least("p99.9 without hedging, to that with it", 2, figures["tail_to_hedged"], " times"),
        most("requests more with hedging", 5, figures["more_requests"], " %"),
        most("log objects a batch and executor", 1, figures[HEDGED]["objects"]),
    ]


def table_of_waits(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each variant."""
    names = [f"p{percent:g}" for percent in PERCENTS]
    heads = ["commits are", *(f"wait {name} ms" for name in names), "the storage's own p99 ms", "requests a batch"]
    rows = []
    for variant, title in TITLES.items():
        if variant in figures:
            found = figures[variant]
            rows.append(
                [
                    title,
                    *(between(found[name], 0) for name in names),
                    between(found["storage_p99"], 0),
                    between(found["requests"]),
                ]
            )
    return heads, rows


def setup_of_waits(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    return (
        f"{parameters['stores']} stores of one engine, {parameters['rows']} changed rows each, "
        f"{parameters['batches']:,} batches ({parameters['batches'] // FEWER:,} where each commit is a file: these are "
        "published one after the other here, as no task asks for its own). A write takes a time drawn from "
        f"{PUBLISHED}, times "
        f"{parameters['scale']:g}. What a batch waits for begins when its last commit was accepted."
    )


def processor(parameters: Parameters, rounds: int) -> Figures:
    """Processor time of all threads for a store and commit, from the begin until it is durable."""
    found: dict[str, list[float]] = {}
    collect_seldom()
    for number in range(rounds):
        for variant in parameters["variants"]:
            run = Run(parameters, variant, seed=number)
            try:
                for _ in range(parameters["warmup"]):
                    run.batch()
                    run.merge()
                took = 0.0
                for _ in range(parameters["batches"]):
                    before = time.process_time()
                    run.batch()
                    took += time.process_time() - before
                    run.merge()
                took *= 1000 / parameters["batches"] / parameters["stores"]
            finally:
                run.close()
            found.setdefault(variant, []).append(took)
            progress(f"round {number + 1}/{rounds} {variant}: {took:.3f} ms")
    return {variant: spread(values) for variant, values in found.items()}


def of_processor(_: Parameters, figures: Figures) -> list[Bar]:
    """A store's share of a group."""
    return [most("engine: processor time of a store and commit in a group", 0.2, figures[HEDGED], " ms", digits=3)]


def table_of_processor(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each variant."""
    return ["commits are", "processor ms"], [[TITLES[variant], between(found, 3)] for variant, found in figures.items()]


def setup_of_processor(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    return (
        f"{parameters['stores']} stores of one engine, {parameters['rows']} changed rows each, "
        f"{LIVE_ROWS:,} live ones, {parameters['batches']:,} batches after {parameters['warmup']}, on a storage in "
        "memory that takes no time; without the wire, and without merges, which others do."
    )


WORDS = """With the changelog small commits of all stores of an executor become durable together, as one log object.
"""

_BOTH: dict[str, Any] = {"stores": 64, "rows": 10}
_SLOW_BATCHES = {SNAPSHOTS: 60, TUNED: 60, OFF: 20, TASK: 20, EXECUTOR: 1000, UNHEDGED: 1000}
"""Batches on slow files that count. Fewer where tasks wait for a file each, since one of those takes so long. Of fewer
the longest is less long, which is in their favour."""

_SLOW_QUERY: dict[str, Any] = {
    "modes": list(_SLOW_BATCHES), "master": "local[8]", "partitions": 64,
    "driver_memory": "4g", "keys": 64_000, "rows": 1_000, "preload": 1, "closing": 1, "warmup": 10,
}  # fmt: skip

CHANGELOG = Questions(
    "changelog",
    "Changelog",
    "asks what commits wait for with the changelog, and holds each answer against its bar",
    WORDS,
    (
        Question(
            name="waits",
            asks="how long a batch waits for its commits, on a storage as slow as S3 at a tenth",
            goal="p99 ≤ 1.3 times the storage's own; hedging halves p99.9 for ≤ 5 % more requests; one object",
            full={**_BOTH, "variants": [HEDGED, PLAIN, FILES], "batches": 3000, "scale": 0.1},
            quick={"batches": 60, "stores": 8, "scale": 0.02},
            rounds=3, measure=waits, bars=of_waits, table=table_of_waits, setup=setup_of_waits,
        ),
        Question(
            name="looks",
            asks="how long stores wait to hear whether the object is there that they stand on, on a storage as slow as "
            "S3 at a tenth",
            goal=f"p99.9 at least {changelog_looks.HALVED:g} times shorter with another look beside a slow one",
            full={"processes": 12, "looks": 1_500, "warmup": 200, "scale": 0.1},
            quick={"processes": 2, "looks": 100, "warmup": 20},
            rounds=3, measure=changelog_looks.measure, bars=changelog_looks.bars, table=changelog_looks.table,
            setup=changelog_looks.setup,
        ),
        Question(
            name="processor",
            asks="what a store's share of a group costs the engine",
            goal="≤ 0.2 ms",
            full={**_BOTH, "variants": [HEDGED, FILES], "warmup": 130, "batches": 96, "scale": 0.0},
            quick={"warmup": 5, "batches": 5, "stores": 8},
            rounds=5, measure=processor, bars=of_processor, table=table_of_processor, setup=setup_of_processor,
        ),
        *(
            Question(
                name=name,
                asks=f"how long a query on 64 partitions waits for its state, on a storage as slow as {what}",
                goal=f"p99.9 ≥ {changelog_waits.SHORTER:g} times shorter than RocksDB; without hedging p99 ≤ "
                f"{changelog_waits.TO_STORAGE:g} times the storage's own",
                full={**_SLOW_QUERY, "scale": scale, "slow": _SLOW_BATCHES, "quick": 100},
                quick={"keys": 4_000, "rows": 500, "partitions": 8, "master": "local[2]", "driver_memory": "2g",
                       "warmup": 5, "slow": dict.fromkeys(_SLOW_BATCHES, 10), "quick": 10, "scale": min(scale, 0.1)},
                rounds=1, measure=changelog_waits.measure, bars=changelog_waits.bars, table=changelog_waits.table,
                setup=changelog_waits.setup,
            )
            for name, what, scale in (("query-waits-fast", "S3 at a tenth", 0.1), ("query-waits", "S3", 1.0))
        ),
        Question(
            name="objects",
            asks="how many files a batch of a join writes, 64 partitions with 4 stores each on two executors",
            goal=f"≤ {changelog_objects.OBJECTS} of commits, and those of Spark's driver",
            full={
                "modes": [SNAPSHOTS, TUNED, OFF, TASK, EXECUTOR, PATIENT], "master": "local-cluster[2,1,1024]",
                "partitions": 64, "driver_memory": "2g",
                "timeline": {"rows": 4_000, "seconds": 20, "preload": 2, "warmup": 10, "timed": 20, "quiet": 1},
            },
            quick={
                "modes": [TUNED, EXECUTOR, PATIENT], "partitions": 8,
                "timeline": {"rows": 500, "seconds": 20, "preload": 1, "warmup": 4, "timed": 4, "quiet": 1},
            },
            rounds=1, measure=changelog_objects.measure, bars=changelog_objects.bars, table=changelog_objects.table,
            setup=changelog_objects.setup,
        ),
        Question(
            name="partitions",
            asks="what a batch takes with 200 partitions on local files, beside the bare map",
            goal=f"addBatch ≤ {changelog_batches.TO_FLOOR:g} times the bare map's",
            full={
                "modes": [FLOOR, OFF, TASK, EXECUTOR], "partitions": 200, "keys": 100_000, "rows": 10_000,
                "preload": 1, "warmup": 20, "timed": 20, "closing": 20_000, "driver_memory": "4g",
            },
            quick={"partitions": 16, "keys": 10_000, "rows": 2_000, "warmup": 2, "timed": 4, "closing": 2_000,
                   "driver_memory": "2g"},
            rounds=5, measure=changelog_batches.measure, bars=changelog_batches.bars_to_floor,
            table=partial(changelog_batches.table, FLOOR), setup=changelog_batches.setup,
        ),
        Question(
            name="throughput",
            asks="rows a second of large batches on local files, beside lamina without the changelog",
            goal=f"≥ {changelog_batches.THROUGHPUT:g} %",
            full={
                "modes": [OFF, TASK, EXECUTOR], "partitions": 2, "keys": 1_000_000, "rows": 100_000,
                "preload": 2, "warmup": 6, "timed": 20, "closing": 250_000, "driver_memory": "4g",
            },
            quick={"keys": 50_000, "rows": 20_000, "preload": 1, "warmup": 2, "timed": 4, "closing": 2_000,
                   "driver_memory": "2g"},
            rounds=5, measure=changelog_batches.measure, bars=changelog_batches.bars_of_throughput,
            table=partial(changelog_batches.table, OFF), setup=changelog_batches.setup,
        ),
        *(
            Question(
                name=name,
                asks=f"how long a restart takes, from {place}, beside lamina without the changelog",
                goal=f"≤ {changelog_restarts.LONGER:g} times as long",
                full={
                    "modes": [OFF, EXECUTOR], "partitions": 16, "keys": 1_000_000, "rows": 20_000, "preload": 2,
                    "warmup": 80, "timed": 5, "closing": 1, "driver_memory": "4g", **more,
                },
                quick={"partitions": 4, "keys": 20_000, "rows": quick_rows, "preload": 1, "warmup": 10, "timed": 3,
                       "driver_memory": "2g"},
                rounds=5, measure=changelog_restarts.measure, bars=changelog_restarts.bars,
                table=changelog_restarts.table, setup=changelog_restarts.setup,
            )
            for name, place, quick_rows, more in (
                ("restart", "local files", 2_000, {}),
                ("restart-s3", "S3", 2_000, {"latency_s": 0.05, "bytes_per_s": 50e6}),
                # fewer batches than all of whose commits are merged for their number alone
                ("restart-churn", "local files where batches change most rows of the state", 40_000,
                 {"partitions": 4, "keys": 200_000, "rows": 400_000, "warmup": 22}),
            )
        ),
        *(
            Question(
                name=f"space-{workload}",
                asks=f"how many bytes the checkpoint's state takes, {what}, beside lamina without the changelog",
                goal=f"≤ {changelog_space.MOST[workload]:g} times as many",
                full={
                    "modes": [OFF, EXECUTOR], "workload": workload, "partitions": 16, "keys": 200_000, "rows": rows,
                    "driver_memory": "4g", "every_ms": 1000, "seconds": 200,
                },
                quick={"partitions": 4, "keys": 10_000, "rows": rows // 5, "driver_memory": "2g", "seconds": 60},
                rounds=1, measure=changelog_space.measure, bars=changelog_space.bars, table=changelog_space.table,
                setup=changelog_space.setup,
            )
            for workload, what, rows in (
                (changelog_space.VALUES, "values of keys", 5_000),
                (changelog_space.SLIDING, "windows that slide", 2_000),
            )
        ),
    ),
)  # fmt: skip


if __name__ == "__main__":
    CHANGELOG.main(__doc__)
