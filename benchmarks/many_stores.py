"""Whether many stores in one session take ever more of the system: `python -m benchmarks.many_stores`.

Four joins with 64 partitions and four stores each run at once in one JVM, 1024 stores together. Their rows come and
leave at the same rate. After each round, in which every query does one batch, the threads, sockets, open files and
resident memory of the JVM, the engine and the maintenance process are counted, and the files of the state. Rows leave
the state after 24 rounds, files after some more, and the JVM takes longer until everything is compiled and its pools
have their size. Once that is over, a line is laid through the rest: bounded is what grows by no more than 2 % of its
median over all of them, or by two.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import tempfile
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from benchmarks import figure, machine, session, variants
from benchmarks.operator_queries import OPERATORS, Timeline
from benchmarks.processes import ROLES, Held, held
from benchmarks.rounds import RESULTS, progress, write_result
from benchmarks.statistics import Spread, spread

STORES_OF_A_JOIN = 4
SETTLING, FILLING = 80, 24  # rounds; rows leave the state after the second
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


def run(queries: int, partitions: int, rows: int, rounds: int) -> dict[str, Any]:
    """All rounds in a session of their own."""
    variants.prepare([variants.LAMINA])
    load = machine.load()
    operator = OPERATORS["join"]
    timeline = Timeline(rows=rows // operator.sides, seconds=1, preload=1, warmup=0, timed=SETTLING + rounds, quiet=0)
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
        for number in range(SETTLING + rounds):
            began = time.monotonic()
            gate.release(number + 1)
            for query in running:
                query.processAllAvailable()
            seconds.append(time.monotonic() - began)
            samples.append(held(pid))
            state.append(float(sum(len(names) for part in folder.glob("*/state") for _, _, names in os.walk(part))))
            progress(f"round {number + 1}/{SETTLING + rounds}: {seconds[-1]:.1f} s, {shown(samples[-1])}")
        last = [query.lastProgress for query in running]
        state_rows = sum(one["stateOperators"][0]["numRowsTotal"] for one in last if one is not None)
        for query in running:
            query.stop()
        session.jvm(spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        after = held(pid)
        spark.stop()
    return {
        "benchmark": "many_stores",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "load": load,
        "queries": queries,
        "partitions": partitions,
        "stores": queries * partitions * STORES_OF_A_JOIN,
        "rows": rows,
        "state_rows": state_rows,
        "settling": SETTLING,
        "rounds": rounds,
        "round_s": spread(seconds[SETTLING:]),
        "series": {
            role: {count: series([value(one[role], count) for one in samples]) for count in COUNTS} for role in ROLES
        },
        "state_files": {"samples": state, **spread(state[SETTLING:])},
        "after_stop": {role: asdict(found) for role, found in after.items()},
    }


def value(found: Held, count: str) -> float:
    """A count, or megabytes."""
    return float(getattr(found, count)) / (1e6 if count == "resident" else 1)


def series(values: list[float]) -> dict[str, Any]:
    """All samples; of those after the settling their spread, their growth, and whether that is little."""
    settled = values[SETTLING:]
    growth = statistics.linear_regression(range(len(settled)), settled).slope * (len(settled) - 1)
    found: Spread = spread(settled)
    return {
        "samples": [round(one, 1) for one in values],
        **found,
        "growth": growth,
        "bounded": growth <= max(SHARE * found["median"], FEW),
    }


def shown(found: dict[str, Held]) -> str:
    """One sample in a line."""
    return ", ".join(
        f"{role} {' '.join(f'{value(one, field.name):.0f}' for field in fields(one))}" for role, one in found.items()
    )


def show(result: dict[str, Any], console: Console) -> None:
    """Print the table."""
    table = Table(
        title=f"{result['queries']} joins x {result['partitions']} partitions, {result['stores']} stores; "
        f"{result['rounds']} rounds after {result['settling']}, {result['round_s']['median']:.1f} s each"
    )
    for head in ("process", "what", "median", "least-most", "growth", "bounded", "after the stop"):
        table.add_column(head, justify="left" if head in ("process", "what") else "right")
    for row in lines(result):
        table.add_row(*row)
    console.print(table)


def lines(result: dict[str, Any]) -> list[list[str]]:
    """The rows of the table."""
    rows = []
    for role in ROLES:
        for count, title in COUNTS.items():
            after = value(Held(**result["after_stop"][role]), count)
            found = result["series"][role][count]
            verdict = "yes" if found["bounded"] else "NO"
            rows.append([role, title, *_range(found), f"{found['growth']:+.1f}", verdict, f"{after:.0f}"])
    # they swing with the turns of the maintenance process, for longer than the rounds: no line fits them
    return [*rows, ["checkpoints", "files of the state", *_range(result["state_files"]), "", "", ""]]


def _range(found: Spread) -> list[str]:
    """Median and range of one series."""
    return [f"{found['median']:.0f}", f"{found['low']:.0f}-{found['high']:.0f}"]


def draw(result: dict[str, Any], name: str) -> None:
    """Each count of all processes together, relative to its median."""
    drawn = {}
    for count, title in COUNTS.items():
        samples = zip(*(result["series"][role][count]["samples"] for role in ROLES), strict=True)
        values = [sum(one) for one in samples]
        middle = statistics.median(values[SETTLING:])
        drawn[title] = (list(range(1, len(values) + 1)), [one / middle for one in values])
    files = result["state_files"]
    drawn["files of the state"] = (
        list(range(1, len(files["samples"]) + 1)),
        [one / files["median"] for one in files["samples"]],
    )
    title = f"{result['queries']} joins, {result['stores']} stores in one session, all processes together"
    figure.lines(RESULTS / f"{name}.png", drawn, title=title, x="round", y="relative to the median")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two queries of 8 partitions, about four minutes")
    parser.add_argument("--rounds", type=int, help=f"rounds after the first {SETTLING} (60, or 20 with --quick)")
    given = parser.parse_args()
    queries, partitions = (2, 8) if given.quick else (4, 64)
    result = run(queries, partitions, rows=100 * partitions, rounds=given.rounds or (20 if given.quick else 60))
    name = "many_stores-quick" if given.quick else "many_stores"
    write_result(name, result)
    draw(result, name)
    show(result, Console(width=120))


if __name__ == "__main__":
    main()
