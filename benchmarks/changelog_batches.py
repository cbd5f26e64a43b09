"""How long batches on local files take with the changelog, to the bare map and to lamina without it."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from benchmarks import batches, changelog_modes
from benchmarks.bars import Bar, Figures, between, least, most
from benchmarks.changelog_modes import EXECUTOR, MODES, OFF, TASK, TITLES
from benchmarks.questions import Parameters
from benchmarks.statistics import Spread, spread
from benchmarks.variants import FLOOR

TO_FLOOR, THROUGHPUT = 1.1, 95.0


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all modes, each in a JVM of its own."""
    modes: list[str] = parameters["modes"]
    changelog_modes.prepare(modes)
    runs = batches.alternating(modes, rounds, partial(_one, parameters))
    found: Figures = {
        name: {mode: spread([statistics.median(run[name]) for run in answers]) for mode, answers in runs.items()}
        for name in batches.TIMES
    }
    found["rows_per_s"] = {mode: spread([_rate(parameters, run) for run in answers]) for mode, answers in runs.items()}
    for base in {FLOOR, OFF} & set(modes):
        found[f"add_batch_to_{base}"] = {
            mode: spread([_median(one) / _median(two) for one, two in zip(runs[mode], runs[base], strict=True)])
            for mode in modes
        }
        found[f"rate_to_{base}"] = {
            mode: spread(
                [100 * _rate(parameters, one) / _rate(parameters, two)
                 for one, two in zip(runs[mode], runs[base], strict=True)]
            )
            for mode in modes
        }  # fmt: skip
    found["kb_a_batch"] = {
        mode: spread([run["bytes_a_batch"] / 1000 for run in answers]) for mode, answers in runs.items()
    }
    found["same_digest"] = len({run["digest"] for answers in runs.values() for run in answers}) == 1
    return found


def _one(parameters: Parameters, _: int, mode: str) -> dict[str, Any]:
    return batches.on_files(parameters, *MODES[mode])


def _median(run: dict[str, Any]) -> float:
    return float(statistics.median(run["add_batch_ms"]))


def _rate(parameters: Parameters, run: dict[str, Any]) -> float:
    """Rows a second over all timed batches."""
    return float(parameters["rows"] * len(run["trigger_ms"]) / sum(run["trigger_ms"]) * 1000)


def bars_to_floor(parameters: Parameters, figures: Figures) -> list[Bar]:
    """`addBatch` with many stores, to the bare map."""
    return [
        most(f"{parameters['partitions']} partitions, addBatch to the bare map: {TITLES[mode]}", TO_FLOOR, found)
        for mode, found in figures[f"add_batch_to_{FLOOR}"].items()
        if mode in (TASK, EXECUTOR)
    ]


def bars_of_throughput(_: Parameters, figures: Figures) -> list[Bar]:
    """Rows a second with the changelog, to those without."""
    return [
        least(f"large batches, rows a second of those without: {TITLES[mode]}", THROUGHPUT, found, " %")
        for mode, found in figures[f"rate_to_{OFF}"].items()
        if mode in (TASK, EXECUTOR)
    ]


def table(base: str, figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each mode, with the ratios to one of them."""
    heads = ["store", "addBatch ms", "trigger ms", f"addBatch to {TITLES[base]}", "rows/s", "% of its", "kB a batch"]
    columns: list[tuple[dict[str, Spread], int]] = [
        (figures["add_batch_ms"], 0), (figures["trigger_ms"], 0), (figures[f"add_batch_to_{base}"], 2),
        (figures["rows_per_s"], 0), (figures[f"rate_to_{base}"], 0), (figures["kb_a_batch"], 0),
    ]  # fmt: skip
    return heads, [
        [title, *(between(column[mode], digits) for column, digits in columns)]
        for mode, title in TITLES.items()
        if mode in figures["add_batch_ms"]
    ]


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran."""
    return (
        f"Count, max and sum per key, {parameters['keys']:,} keys, {parameters['rows']:,} rows a batch, "
        f"{parameters['partitions']} partitions in `local[2]`, heap {parameters['driver_memory']}, "
        f"{parameters['timed']} timed batches after {parameters['preload'] + parameters['warmup']}, on local files. "
        "With durability level `executor` the wait for the log object is in the trigger, and not in `addBatch`. "
        f"{batches.same_results(figures)}"
    )
