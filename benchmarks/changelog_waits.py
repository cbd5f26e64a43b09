"""What a batch of a query waits for until its state is durable, on files as slow as S3, beside Spark's RocksDB."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import changelog_modes
from benchmarks.bars import Bar, Figures, between, least, most, percentile
from benchmarks.batches import ALL_RETAINED
from benchmarks.changelog_modes import EXECUTOR, MODES, TASK, TITLES, UNHEDGED
from benchmarks.questions import Parameters
from benchmarks.rounds import progress, run_child, turns
from benchmarks.slow_storage import PUBLISHED
from benchmarks.statistics import spread
from benchmarks.variants import SNAPSHOTS, TUNED
from lamina.settings import PREFIX

CHILD = "benchmarks.changelog_child"
PERCENTS = (50.0, 99.0, 99.9)
SHORTER, TO_STORAGE = 10.0, 1.3


def request_of(parameters: Parameters, mode: str, folder: Path, seed: int) -> dict[str, Any]:
    """What a child is asked for, whose files lie in the folder."""
    variant, conf = MODES[mode]
    return {
        **parameters,
        "variant": variant,
        "folder": str(folder),
        "seed": seed,
        "conf": {
            **ALL_RETAINED,
            PREFIX + "storage.cache.directory": str(folder / "copies"),
            **conf,
        },
    }


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all stores, each in a JVM of its own; all draw the same latencies in the same order."""
    modes: list[str] = parameters["modes"]
    changelog_modes.prepare(modes)
    found: dict[str, dict[str, list[float]]] = {mode: {} for mode in modes}
    for number, mode in turns(modes, rounds):
        given = {**parameters, "slow": parameters["slow"][mode]}
        batches = given["warmup"] + given["slow"] + given["quick"]
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
            asked = {**request_of(given, mode, Path(folder), number + 1), "action": "waits", "timed": batches}
            answer = run_child(CHILD, asked, timeout=600 + 20 * batches)
        figures = _figures(answer)
        for name, value in figures.items():
            found[mode].setdefault(name, []).append(value)
        shown = {name: round(value, 1) for name, value in figures.items()}
        progress(f"round {number + 1}/{rounds} {mode}: {shown}, {answer['puts']}, load {answer['load']}")
    return {mode: {name: spread(values) for name, values in figures.items()} for mode, figures in found.items()} | {
        "shorter": {
            other: spread([a / b for a, b in zip(found[other]["p99.9"], found[EXECUTOR]["p99.9"], strict=True)])
            for other in (SNAPSHOTS, TUNED)
        },
        "to_storage": spread(
            [a / b for a, b in zip(found[UNHEDGED]["p99"], found[UNHEDGED]["storage_p99"], strict=True)]
        ),
    }


def _figures(answer: dict[str, Any]) -> dict[str, float]:
    quick = statistics.median(answer["quick_ms"])
    took = [max(0.0, one - quick) for one in answer["slow_ms"]]
    return {
        **{f"p{percent:g}": percentile(took, percent) for percent in PERCENTS},
        "storage_p99": percentile(answer["put_ms"], 99),
        "batch_ms": quick,
        "noise_ms": percentile(answer["quick_ms"], 99) - quick,
        "requests": sum(answer["puts"].values()) / len(took),
        "updated_rows": answer["updated_rows"],
    }


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """Against the built-in stores, and against the storage itself."""
    return [
        *(
            least(
                f"p99.9 of the wait of a batch: shorter than the longest of {TITLES[other]}", SHORTER, found, " times"
            )
            for other, found in figures["shorter"].items()
        ),
        most("p99 of the wait of a batch without hedging, to the storage's own p99", TO_STORAGE, figures["to_storage"]),
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each store."""
    heads = ["store", *(f"wait p{percent:g} ms" for percent in PERCENTS), "PUT p99 ms", "PUTs a batch"]
    heads += ["batch without latency ms", "its p99 more ms"]
    names = [*(f"p{percent:g}" for percent in PERCENTS), "storage_p99", "requests", "batch_ms", "noise_ms"]
    return heads, [
        [title, *(between(figures[mode][name], 0 if name != "requests" else 1) for name in names)]
        for mode, title in TITLES.items()
        if mode in figures
    ]


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran."""
    slow: dict[str, int] = parameters["slow"]
    return (
        f"Count, max and sum per key, {parameters['partitions']} partitions in `{parameters['master']}`, "
        f"{figures[EXECUTOR]['updated_rows']['median']:,.0f} changed rows a batch, {slow[EXECUTOR]:,} batches with "
        f"level executor, {slow[TUNED]:,} of the built-in stores and {slow[TASK]:,} of the others: p99.9 of few is "
        "their longest, and less than that of many. The checkpoint lies in a Hadoop file system that is the same for "
        f"all. A PUT of a file of state takes a time drawn from {PUBLISHED}, times {parameters['scale']:g}; Spark's "
        "offsets and commit entries take none, and neither do reads. The wait of a batch is `addBatch` and "
        "`commitOffsets`, less their median over "
        f"{parameters['quick']:,} batches without latency in the same JVM afterwards."
    )
