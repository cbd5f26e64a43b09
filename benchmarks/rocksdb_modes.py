"""The checkpoint modes beside each other, as FLIP-151 compares them: runtime, size, duration, synchronous part."""

from __future__ import annotations

from itertools import product
from typing import Any

from benchmarks import batches, variants
from benchmarks.bars import Bar, Figures, percentile
from benchmarks.questions import Parameters
from benchmarks.rounds import progress, turns
from benchmarks.variants import LAMINA, ON_TABLES
from lamina.settings import PREFIX

FULL, INCREMENTAL, TABLES = "heap, full", "heap, incremental", "rocksdb, incremental"
MERGED = "heap, incremental, merged in the background"
EVERY = 16
"""A full snapshot after 15 increments."""
MODES: dict[str, tuple[str, dict[str, str]]] = {
    FULL: (LAMINA, {"compaction.mode": "full", "compaction.fullInterval": "1"}),
    INCREMENTAL: (LAMINA, {"compaction.mode": "full", "compaction.fullInterval": str(EVERY)}),
    MERGED: (LAMINA, {"compaction.mode": "background"}),
    TABLES: (ON_TABLES, {"rocksdb.materializeEvery": "1"}),
}
PERCENTS = {"size_mb": (75, 95), "duration_s": (75, 95), "sync_ms": (75, 95, 99, 100)}
TITLES = {"size_mb": "checkpoint size, MB", "duration_s": "checkpoint duration, s", "sync_ms": "synchronous part, ms"}


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all modes, each in a JVM of its own."""
    variants.prepare([LAMINA, ON_TABLES])
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for number, mode in turns(list(MODES), rounds):
        variant, settings = MODES[mode]
        conf = {PREFIX + key: value for key, value in settings.items()}
        runs[mode].append(batches.on_files({**parameters, "each": True}, variant, conf, 3600))
        progress(f"round {number + 1}/{rounds} {mode}: {sum(runs[mode][-1]['trigger_ms']) / 1000:.1f} s")
    return {mode: _summary(answers) for mode, answers in runs.items()}


def _summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    checkpoints = [one for answer in answers for one in answer["checkpoints"]]
    series = {
        "size_mb": [size / 1e6 for answer in answers for size in answer["sizes"]],
        # what opens wait for are the tables of the commit before
        "duration_s": [(one["commit_ms"] + one["durable_ms"] + one["waited_ms"]) / 1000 for one in checkpoints],
        "sync_ms": [one["commit_ms"] + one["waited_ms"] for one in checkpoints],
    }
    return {
        "runtime_s": sum(sum(answer["trigger_ms"]) for answer in answers) / len(answers) / 1000,
        **{
            name: {str(percent): percentile(values, percent) for percent in PERCENTS[name]}
            for name, values in series.items()
        },
    }


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """Incremental snapshots of the heap beat full ones and tables of RocksDB in each column."""
    found = []
    for mine, mode in product((INCREMENTAL, MERGED), (FULL, TABLES)):
        one, other = figures[mine], figures[mode]
        worse = [] if one["runtime_s"] < other["runtime_s"] else ["runtime"]
        for name, percents in PERCENTS.items():
            worse += [
                f"{TITLES[name]} at {percent} %"
                for percent in map(str, percents)
                if one[name][percent] >= other[name][percent]
            ]
        shown = "in each" if not worse else f"not in {', '.join(worse)}"
        found.append(Bar(f"{mine}: less than {mode}", "in each column", shown, not worse))
    return found


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each mode."""
    heads = ["", "runtime, s"]
    heads += [f"{TITLES[name]} ({'/'.join(map(str, percents))} %)" for name, percents in PERCENTS.items()]
    rows = []
    for mode, found in figures.items():
        row = [mode, f"{found['runtime_s']:.1f}"]
        for name, percents in PERCENTS.items():
            digits = 2 if name == "duration_s" else 0
            row.append(" / ".join(f"{found[name][str(percent)]:,.{digits}f}" for percent in percents))
        rows.append(row)
    return heads, rows


def setup(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    return (
        f"{parameters['keys'] / 1e6:g}M keys, {parameters['rows']:,} updated in each batch, texts of "
        f"{parameters['value_bytes']:,} characters; {parameters['timed']} batches after "
        f"{parameters['preload'] + parameters['warmup']}; incremental is with a full snapshot after {EVERY - 1} "
        "increments, with what increments are merged into beside the batches, which is the default, or with tables of "
        "RocksDB at each commit. Merged files count for the batch in which they are written. The synchronous part is "
        "what tasks spend in commits, and, with tables of RocksDB, in waits for those of the commit before; the "
        "duration is that and the wait for files, both of all tasks together."
    )
