"""A batch that changes a little in each of 200 stores, beside every other store and beside none.

The floor is the stateless query of the same rows. The bare map is a peer that keeps nothing. A ratio is taken within a
round; rounds are few, so the range of all of them is given.
"""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

from benchmarks import variants
from benchmarks.many_stores.bars import Bar, Figures, Parameters, Question, between, least, most, percentile
from benchmarks.processes import ROLES
from benchmarks.rounds import progress, run_child, turns
from benchmarks.statistics import Spread, spread
from benchmarks.variants import FLOOR, HDFS, LAMINA, ROCKSDB, STATELESS, TITLES, TUNED

CHILD = "benchmarks.aggregation_child"
BUILT_IN = (HDFS, ROCKSDB, TUNED)
ORDER = (STATELESS, FLOOR, LAMINA, *BUILT_IN)
TIMES = {"add_batch_ms": "addBatch", "trigger_ms": "trigger"}
TO_MAP, FASTER = 1.2, 3.0
TIMEOUT_S = 3600.0


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all stores, each in a JVM of its own."""
    variants.prepare(ORDER)
    runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in ORDER}
    for number, variant in turns(ORDER, rounds):
        runs[variant].append(one(parameters, variant))
        found = runs[variant][-1]
        took = ", ".join(f"{TIMES[name]} {statistics.median(found[name]):.0f} ms" for name in TIMES)
        progress(f"round {number + 1}/{rounds} {variant}: {took}, load {found['load']}")
    return summary(runs, parameters["partitions"])


def one(parameters: Parameters, variant: str) -> dict[str, Any]:
    """One run of one store."""
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as checkpoint:
        request = {**parameters, "variant": variant, "checkpoint": checkpoint, "action": "run"}
        return run_child(CHILD, request, timeout=TIMEOUT_S)


def summary(runs: dict[str, list[dict[str, Any]]], commits: int) -> Figures:
    """The figures of all runs; `commits` are those of a batch."""
    found: Figures = {"load": spread([run["load"] for answers in runs.values() for run in answers])}
    for name in TIMES:
        times = {variant: [statistics.median(run[name]) for run in answers] for variant, answers in runs.items()}
        found[name] = {variant: spread(values) for variant, values in times.items()}
        found[f"{name}_to"] = {
            variant: _ratios(times[LAMINA], times[variant]) for variant in ORDER if variant != LAMINA
        }
        found[f"{name}_faster_than"] = {variant: _ratios(times[variant], times[LAMINA]) for variant in BUILT_IN}
        found[f"{name}_p95"] = {
            variant: percentile([one for run in answers for one in run[name]], 95) for variant, answers in runs.items()
        }
    found["processor_ms"] = {
        variant: {role: statistics.median(run["processor_ms"][role] for run in answers) for role in ROLES}
        for variant, answers in runs.items()
    }
    found["engine_ms_a_commit"] = spread([run["processor_ms"]["engine"] / commits for run in runs[LAMINA]])
    found["rows_a_commit"] = statistics.median(run["updated_rows"] for run in runs[LAMINA]) / commits
    # without a state rows come as often as they are in the input
    found["same_digest"] = len({run["digest"] for name in ORDER if name != STATELESS for run in runs[name]}) == 1
    return found


def _ratios(numerators: list[float], denominators: list[float]) -> Spread:
    return spread([one / other for one, other in zip(numerators, denominators, strict=True)])


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """Of both times that there are, since a user waits for the longer one."""
    found = []
    for name, title in TIMES.items():
        found.append(most(f"200 stores, {title}: to the bare map", TO_MAP, figures[f"{name}_to"][FLOOR]))
        found += [
            least(f"200 stores, {title}: faster than {TITLES[variant]}", FASTER, ratio, " times")
            for variant, ratio in figures[f"{name}_faster_than"].items()
        ]
    return found


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each store."""
    heads = ["store", "addBatch ms", "p95", "trigger ms", "p95", "lamina to it", "CPU ms: JVM", "engine", "maintenance"]
    rows = []
    for variant in ORDER:
        row = [TITLES[variant]]
        for name in TIMES:
            row += [between(figures[name][variant], 0), f"{figures[f'{name}_p95'][variant]:.0f}"]
        ratio = figures["add_batch_ms_to"].get(variant)
        row.append("" if ratio is None else between(ratio))
        rows.append([*row, *(f"{figures['processor_ms'][variant][role]:.0f}" for role in ROLES)])
    return heads, rows


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran, and how the stores were set."""
    told = "; ".join(
        f"{TITLES[variant]}: "
        + ", ".join(f"{key.removeprefix('spark.sql.streaming.stateStore.')}={value}" for key, value in conf.items())
        for variant in BUILT_IN
        for conf in [variants.settings(variant)]
    )
    same = "All stores gave the same results." if figures["same_digest"] else "THE STORES GAVE DIFFERENT RESULTS."
    return (
        f"Count, max and sum per key in {parameters['partitions']} partitions with one store each, local[2], "
        f"{parameters['keys']:,} keys, {parameters['rows']:,} rows a batch, {figures['rows_a_commit']:.0f} of them a "
        f"commit, heap {parameters['driver_memory']}; {parameters['timed']} timed batches after "
        f"{parameters['preload'] + parameters['warmup']}. {told}; the HDFS store knows no checkpoint format 2. CPU is "
        f"that of a batch. {same}"
    )


QUESTION = Question(
    name="small-commits",
    asks="a batch of 20,000 rows in 200 stores, beside no state, a bare map and the built-in stores",
    goal="1.2 of the bare map; 3 times as fast as the built-in stores",
    full={
        "keys": 100_000, "rows": 20_000, "partitions": 200, "preload": 1, "warmup": 6, "timed": 10, "closing": 20_000,
        "driver_memory": "4g",
    },
    quick={"keys": 20_000, "rows": 4_000, "partitions": 40, "closing": 4_000, "warmup": 2, "timed": 4},
    rounds=5, measure=measure, bars=bars, table=table, setup=setup,
)  # fmt: skip
