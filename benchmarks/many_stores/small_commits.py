"""A batch that changes a little in each of 200 stores, beside every other store and beside none."""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

from benchmarks import batches, variants
from benchmarks.bars import Bar, Figures, least, most
from benchmarks.batches import BUILT_IN, ORDER, TIMES
from benchmarks.questions import Parameters, Question
from benchmarks.rounds import run_child
from benchmarks.statistics import spread
from benchmarks.variants import FLOOR, LAMINA, TITLES

CHILD = "benchmarks.aggregation_child"
TO_MAP, FASTER = 1.2, 3.0
TIMEOUT_S = 3600.0


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all stores, each in a JVM of its own."""
    variants.prepare(ORDER)
    runs = batches.alternating(ORDER, rounds, lambda _, variant: one(parameters, variant))
    return summary(runs, parameters["partitions"])


def one(parameters: Parameters, variant: str) -> dict[str, Any]:
    """One run of one store."""
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as checkpoint:
        request = {**parameters, "variant": variant, "checkpoint": checkpoint, "action": "run"}
        return run_child(CHILD, request, timeout=TIMEOUT_S)


def summary(runs: dict[str, list[dict[str, Any]]], commits: int) -> Figures:
    """The figures of all runs; `commits` are those of a batch."""
    return {
        **batches.figures(runs),
        "engine_ms_a_commit": spread([run["processor_ms"]["engine"] / commits for run in runs[LAMINA]]),
        "rows_a_commit": statistics.median(run["updated_rows"] for run in runs[LAMINA]) / commits,
    }


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """Of both times that there are, since a user waits for the longer one."""
    found = []
    for name, title in TIMES.items():
        found.append(most(f"200 stores, {title}: to the bare map", TO_MAP, figures[f"{name}_to"][FLOOR]))
        found += [
            least(
                f"200 stores, {title}: faster than {TITLES[variant]}",
                FASTER,
                figures[f"{name}_faster_than"][variant],
                " times",
            )
            for variant in BUILT_IN
        ]
    return found


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran, and how the stores were set."""
    told = "; ".join(f"{TITLES[variant]}: {batches.set_up(variant)}" for variant in BUILT_IN)
    return (
        f"Count, max and sum per key in {parameters['partitions']} partitions with one store each, local[2], "
        f"{parameters['keys']:,} keys, {parameters['rows']:,} rows a batch, {figures['rows_a_commit']:.0f} of them a "
        f"commit, heap {parameters['driver_memory']}; {parameters['timed']} timed batches after "
        f"{parameters['preload'] + parameters['warmup']}. {told}. CPU is that of a batch. "
        f"{batches.same_results(figures)}"
    )


QUESTION = Question(
    name="small-commits",
    asks="a batch of 20,000 rows in 200 stores, beside no state, a bare map and the built-in stores",
    goal="1.2 of the bare map; 3 times as fast as the built-in stores",
    full={
        "keys": 100_000, "rows": 20_000, "partitions": 200, "preload": 1, "warmup": 24, "timed": 8, "closing": 20_000,
        "driver_memory": "4g",
    },
    quick={"keys": 20_000, "rows": 4_000, "partitions": 40, "closing": 4_000, "warmup": 2, "timed": 4},
    rounds=3, measure=measure, bars=bars, table=batches.table, setup=setup,
)  # fmt: skip
