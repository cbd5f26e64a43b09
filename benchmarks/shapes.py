"""What a batch takes on other clusters, storages and rows, beside the other stores: `python -m benchmarks.shapes`.

Each question is measured by itself and keeps its last answer, with commit, date and parameters, in
`benchmarks/results/shapes.json`; a short run writes its answers beside that.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import batches, variants
from benchmarks.bars import Figures, between
from benchmarks.hadoop_jars import hadoop_aws_jars
from benchmarks.questions import Parameters, Question, Questions
from benchmarks.rounds import run_child
from benchmarks.scala import linked_spark
from benchmarks.statistics import spread
from benchmarks.variants import CAPPED, FLOOR, HDFS, LAMINA, STATELESS, TITLES, TUNED
from lamina.settings import PREFIX

if TYPE_CHECKING:
    from benchmarks.slow_s3 import SlowS3

CHILD = "benchmarks.aggregation_child"
LATENCY_S, BYTES_PER_S = 0.02, 100e6
DURABLE = [STATELESS, LAMINA, HDFS, TUNED]
IN_ONE_JVM = [STATELESS, FLOOR, LAMINA, HDFS, TUNED]
HELD = ("laminaPageBytes", "laminaIndexBytes", "laminaOrderedBytes", "laminaUndoBytes")
PARTS = ("all", "first third", "last third")


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all stores, each in a JVM of its own."""
    variants.prepare(parameters["variants"])
    with ExitStack() as held:
        server = None
        if "latency_s" in parameters:
            # what only reads results does without moto
            from benchmarks.slow_s3 import SlowS3

            server = held.enter_context(SlowS3(parameters["latency_s"], parameters["bytes_per_s"]))
        runs = batches.alternating(parameters["variants"], rounds, lambda _, variant: one(parameters, variant, server))
    return summary(parameters, runs)


def one(parameters: Parameters, variant: str, server: SlowS3 | None) -> dict[str, Any]:
    """One run of one store, with the checkpoint on that server or in local files."""
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as name:
        folder = Path(name)
        request = {**parameters, "variant": variant, "checkpoint": str(folder / "checkpoint"), "action": "run"}
        conf, variables = {}, {}
        if variant == CAPPED:
            conf[PREFIX + "heap.maxBytes"] = str(parameters["cap_bytes"])
        if "master" in parameters:
            variables["SPARK_HOME"] = str(linked_spark(folder / "spark"))
        if server is not None:
            request["checkpoint"] = f"{server.url}/{folder.name}"
            request["jars"] = [str(jar) for jar in hadoop_aws_jars()]
            conf |= {f"spark.hadoop.{key}": value for key, value in server.settings.items()}
            conf[PREFIX + "storage.cache.directory"] = str(folder / "copies")
        timeout = 900 + 60 * parameters.get("minutes", 0)
        found = run_child(CHILD, {**request, "conf": conf}, timeout, variables)
        if server is not None:
            server.remove(folder.name)
    return found


