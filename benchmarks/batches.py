"""The figures of a query's batches beside several stores: `addBatch`, the trigger that a user waits for, and processor
time of all processes. Ratios are taken within rounds; rounds are few, so the range of all of them is given."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import variants
from benchmarks.bars import Figures, between, percentile
from benchmarks.processes import ROLES
from benchmarks.rounds import progress, run_child, turns
from benchmarks.statistics import Spread, spread
from benchmarks.variants import CAPPED, HDFS, LAMINA, ON_TABLES, PREFIX, ROCKSDB, SNAPSHOTS, STATELESS, TITLES, TUNED

TIMES = {"add_batch_ms": "addBatch", "trigger_ms": "trigger"}
PERCENTS = (95, 99)
BUILT_IN = (HDFS, ROCKSDB, TUNED)
ALL_RETAINED = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
"""Then no store deletes what another one keeps, and a directory has all that was ever uploaded."""
ORDER = tuple(variant for variant in TITLES if variant not in (CAPPED, ON_TABLES, SNAPSHOTS))
"""The floor is the same rows without a state; the bare map is a peer that keeps nothing."""


def alternating(
    chosen: Sequence[str], rounds: int, one: Callable[[int, str], dict[str, Any]], title: str = ""
) -> dict[str, list[dict[str, Any]]]:
    """All rounds of each variant, in turns.

    Args:
        one: gives what `aggregation_child` gave in a round of a variant.
        title: what is said before each round.
    """
    runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in chosen}
    for number, variant in turns(chosen, rounds):
        found = one(number, variant)
        runs[variant].append(found)
        took = ", ".join(f"{TIMES[name]} {statistics.median(found[name]):.0f} ms" for name in TIMES)
        progress(f"{title}round {number + 1}/{rounds} {variant}: {took}, load {found['load']}")
    return runs


def on_files(
    parameters: Mapping[str, Any], variant: str, conf: Mapping[str, str], timeout_s: float = 1800
) -> dict[str, Any]:
    """One run of one store, whose checkpoint is thrown away."""
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as name:
        checkpoint = str(Path(name) / "checkpoint")
        request = {**parameters, "variant": variant, "checkpoint": checkpoint, "action": "run", "conf": dict(conf)}
        return run_child("benchmarks.aggregation_child", request, timeout_s)


def with_memory(
    parameters: Mapping[str, Any], _: int, variant: str, conf: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One run of one store with so much memory as the parameters say."""
    return on_files(parameters, variant, {**variants.memory(variant, parameters["memory_mb"]), **(conf or {})})


def figures(runs: Mapping[str, Sequence[Mapping[str, Any]]], subject: str = LAMINA) -> Figures:
    """The figures of all rounds.

    Args:
        runs: of each variant, what `aggregation_child` gave in each round.
        subject: the variant that is held against the others.
    """
    found: Figures = {"load": spread([run["load"] for answers in runs.values() for run in answers])}
    for name in TIMES:
        times = {variant: [statistics.median(run[name]) for run in answers] for variant, answers in runs.items()}
        found[name] = {variant: spread(values) for variant, values in times.items()}
        others = {variant: values for variant, values in times.items() if variant != subject and subject in times}
        found[f"{name}_to"] = {variant: _ratios(times[subject], values) for variant, values in others.items()}
        found[f"{name}_faster_than"] = {variant: _ratios(values, times[subject]) for variant, values in others.items()}
        for percent in PERCENTS:
            found[f"{name}_p{percent}"] = {
                variant: percentile([one for run in answers for one in run[name]], percent)
                for variant, answers in runs.items()
            }
    found["processor_ms"] = {
        variant: {role: statistics.median(run["processor_ms"][role] for run in answers) for role in ROLES}
        for variant, answers in runs.items()
    }
    # without a state rows come as often as they are in the input
    found["same_digest"] = len({run["digest"] for name in runs if name != STATELESS for run in runs[name]}) == 1
    return found


def pauses(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Spread]:
    """How much longer than the median the slowest of a hundred batches is, of each variant."""
    return {
        variant: spread(
            [percentile(run["add_batch_ms"], 99) / statistics.median(run["add_batch_ms"]) for run in answers]
        )
        for variant, answers in runs.items()
    }


def _ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    return spread([one / other for one, other in zip(numerators, denominators, strict=True)])


def present(found: Figures) -> list[str]:
    """The variants that ran, in the order of a table's rows."""
    return [variant for variant in TITLES if variant in found["processor_ms"]]


def table(found: Figures, ratio_head: str = "lamina to it") -> tuple[list[str], list[list[str]]]:
    """A row for each store."""
    heads = ["store"]
    for title in TIMES.values():
        heads += [f"{title} ms", *(f"p{percent}" for percent in PERCENTS), ratio_head]
    rows = []
    for variant in present(found):
        row = [TITLES[variant]]
        for name in TIMES:
            ratio = found[f"{name}_to"].get(variant)
            row += [between(found[name][variant], 0)]
            row += [f"{found[f'{name}_p{percent}'][variant]:.0f}" for percent in PERCENTS]
            row += ["" if ratio is None else between(ratio)]
        rows.append([*row, *(f"{found['processor_ms'][variant][role]:.0f}" for role in ROLES)])
    return [*heads, "CPU ms: JVM", "engine", "maintenance"], rows


def same_results(found: Figures) -> str:
    """Whether all stores gave the same results, as a sentence."""
    return "All stores gave the same results." if found["same_digest"] else "THE STORES GAVE DIFFERENT RESULTS."


def set_up(variant: str) -> str:
    """What is set of a built-in store, beside Spark's defaults."""
    found = {key.removeprefix(PREFIX): value for key, value in variants.settings(variant).items()}
    del found["providerClass"]
    if variant == HDFS:
        return "nothing; it knows no checkpoint format 2"
    return ", ".join(f"{key}={value}" for key, value in found.items())
