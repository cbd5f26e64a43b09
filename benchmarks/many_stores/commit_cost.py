"""The processor time of a commit of 20 rows: of the engine in a query, and of its store code alone.

Store code alone is one process that begins and commits, store after store, with rows that are ready; its processor time
is that of all its threads while a commit goes on. Files are merged between the batches, which is not counted. In a
query the JVM works for milliseconds between two commits, on the same cores: so the store code is measured a second time
with 48 MiB read before each commit, which is not counted either. On S3 the processor time is the client's part: moto's
server is another process.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import variants
from benchmarks.bars import Bar, Figures, between, most
from benchmarks.many_stores import small_commits
from benchmarks.many_stores.stores import Stores
from benchmarks.questions import Parameters, Question
from benchmarks.rounds import print_result, progress, run_child, turns
from benchmarks.statistics import spread
from benchmarks.variants import LAMINA
from lamina.storage import Storage

KEYS = ("ms", "kernel_ms", "wall_ms", "rows")
QUERY, LOCAL, COLD, S3 = "query", "local", "cold", "S3"
WHERE = {
    QUERY: "the engine in a query, local files",
    LOCAL: "store code alone, local files",
    COLD: "store code alone, local files, caches of the core cold",
    S3: "store code alone, S3 (moto), the client's part",
}
MOST_MS = {QUERY: 0.4, LOCAL: 0.4, S3: 0.8}
"""Bars; cold caches have none, since they are there to explain the query's figure."""

_READ_BYTES = 48 << 20
"""More than those caches of a core hold that it shares with no other."""


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds of all places, each in processes of its own."""
    # what only reads results does without moto
    from benchmarks.requests import BUCKET, server
    from benchmarks.slow_s3 import hadoop_keys

    variants.prepare([LAMINA])
    found: dict[str, list[dict[str, Any]]] = {where: [] for where in WHERE}
    with server() as endpoint, tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
        for number, where in turns(list(WHERE), rounds):
            if where == QUERY:
                answer = of_query(parameters)
            else:
                far = where == S3
                url = f"s3a://{BUCKET}/{number}" if far else f"{folder}/{where}-{number}"
                hadoop = hadoop_keys(endpoint) if far else {}
                request = {**parameters, "url": url, "hadoop": hadoop, "cold": where == COLD}
                answer = run_child("benchmarks.many_stores.commit_cost", request, timeout=3600)
            found[where].append(answer)
            progress(f"round {number + 1}/{rounds} {where}: {answer['ms']:.2f} ms a commit, load {answer['load']}")
    return {
        where: {key: spread([answer[key] for answer in answers]) for key in KEYS} for where, answers in found.items()
    }


def of_query(parameters: Parameters) -> dict[str, Any]:
    """The engine's processor time in a query; opens and whatever else it does meanwhile count, too."""
    stores = parameters["stores"]
    rows = parameters["rows"] * stores
    query = {**small_commits.QUESTION.full, "rows": rows, "closing": rows, "partitions": stores}
    answer = small_commits.one({**query, **parameters["query"]}, LAMINA)
    return {
        "ms": answer["processor_ms"]["engine"] / stores,
        "kernel_ms": answer["kernel_ms"]["engine"] / stores,
        "wall_ms": statistics.median(answer["add_batch_ms"]) / stores,
        "rows": answer["updated_rows"] / stores,
        "load": answer["load"],
    }


def alone(request: dict[str, Any]) -> dict[str, Any]:
    """Commits in this process."""
    storage = Storage(request["url"], request["hadoop"])
    stores = Stores(storage, request["stores"], request["rows"], {})
    read = pa.array(range(_READ_BYTES // 8), pa.int64())
    spent = [0.0, 0.0, 0.0]
    for batch in range(request["warmup"] + request["batches"]):
        for number in range(request["stores"]):
            if request["cold"]:
                pc.sum(read)
            began = _clocks()
            stores.commit(number)
            if batch >= request["warmup"]:
                spent = [sofar + after - before for sofar, before, after in zip(spent, began, _clocks(), strict=True)]
        stores.compact()
    processor, kernel, wall = (seconds * 1000 / (request["batches"] * request["stores"]) for seconds in spent)
    return {"ms": processor, "kernel_ms": kernel, "wall_ms": wall, "rows": request["rows"]}


def _clocks() -> tuple[float, float, float]:
    """Processor time of this process, the kernel's part of it, and the time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_stime, time.perf_counter()


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    return [
        most(f"processor time of a commit: {WHERE[where]}", bar, figures[where]["ms"], " ms")
        for where, bar in MOST_MS.items()
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each place."""
    heads = ["commits", "rows", "CPU ms a commit", "the kernel's", "wall ms a commit"]
    return heads, [
        [
            title,
            f"{figures[where]['rows']['median']:.0f}",
            *(between(figures[where][key]) for key in ("ms", "kernel_ms", "wall_ms")),
        ]
        for where, title in WHERE.items()
    ]


def setup(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    return (
        f"Commits of {parameters['rows']} rows to each of {parameters['stores']} stores, {parameters['batches']} of "
        f"each after {parameters['warmup']}. In the query {parameters['query']['timed']} batches after "
        f"{parameters['query']['warmup']}, and the engine's processor time has all in it that it does meanwhile. Cold: "
        f"{_READ_BYTES >> 20} MiB are read before each commit, as the JVM works on the same cores in a query."
    )


QUESTION = Question(
    name="commit-cost",
    asks="processor time of a commit of 20 rows, of the engine in a query and of its store code alone",
    goal="0.4 ms on local files, 0.8 ms on S3",
    full={"stores": 200, "rows": 20, "warmup": 3, "batches": 20, "query": {"warmup": 10, "timed": 20}},
    quick={"stores": 40, "warmup": 1, "batches": 5, "query": {"warmup": 2, "timed": 5}},
    rounds=5, measure=measure, bars=bars, table=table, setup=setup,
)  # fmt: skip


if __name__ == "__main__":
    print_result(alone(json.loads(sys.argv[1])))
