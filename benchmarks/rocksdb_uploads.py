"""What batches upload, by part, beside Spark's RocksDB, and how even they are meanwhile."""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks import batches, variants
from benchmarks.bars import Bar, Figures, between, most
from benchmarks.questions import Parameters
from benchmarks.statistics import spread
from benchmarks.upload_parts import PARTS
from benchmarks.variants import ON_TABLES, ROCKSDB, SNAPSHOTS, TITLES, TUNED

STORES = [ON_TABLES, SNAPSHOTS, ROCKSDB, TUNED]
PAUSE_BAR = 1.5


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all stores, each in a JVM of its own."""
    variants.prepare(STORES)
    runs = batches.alternating(
        STORES, rounds, partial(batches.with_memory, {**parameters, "parts": True}, conf=batches.ALL_RETAINED)
    )
    found = batches.figures(runs, ON_TABLES)
    found["state_rows"] = statistics.median(run["state_rows"] for run in runs[ON_TABLES])
    for part in PARTS:
        found[part] = {
            variant: spread([run["part_bytes"][part] for run in answers]) for variant, answers in runs.items()
        }
    sums = {variant: [sum(run["part_bytes"].values()) for run in answers] for variant, answers in runs.items()}
    found["bytes"] = {variant: spread(sizes) for variant, sizes in sums.items()}
    found["share"] = {
        variant: spread([ours / theirs for ours, theirs in zip(sums[ON_TABLES], sizes, strict=True)])
        for variant, sizes in sums.items()
        if variant != ON_TABLES
    }
    if not parameters["every_s"]:
        found["pause"] = batches.pauses(runs)
    return found


def bars(parameters: Parameters, figures: Figures) -> list[Bar]:
    """What is uploaded, and, of batches without a pause, how even they are meanwhile."""
    how = f", a batch each {parameters['every_s']:g} s" if parameters["every_s"] else ""
    found = [
        most(f"backend rocksdb{how}: bytes uploaded, of those of {TITLES[other]}", 1, share)
        for other, share in figures["share"].items()
    ]
    if not parameters["every_s"]:
        pause = figures["pause"][ON_TABLES]
        found.insert(0, most("backend rocksdb, while tables are made: p99 of addBatch to its median", PAUSE_BAR, pause))
    return found


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each store; how long batches take says nothing where they come at a pace."""
    heads = ["store", "kB a batch", *PARTS]
    rows = [
        [TITLES[variant], *(f"{figures[name][variant]['median'] / 1000:,.0f}" for name in ("bytes", *PARTS))]
        for variant in STORES
    ]
    if "pause" in figures:
        heads += ["addBatch ms", "p99 to median"]
        for variant, row in zip(STORES, rows, strict=True):
            row += [between(figures["add_batch_ms"][variant], 0), between(figures["pause"][variant])]
    return heads, rows


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran, and how the stores were set."""
    pace = f"one each {parameters['every_s']:g} s" if parameters["every_s"] else "without a pause"
    built_in = "; ".join(f"{TITLES[one]}: {batches.set_up(one)}" for one in STORES if one != ON_TABLES)
    return (
        f"Count, max and sum per key. {figures['state_rows']:,.0f} keys in the state, {parameters['rows']:,} rows a "
        f"batch, {parameters['memory_mb']} MB for RocksDB and all that is in memory for it, heap "
        f"{parameters['driver_memory']}; {parameters['timed']} batches, {pace}, after "
        f"{parameters['preload'] + parameters['warmup']}. All that was uploaded is kept, so it is what the state's "
        "directory has grown by, without checksum files. Increments are commits or changelog files; runs are tables "
        "that the maintenance process wrote of increments, and what RocksDB made of them is merged by it; the built-in "
        "store's tables are all of the latter kind, also those that it wrote from memory. It uploads its snapshots in "
        "maintenance, once a minute, but for the one without a changelog. "
        f"{built_in}. {batches.same_results(figures)}"
    )
