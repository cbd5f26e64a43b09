"""Whether many stores in one session take ever more of the system.

Four joins with 64 partitions and four stores each run at once in one JVM, 1024 stores together. Their rows come and
leave at the same rate. After each round, in which every query does one batch, the threads, sockets, open files and
resident memory of the JVM, the engine and the maintenance process are counted, and the files of the state. Rows leave
the state after 24 rounds, files after some more, and the JVM takes longer until everything is compiled and its pools
have their size. Once that is over, a line is laid through the rest: bounded is what grows by no more than 2 % of its
median over all of them, or by two.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import session, variants
from benchmarks.bars import Bar, Figures
from benchmarks.operator_queries import OPERATORS, Timeline
from benchmarks.processes import ROLES, Held, held
from benchmarks.questions import Parameters, Question
from benchmarks.rounds import progress
from benchmarks.statistics import Spread, spread

STORES_OF_A_JOIN = 4
SHARE, FEW = 0.02, 2.0
COUNTS = {"threads": "threads", "sockets": "sockets", "files": "open files", "resident": "resident MB"}


def start(folder: Path, partitions: int) -> SparkSession:
    """The steady session of all queries; a batch begins only where there are rows."""
    settings = {
        "spark.jars": ",".join(map(str, variants.jars(variants.LAMINA))),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
    }
    return session.start_steady("lamina-many-stores", folder, settings)


def measure(parameters: Parameters, _: int) -> Figures:
    """All rounds in a session of their own: the session of this process."""
    variants.prepare([variants.LAMINA])
    queries, partitions, settling = parameters["queries"], parameters["partitions"], parameters["settling"]
    rows, rounds = 100 * partitions, settling + parameters["rounds"]
    operator = OPERATORS["join"]
    timeline = Timeline(rows=rows // operator.sides, seconds=1, preload=1, warmup=0, timed=rounds, quiet=0)
    with tempfile.TemporaryDirectory(prefix="lamina-many-stores-") as name:
        folder = Path(name)
        spark = start(folder, partitions)
        pid = session.jvm_pid(spark)
        gate = session.jvm(spark).lamina.benchmarks.workload.KeyGate
        running: list[StreamingQuery] = [
            operator.query(timeline.source(spark), timeline)
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
            .start()
            for number in range(queries)
        ]
        samples, seconds, state = [], [], []
        for number in range(rounds):
            began = time.monotonic()
            gate.release(number + 1)
            for query in running:
                query.processAllAvailable()
            seconds.append(time.monotonic() - began)
            samples.append(held(pid))
            state.append(float(sum(len(names) for part in folder.glob("*/state") for _, _, names in os.walk(part))))
            progress(f"round {number + 1}/{rounds}: {seconds[-1]:.1f} s, {shown(samples[-1])}")
        last = [query.lastProgress for query in running]
        state_rows = sum(one["stateOperators"][0]["numRowsTotal"] for one in last if one is not None)
        for query in running:
            query.stop()
        session.jvm(spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        after = held(pid)
        spark.stop()
    return {
        "stores": queries * partitions * STORES_OF_A_JOIN,
        "state_rows": state_rows,
        "round_s": spread(seconds[settling:]),
        "series": {
            role: {count: series([value(one[role], count) for one in samples[settling:]]) for count in COUNTS}
            for role in ROLES
        },
        "state_files": spread(state[settling:]),
        "after_stop": {role: asdict(found) for role, found in after.items()},
    }


def value(found: Held, count: str) -> float:
    """A count, or megabytes."""
    return float(getattr(found, count)) / (1e6 if count == "resident" else 1)


def series(settled: list[float]) -> dict[str, Any]:
    """The spread of a count after the settling, its growth, and whether that is little."""
    growth = statistics.linear_regression(range(len(settled)), settled).slope * (len(settled) - 1)
    found: Spread = spread(settled)
    return {**found, "growth": growth, "bounded": growth <= max(SHARE * found["median"], FEW)}


def shown(found: dict[str, Held]) -> str:
    """One sample in a line."""
    return ", ".join(
        f"{role} {' '.join(f'{value(one, field.name):.0f}' for field in fields(one))}" for role, one in found.items()
    )


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """One of each process: that nothing of it grows."""
    found = []
    for role in ROLES:
        grown = [title for count, title in COUNTS.items() if not figures["series"][role][count]["bounded"]]
        what = f"{figures['stores']} stores in one session: what the {role} process holds"
        found.append(Bar(what, f"grows by ≤ {SHARE:.0%}", "bounded" if not grown else ", ".join(grown), not grown))
    return found


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each count."""
    rows = []
    for role in ROLES:
        for count, title in COUNTS.items():
            after = value(Held(**figures["after_stop"][role]), count)
            found = figures["series"][role][count]
            verdict = "yes" if found["bounded"] else "NO"
            rows.append([role, title, *_range(found), f"{found['growth']:+.1f}", verdict, f"{after:.0f}"])
    # they swing with the turns of the maintenance process, for longer than the rounds: no line fits them
    rows.append(["checkpoints", "files of the state", *_range(figures["state_files"]), "", "", ""])
    return ["process", "what", "median", "least-most", "growth", "bounded", "after the stop"], rows


def _range(found: Spread) -> list[str]:
    """Median and range of one series."""
    return [f"{found['median']:.0f}", f"{found['low']:.0f}-{found['high']:.0f}"]


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran, and what stands behind the counts."""
    return (
        f"{parameters['queries']} joins of {parameters['partitions']} partitions, {figures['stores']} stores with "
        f"{figures['state_rows']:,} rows, in one local[2] session; {parameters['rounds']} rounds of one batch of each "
        f"query, {figures['round_s']['median']:.1f} s a round, counted after each. Growth is that of a line through "
        f"the rounds after the first {parameters['settling']}, in which the state gets its size, the retained files "
        "get their number, and the JVM compiles and fills its pools. Bounded: at most 2 % of the median, or 2. Up to "
        "200 of the JVM's threads are pools of Spark's block manager."
    )


QUESTION = Question(
    name="growth",
    asks="whether threads, sockets, open files and memory of 1,024 stores in one session grow",
    goal="bounded",
    full={"queries": 4, "partitions": 64, "settling": 80, "rounds": 60},
    quick={"queries": 2, "partitions": 8, "rounds": 20},
    rounds=1, measure=measure, bars=bars, table=table, setup=setup,
)  # fmt: skip