def summary(parameters: Parameters, runs: dict[str, list[dict[str, Any]]]) -> Figures:
    """The figures of all runs."""
    found = batches.figures(runs)
    if "minutes" in parameters:
        found["rows_per_s"] = {
            variant: {part: spread([run["rows_per_s"][part] for run in answers]) for part in PARTS}
            for variant, answers in runs.items()
        }
    if CAPPED in runs:
        shares = [sum(run["last_metrics"][name] for name in HELD) / parameters["cap_bytes"] for run in runs[CAPPED]]
        found["filled"] = spread([100 * share for share in shares])
    found["state_rows"] = statistics.median(run["state_rows"] for run in runs[LAMINA])
    return found


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each store; rows a second where batches follow each other."""
    heads, rows = batches.table(figures)
    rates = figures.get("rows_per_s")
    if rates is None:
        return heads, rows
    shown = [
        [row[0], *(between(rates[variant][part], 0) for part in PARTS), *row[1:]]
        for variant, row in zip(batches.present(figures), rows, strict=True)
    ]
    return [heads[0], "rows/s", *PARTS[1:], *heads[1:]], shown


def setup(query: str, parameters: Parameters, figures: Figures) -> str:
    """What ran, and how the stores were set."""
    built_in = [variant for variant in parameters["variants"] if variant in batches.BUILT_IN]
    words = f"{query} {figures['state_rows']:,.0f} keys in the state, {parameters['rows']:,} rows a batch, heap "
    words += f"{parameters['driver_memory']}; "
    words += f"{parameters['minutes']:g} minutes" if "minutes" in parameters else f"{parameters['timed']} timed batches"
    words += f" after {parameters['preload'] + parameters['warmup']} batches. "
    words += "; ".join(f"{TITLES[variant]}: {batches.set_up(variant)}" for variant in built_in) + ". "
    if "filled" in figures:
        words += f"{TITLES[CAPPED]} has its tables in {between(figures['filled'], 0)} % of the memory they may take. "
    if "minutes" in parameters:
        words += "What is compared is the results of the batches before. "
    return words + batches.same_results(figures)


def question(
    name: str, asks: str, query: str, full: dict[str, Any], quick: dict[str, Any], rounds: int = 3
) -> Question:
    """A question without a bar; the query is what is said of it on the page."""
    known = {"preload": 1, "driver_memory": "4g", "closing": 20_000}
    small = {"closing": 2_000, "driver_memory": "2g", "warmup": 1, **quick}
    return Question(
        name=name, asks=asks, goal="", full={**known, **full}, quick=small, rounds=rounds,
        measure=measure, bars=lambda _parameters, _figures: [], table=table, setup=partial(setup, query),
    )  # fmt: skip


FEW = "Count, max and sum per key."
WORDS = """The floor is the stateless query of the same rows. The bare map is a peer that keeps nothing, beside two of
the questions; it cannot follow a partition to another executor. Each store runs in a fresh JVM, in turns. CPU is that
of a batch, in all processes. Given are medians and the range of all rounds.
"""
SHAPES = Questions(
    "shapes",
    "Other clusters, storages and rows",
    "asks what a batch takes beside the other stores",
    WORDS,
    (
        question(
            "executors",
            "two executors of one core and 1 GiB each, in `local-cluster[2,1,1024]`",
            FEW,
            {
                "master": "local-cluster[2,1,1024]", "variants": DURABLE, "driver_memory": "2g",
                "keys": 500_000, "rows": 50_000, "warmup": 8, "timed": 12,
            },
            {"keys": 20_000, "rows": 4_000, "timed": 3},
        ),
        question(
            "s3",
            f"a checkpoint on S3, {LATENCY_S * 1000:.0f} ms away: the built-in stores through S3A",
            f"{FEW} moto's server has all files of the checkpoint, Spark's too, and shares the two cores.",
            {
                "variants": DURABLE, "latency_s": LATENCY_S, "bytes_per_s": BYTES_PER_S,
                "keys": 200_000, "rows": 10_000, "warmup": 2, "timed": 6,
            },
            {"keys": 20_000, "rows": 4_000, "timed": 2},
        ),
        question(
            "1KB-values",
            "values of 1 KB",
            "Count, and the greatest text of 1,024 characters per key.",
            {
                "variants": IN_ONE_JVM, "value_bytes": 1_024,
                "keys": 100_000, "rows": 10_000, "warmup": 6, "timed": 10,
            },
            {"keys": 10_000, "rows": 2_000, "timed": 3},
        ),
        question(
            "skewed",
            "twelve aggregates of skewed string keys",
            "Twelve aggregates per key; the most frequent key has 3 % of the rows.",
            {
                "variants": IN_ONE_JVM, "skew": 4.0, "dozen": True,
                "keys": 1_000_000, "rows": 100_000, "warmup": 6, "timed": 10,
            },
            {"keys": 20_000, "rows": 4_000, "timed": 3},
        ),
        question(
            "near-cap",
            "a state that takes nearly all of the memory that `heap.maxBytes` gives",
            FEW,
            {
                # for tables of 98 MiB; in few batches the preload's undo log would not fit beside them
                "variants": [STATELESS, LAMINA, CAPPED, HDFS, TUNED], "cap_bytes": 110 << 20,
                "keys": 1_000_000, "rows": 20_000, "preload": 10, "warmup": 12, "timed": 20,
            },
            {"keys": 200_000, "rows": 4_000, "timed": 3, "cap_bytes": 22 << 20},
        ),
        question(
            "sustained",
            "rows a second, batch after batch for ten minutes",
            f"{FEW} Each batch starts as soon as the last one is done.",
            {
                "variants": [LAMINA, HDFS, TUNED], "minutes": 10, "closing": 1,
                "keys": 1_000_000, "rows": 100_000, "warmup": 10,
            },
            {"keys": 20_000, "rows": 10_000, "minutes": 0.2},
            rounds=1,
        ),
    ),
)  # fmt: skip

if __name__ == "__main__":
    SHAPES.main(__doc__)
