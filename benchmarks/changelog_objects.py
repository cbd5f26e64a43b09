"""How many files a batch of a join writes on two executors, with the changelog and on Spark's RocksDB."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import changelog_modes
from benchmarks.bars import Bar, Figures, between, most
from benchmarks.changelog_modes import EXECUTOR, PATIENT, TITLES
from benchmarks.changelog_waits import CHILD, request_of
from benchmarks.operator_queries import Timeline
from benchmarks.questions import Parameters
from benchmarks.rounds import progress, run_child, turns
from benchmarks.scala import linked_spark
from benchmarks.statistics import spread

OBJECTS, ENTRIES = 2, 2
"""Of a batch: one log object an executor; Spark's offsets and its commit entry, which the driver writes."""
BACKGROUND = ("seg", "needs")
STORES = 4


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all stores, each in a JVM and executors of its own."""
    modes: list[str] = parameters["modes"]
    changelog_modes.prepare(modes)
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    timeline = Timeline(**parameters["timeline"])
    for number, mode in turns(modes, rounds):
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as name:
            folder = Path(name)
            asked = {**request_of(parameters, mode, folder, number + 1), "action": "objects"}
            variables = {"SPARK_HOME": str(linked_spark(folder / "spark"))}
            answer = run_child(CHILD, asked, timeout=600 + 20 * timeline.batches, variables=variables)
        runs[mode].append(answer)
        progress(f"round {number + 1}/{rounds} {mode}: {answer['puts']}, {answer['entries']}, load {answer['load']}")
    return {mode: _figures(answers) for mode, answers in runs.items()}


def _figures(answers: list[dict[str, Any]]) -> dict[str, Any]:
    batches = [Counter(puts) for answer in answers for puts in answer["puts"]]
    kinds = sorted({kind for puts in batches for kind in puts})
    return {
        "kinds": {kind: spread([puts[kind] for puts in batches]) for kind in kinds},
        "commits": spread([sum(puts[kind] for kind in puts if kind not in BACKGROUND) for puts in batches]),
        "background": spread([sum(puts[kind] for kind in BACKGROUND) for puts in batches]),
        "entries": spread([one for answer in answers for one in answer["entries"]]),
        "updated_rows": spread([one for answer in answers for one in answer["updated_rows"]]),
    }


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """What batches write with durability level `executor`."""
    found = figures[EXECUTOR]
    return [
        most("files that the commits of a batch write on two executors", OBJECTS, found["commits"]),
        most("the same, with 4 s in place of 500 ms for a further commit", OBJECTS, figures[PATIENT]["commits"]),
        most("files that the driver writes for a batch: offsets and commit entry", ENTRIES, found["entries"]),
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each store."""
    heads = ["store", "files of commits", "in the background", "by the driver", "by kind"]
    return heads, [
        [
            title,
            *(between(figures[mode][name], 0) for name in ("commits", "background", "entries")),
            ", ".join(f"{kind} {between(found, 0)}" for kind, found in figures[mode]["kinds"].items()),
        ]
        for mode, title in TITLES.items()
        if mode in figures
    ]


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran."""
    return (
        f"An inner join in state format 2, {parameters['partitions']} partitions with {STORES} stores each, in "
        f"`{parameters['master']}`; {figures[EXECUTOR]['updated_rows']['median']:,.0f} changed rows a batch, "
        f"{parameters['timeline']['timed']} batches. Counted are files whose writing ended in a batch. Those of the "
        "background are lamina's merges; the built-in store uploads its snapshots in its maintenance, and they count. "
        "By default a log object waits 500 ms for a further commit: where the tasks of an executor take longer, a "
        "batch has more of them."
    )
