"""Cost of one row in the shim and in a `java.util.HashMap` of copied rows: `python -m benchmarks.micro`.

The shim is measured as a store, which is what an operator calls, and as the bare table in it: what the store adds are
its lock and checks, codecs and rows for Spark. Keys are 40 bytes, values 32. `update` and `insert` include the opening
of the store and the commit: collecting the change set, building its messages, ending the transaction, reclaiming. What
the engine does with the messages is left out. Thread CPU time is what the row costs; wall time adds what else the
machine did.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import figure, machine
from benchmarks.rounds import RESULTS, progress, run_main, turns, write_result
from benchmarks.scala import benchmark_jar
from benchmarks.statistics import ratios, spread
from benchmarks.variants import FLOOR, LAMINA, NO_FILES, shim_jar, told

MAIN = "lamina.benchmarks.micro.MicroBenchmark"
TABLE = "table"
SUBJECTS = {FLOOR: "map", TABLE: "table", LAMINA: "store"}
OPERATIONS = ("get", "miss", "insert", "update", "scan")
PUT_BAR_NS = 1000


def run(keys: int, batch: int, passes: int, rounds: int) -> dict[str, Any]:
    """All rounds, each subject in a JVM of its own."""
    shim = shim_jar()
    jars = [benchmark_jar("micro", [shim]), shim]
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in SUBJECTS}
    for number, name in turns(list(SUBJECTS), rounds):
        answer = run_main(MAIN, [SUBJECTS[name], keys, batch, passes], jars, heap="6g")
        answers[name].append(answer)
        progress(f"round {number + 1}/{rounds} {SUBJECTS[name]}: update {answer['update']['cpu_ns']:.0f} ns")
    return {
        "benchmark": "micro",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "durability": NO_FILES,
        "keys": keys,
        "batch": batch,
        "rounds": rounds,
        "load": spread([answer["load"] for found in answers.values() for answer in found]),
        "operations": {operation: _operation(answers, operation) for operation in OPERATIONS},
        "commit_part": spread([answer["commit_part"]["cpu_ns"] for answer in answers[LAMINA]]),
        "commit_wall_ns": {
            part: statistics.median(answer["commit_wall_ns"][part] for answer in answers[LAMINA])
            for part in answers[LAMINA][0]["commit_wall_ns"]
        },
        "same_digest": len({answer["digest"] for found in answers.values() for answer in found}) == 1,
    }


def _operation(answers: dict[str, list[dict[str, Any]]], operation: str) -> dict[str, Any]:
    cpu = {name: [answer[operation]["cpu_ns"] for answer in found] for name, found in answers.items()}
    wall = {name: [answer[operation]["wall_ns"] for answer in found] for name, found in answers.items()}
    return {
        "cpu_ns": {name: spread(values) for name, values in cpu.items()},
        "wall_ns": {name: spread(values) for name, values in wall.items()},
        "ratio": ratios(cpu[LAMINA], cpu[FLOOR]),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the table."""
    load = result["load"]
    title = f"ns a row at {result['keys']:,} keys, {result['batch']:,} rows a transaction; {result['rounds']} rounds"
    table = Table(title=f"{title}, load {load['low']}-{load['high']}")
    heads = ("", "store, CPU", "rounds", "table, CPU", "rounds", "HashMap, CPU", "rounds", "store/map", "95 %", "wall")
    for heading in heads:
        table.add_column(heading, justify="right" if heading else "left")
    for name, found in result["operations"].items():
        costs = [found["cpu_ns"][subject] for subject in (LAMINA, TABLE, FLOOR)]
        ratio = found["ratio"]
        table.add_row(
            {"insert": "put new + commit", "update": "put again + commit", "miss": "get, absent"}.get(name, name),
            *(text for cost in costs for text in (f"{cost['median']:.0f}", f"{cost['low']:.0f}-{cost['high']:.0f}")),
            f"{ratio['median']:.2f}",
            f"{ratio['low']:.2f}-{ratio['high']:.2f}",
            " / ".join(f"{found['wall_ns'][subject]['median']:.0f}" for subject in (LAMINA, TABLE, FLOOR)),
        )
    console.print(table)
    parts = ", ".join(f"{name} {nanos:.0f}" for name, nanos in result["commit_wall_ns"].items())
    console.print(
        f"of 'put again + commit' (bar {PUT_BAR_NS}), the commit is {result['commit_part']['median']:.0f}: {parts}"
    )
    console.print(f"same rows at the end: {'yes' if result['same_digest'] else 'NO'}; {told(result['durability'])}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds with 400,000 keys")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--keys", type=int)
    given = parser.parse_args()
    keys = given.keys or (400_000 if given.quick else 4_000_000)
    result = run(keys, 50_000, 10 if given.quick else 20, given.rounds or (2 if given.quick else 7))
    name = "micro-quick" if given.quick else "micro"
    write_result(name, result)
    groups = {operation: found["cpu_ns"] for operation, found in result["operations"].items()}
    title = f"Thread CPU time a row at {keys:,} keys"
    figure.grouped_bars(RESULTS / f"{name}.png", groups, title=title, unit="ns a row")
    show(result, Console(width=130))
    if not result["same_digest"]:
        raise SystemExit("store, table and HashMap ended with different rows")


if __name__ == "__main__":
    main()
