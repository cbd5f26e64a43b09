"""What a batch of a query waits for until its state is durable, on files as slow as S3, beside Spark's RocksDB."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import changelog_modes
from benchmarks.bars import Bar, Figures, between, least, most, percentile
from benchmarks.batches import ALL_RETAINED
from benchmarks.changelog_modes import EXECUTOR, MODES, TASK, TITLES, UNHEDGED
from benchmarks.questions import Parameters
from benchmarks.rounds import progress, run_children, turns
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
    """All rounds of all stores, each in JVMs of its own; all draw the same latencies in the same order, but for the
    further ones of queries of one store that run at the same time."""
    modes: list[str] = parameters["modes"]
    changelog_modes.prepare(modes)
    found: dict[str, dict[str, list[float]]] = {mode: {} for mode in modes}
    for number, mode in turns(modes, rounds):
        queries = parameters["at_once"].get(mode, 1)
        given = {**parameters, "slow": parameters["slow"][mode] // queries}
        batches = given["warmup"] + given["slow"] + given["quick"]
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as name:
            folders = [Path(name) / str(query) for query in range(queries)]
            for folder in folders:
                folder.mkdir()
            more = {"action": "waits", "timed": batches, "folders": list(map(str, folders))}
            asked = [
                {**request_of(given, mode, folder, number + 1 + rounds * query), **more}
                for query, folder in enumerate(folders)
            ]
            answers = run_children(CHILD, asked, timeout=600 + 20 * batches)
        figures = _figures(answers)
        for name, value in figures.items():
            found[mode].setdefault(name, []).append(value)
        shown = {name: round(value, 1) for name, value in figures.items()}
        written = [answer["puts"] for answer in answers]
        progress(f"round {number + 1}/{rounds} {mode}: {shown}, {written}, load {answers[0]['load']}")
    return {mode: {name: spread(values) for name, values in figures.items()} for mode, figures in found.items()} | {
        "shorter": {
            other: spread([a / b for a, b in zip(found[other]["p99.9"], found[EXECUTOR]["p99.9"], strict=True)])
            for other in (SNAPSHOTS, TUNED)
        },
        "to_storage": spread(
            [a / b for a, b in zip(found[UNHEDGED]["p99"], found[UNHEDGED]["storage_p99"], strict=True)]
        ),
    }


def _figures(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of queries that ran at the same time; each has a median of its own of batches without latency."""
    took, noise = [], []
    for answer in answers:
        median = statistics.median(answer["quick_ms"])
        took += [max(0.0, one - median) for one in answer["slow_ms"]]
        noise += [one - median for one in answer["quick_ms"]]
    return {
        **{f"p{percent:g}": percentile(took, percent) for percent in PERCENTS},
        "storage_p99": percentile([*itertools.chain(*(answer["put_ms"] for answer in answers))], 99),
        "batch_ms": statistics.mean(statistics.median(answer["quick_ms"]) for answer in answers),
        "noise_ms": percentile(noise, 99),
        "requests": sum(sum(answer["puts"].values()) for answer in answers) / len(took),
        "updated_rows": statistics.mean(answer["updated_rows"] for answer in answers),
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
    several = "".join(
        f" Those of {TITLES[mode]} are of {queries} queries that ran at the same time, each in a JVM of its own."
        for mode, queries in parameters["at_once"].items()
    )
    if several:
        several += (
            " They take processor time from each other, less while files are slow than in the batches without latency, "
            "which they have at the same time, too, once all are through with the others: so what is taken off is "
            "more than it would be of one query alone."
        )
    return (
        f"Count, max and sum per key, {parameters['partitions']} partitions in `{parameters['master']}`, "
        f"{figures[EXECUTOR]['updated_rows']['median']:,.0f} changed rows a batch, {slow[EXECUTOR]:,} batches with "
        f"level executor, {slow[SNAPSHOTS]:,} and {slow[TUNED]:,} of the built-in stores, with snapshots and tuned, "
        f"and {slow[TASK]:,} of the others with a file for each store or task: p99.9 of few is their longest, and less "
        f"than that of many.{several} The checkpoint lies in a Hadoop file system that is the same for all. A PUT of a "
        f"file of state takes a time drawn from {PUBLISHED}, times {parameters['scale']:g}; Spark's "
        "offsets and commit entries take none, and neither do reads. The wait of a batch is `addBatch` and "
        "`commitOffsets`, less their median over "
        f"{parameters['quick']:,} batches without latency in the same JVM afterwards."
    )
