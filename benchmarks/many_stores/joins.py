"""A join of 64 tasks with four stores each on a storage that is 50 ms away: its batches, and its restart.

Far and near take turns within one session: in batches, and in restarts. It is far for the maintenance process always,
so that batches of both kinds have the same merges beside them; before a restart it is near and has time to end them.
Requests are counted in both processes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import variants
from benchmarks.bars import Bar, Figures, between, most, percentile
from benchmarks.batches import TIMES
from benchmarks.many_stores.latency import LATENCY_S, Distance
from benchmarks.processes import ROLES
from benchmarks.questions import Parameters, Question
from benchmarks.rounds import progress, run_child
from benchmarks.statistics import spread
from benchmarks.variants import LAMINA

CHILD = "benchmarks.many_stores.joins_child"
WAITS, OPENS, WORK_MS = 1.3, 1.5, 2000.0
JOIN = {"cores": 16, "partitions": 64, "latency_s": LATENCY_S, "driver_memory": "4g"}
QUICK = {"cores": 4, "partitions": 8}


def runs(action: str, parameters: Parameters, rounds: int) -> list[dict[str, Any]]:
    """Each round in a session of its own."""
    variants.prepare([LAMINA])
    found = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as name:
            folder = Path(name)
            distance = Distance(folder / "distance")
            request = {
                **parameters,
                "action": action,
                "checkpoint": str(folder / "checkpoint"),
                "distance": str(distance.directory),
            }
            found.append(run_child(CHILD, request, timeout=3600, variables=distance.variables))
        medians = {
            place: {key: round(statistics.median(found[-1][place][key])) for key in TIMES} for place in ("near", "far")
        }
        progress(f"round {number + 1}/{rounds} {action}: {medians}, load {found[-1]['load']}")
    return found


def common(parameters: Parameters, answers: list[dict[str, Any]]) -> Figures:
    """What both questions give of their runs."""
    found: Figures = {
        "waves": -(-parameters["partitions"] // parameters["cores"]),
        "load": spread([answer["load"] for answer in answers]),
        "stores": answers[0]["stores"],
        "rows_a_store": answers[0]["state_rows"] / (answers[0]["stores"] / 2),
        "bytes_a_store": answers[0]["state_bytes"] / answers[0]["stores"],
        "changed_rows": answers[0]["changed_rows"],
        "processor_ms": {role: statistics.median(answer["processor_ms"][role] for answer in answers) for role in ROLES},
    }
    for place in ("near", "far"):
        found[place] = {}
        for key in TIMES:
            found[place][key] = spread([statistics.median(answer[place][key]) for answer in answers])
            found[place][f"{key}_p95"] = percentile([one for answer in answers for one in answer[place][key]], 95)
        counted: Counter[str] = Counter()
        for answer in answers:
            for one in answer[place]["requests"]:
                counted.update(one)
        batches = sum(len(answer[place]["requests"]) for answer in answers)
        found[place]["requests"] = {kind: round(count / batches, 2) for kind, count in sorted(counted.items())}
    return found


def measure_batches(parameters: Parameters, rounds: int) -> Figures:
    """By how much a batch takes longer where the storage is far away: each batch beside the near one of its pair."""
    answers = runs("batches", parameters, rounds)
    found = common(parameters, answers)
    for key in TIMES:
        found[f"{key}_more"] = spread(
            [
                statistics.median([far - near for far, near in zip(one["far"][key], one["near"][key], strict=True)])
                for one in answers
            ]
        )
    return found


def bars_of_batches(parameters: Parameters, figures: Figures) -> list[Bar]:
    round_trips = figures["waves"] * parameters["latency_s"] * 1000
    return [
        most(
            f"join of {figures['stores']} stores, {title}: longer where the storage is far away "
            f"({figures['waves']} waves, so {round_trips:.0f} ms of round trips)",
            WAITS * round_trips,
            figures[f"{key}_more"],
            " ms",
            0,
        )
        for key, title in TIMES.items()
    ]


def measure_opens(parameters: Parameters, rounds: int) -> Figures:
    """By how much the first batch after a restart takes longer than those after it."""
    answers = runs("opens", parameters, rounds)
    found = common(parameters, answers)
    for place in ("near", "far"):
        for key in TIMES:
            found[place][f"{key}_opening"] = spread(
                [
                    statistics.median(
                        [
                            first - later
                            for first, later in zip(one[place][key], one[place][f"later_{key}"], strict=True)
                        ]
                    )
                    for one in answers
                ]
            )
        found[place]["load_ms"] = spread([statistics.median(one[place]["load_ms"]) for one in answers])
        found[place]["opening_processor_ms"] = {
            role: statistics.median(took[role] for one in answers for took in one[place]["opening_processor_ms"])
            for role in ROLES
        }
    return found


def bars_of_opens(parameters: Parameters, figures: Figures) -> list[Bar]:
    round_trips = 2 * figures["waves"] * parameters["latency_s"] * 1000
    return [
        most(
            f"restart of {figures['stores']} stores, {title}: the first batch over the next ones",
            OPENS * round_trips + WORK_MS,
            figures["far"][f"{key}_opening"],
            " ms",
            0,
        )
        for key, title in TIMES.items()
    ]


def table(*parts: tuple[str, str]) -> Callable[[Figures], tuple[list[str], list[list[str]]]]:
    """A row for each place; `parts` are further figures of it, and their heads."""

    def of(figures: Figures) -> tuple[list[str], list[list[str]]]:
        heads = ["storage", "addBatch ms", "p95", "trigger ms", "p95", *(head for _, head in parts), "requests a batch"]
        rows = []
        for place in ("near", "far"):
            row = [place]
            for key in TIMES:
                row += [between(figures[place][key], 0), f"{figures[place][f'{key}_p95']:.0f}"]
            row += [between(figures[place][part], 0) for part, _ in parts]
            rows.append([*row, ", ".join(f"{kind} {count:g}" for kind, count in figures[place]["requests"].items())])
        return heads, rows

    return of


def by_role(took_ms: Mapping[str, float]) -> str:
    """Processor time of each process, in words."""
    return ", ".join(f"{role} {took:.0f} ms" for role, took in took_ms.items())


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran."""
    maintenance = "the maintenance process always has as much before its own"
    if "pause_s" in parameters:
        maintenance = f"{parameters['pause_s']} s before each restart in which files are merged, and "
        maintenance += f"{parameters['unmeasured']} restarts before those that are measured"
    processor = by_role(figures["processor_ms"])
    for place in ("near", "far"):
        if opening := figures[place].get("opening_processor_ms"):
            processor += f"; of a restart beside that, where the storage is {place}: {by_role(opening)}"
    return (
        f"Inner join, {parameters['partitions']} partitions with four stores each, local[{parameters['cores']}], "
        f"{parameters['latency_s'] * 1000:.0f} ms before each request of the engine where the storage is far away; "
        f"{maintenance}; "
        f"{figures['rows_a_store']:.0f} rows in a store with rows, {figures['bytes_a_store'] / 1000:.0f} kB of memory "
        f"in one; a batch changes {figures['changed_rows']:,} rows. {parameters['pairs']} pairs of near and far a "
        f"round. Processor time of a batch: {processor}."
    )


BATCHES = Question(
    name="far-batches",
    asks="a batch of a join of 64 x 4 stores in local[16], on a storage that is near and 50 ms away in turns",
    goal="longer by 1.3 x waves of tasks x one round trip",
    full={**JOIN, "rows": 3_200, "seconds": 20, "warmup": 12, "pairs": 16},
    quick={**QUICK, "rows": 400, "warmup": 4, "pairs": 6},
    rounds=3, measure=measure_batches, bars=bars_of_batches, table=table(), setup=setup,
)  # fmt: skip
OPENS_COLD = Question(
    name="far-opens",
    asks="a restart of that join, its stores cold",
    goal="longer by 1.5 x waves x two round trips and 2 s",
    full={**JOIN, "rows": 3_500, "seconds": 20, "warmup": 6, "unmeasured": 2, "pairs": 4, "batches": 4, "pause_s": 5},
    quick={**QUICK, "rows": 400, "warmup": 3, "pairs": 2},
    rounds=2, measure=measure_opens, bars=bars_of_opens,
    table=table(("add_batch_ms_opening", "opening ms"), ("load_ms", "laminaLoadMs, all tasks")), setup=setup,
)  # fmt: skip
