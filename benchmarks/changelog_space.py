"""How many bytes the state directory has with the changelog, to those without, while old versions are collected."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import changelog_modes
from benchmarks.bars import Bar, Figures, between, most
from benchmarks.changelog_modes import EXECUTOR, MODES, OFF, TITLES
from benchmarks.questions import Parameters
from benchmarks.rounds import progress, run_child, turns
from benchmarks.statistics import spread
from lamina.settings import PREFIX

CHILD = "benchmarks.changelog_space_child"
VALUES, SLIDING = "values", "sliding"
MOST = {VALUES: 1.3, SLIDING: 3.0}
"""Bytes with the changelog to those without, by the workload."""
COLLECTED = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    PREFIX + "retention.minAgeMs": "20000",
    # a log object may take three eighths of that from its first commit on
    PREFIX + "changelog.batchDelayMs": "100",
    PREFIX + "changelog.upload.attempts": "2",
    PREFIX + "changelog.upload.timeoutMs": "1500",
}


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of both modes, each in a JVM of its own; samples of the second half of each run count."""
    modes: list[str] = parameters["modes"]
    changelog_modes.prepare(modes)
    found: dict[str, dict[str, list[float]]] = {mode: {} for mode in modes}
    for number, mode in turns(modes, rounds):
        answer = _one(parameters, mode)
        later = answer["bytes"][len(answer["bytes"]) // 2 :]
        figures = {
            "median_mb": statistics.median(later) / 1e6,
            "most_mb": max(later) / 1e6,
            "log_mb": statistics.median(answer["log_bytes"][len(answer["log_bytes"]) // 2 :]) / 1e6,
            "objects": answer["objects"][-1],
            "batches": answer["batches"],
            "state_rows": answer["state_rows"],
        }
        for name, value in figures.items():
            found[mode].setdefault(name, []).append(value)
        progress(f"round {number + 1}/{rounds} {mode}: {figures}, load {answer['load']}")
    ratios = zip(found[EXECUTOR]["median_mb"], found[OFF]["median_mb"], strict=True)
    return {
        "modes": {mode: {name: spread(values) for name, values in each.items()} for mode, each in found.items()},
        "to_off": spread([on / off for on, off in ratios]),
    }


def _one(parameters: Parameters, mode: str) -> dict[str, Any]:
    variant, conf = MODES[mode]
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
        request = {**parameters, "variant": variant, "conf": {**COLLECTED, **conf}}
        return run_child(CHILD, {**request, "checkpoint": str(Path(folder) / "checkpoint")}, 3600)


def bars(parameters: Parameters, figures: Figures) -> list[Bar]:
    """Beside the same query without the changelog."""
    what = "value workload" if parameters["workload"] == VALUES else "sliding windows"
    return [most(f"space with the changelog, {what}", MOST[parameters["workload"]], figures["to_off"], " times")]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each mode."""
    names = ("median_mb", "most_mb", "log_mb", "objects", "batches", "state_rows")
    return ["store", "MB", "MB at most", "MB of the log", "log objects at the end", "batches", "rows of state"], [
        [TITLES[mode], *(between(found[name], 0 if name in names[3:] else 2) for name in names)]
        for mode, found in figures["modes"].items()
    ]


def setup(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    query = "Count, max and sum per key"
    if parameters["workload"] == SLIDING:
        query = "Count per key in windows of 10 seconds that slide by one"
    return (
        f"{query}; {parameters['rows']:,} rows a batch, {parameters['partitions']} partitions, a batch every "
        f"{parameters['every_ms']} ms for {parameters['seconds']} s. Spark retains 10 versions, lamina files for 20 s "
        "beyond, and the maintenance comes every 2 s; a log object waits for a further commit for 100 ms, and its "
        "upload is tried twice, for 1.5 s each. Bytes of the state directory are looked at each second; those of "
        "the second half of the time count."
    )
