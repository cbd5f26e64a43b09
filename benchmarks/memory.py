"""What the state costs in memory, and its longest pauses: `python -m benchmarks.memory`.

The table alone: bytes a row beyond key and value while it grows to all keys and through 100 batches of updates, sampled
inside and after every transaction, and the longest single call, of a put or of a step of reclaim. Then the aggregation
query with few and with many keys: heap after a full collection, and resident memory of JVM, engine and maintenance
process at its peak. Each round runs the three in turns, each in a JVM of its own; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import figure, machine
from benchmarks.aggregation import CHILD, Cell
from benchmarks.rounds import RESULTS, progress, run_child, run_main, turns, write_result
from benchmarks.scala import benchmark_jar
from benchmarks.statistics import Spread, spread
from benchmarks.variants import LAMINA, NO_FILES, TITLES, durability, prepare, shim_jar, told

MAIN = "lamina.benchmarks.memory.MemoryBenchmark"
AVERAGE_BAR, WORST_BAR, PAUSE_BAR_MS, RESIDENT_BAR_MIB = 32, 56, 20, 300
HEAP_BAR = 4
"""Fewer bytes of heap for each further row count as flat: a reference to each row would take as many."""

TABLE = "table"
SAMPLES = {"all keys in": "grown", "after the updates": "after_updates", "worst sample": "worst"}
PARTS = ("overhead", "pages", "dead", "index", "undo", "waiting")
PROCESSES = ("jvm", "engine", "maintenance")
PAUSES = {
    "a put": ("longest_put_growing_ms", "longest_put_updating_ms"),
    "a step of reclaim": ("longest_maintain_growing_ms", "longest_maintain_updating_ms"),
}


def run(keys: int, updates: int, batches: int, rounds: int) -> dict[str, Any]:
    """The table, and the query at an eighth of the keys and at all of them, in turns."""
    shim = shim_jar()
    micro = benchmark_jar("micro", [shim])
    jars = [benchmark_jar("memory", [micro, shim]), micro, shim]
    prepare([LAMINA])
    counts = [keys // 8, keys]
    tables: list[dict[str, Any]] = []
    queries: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for number, what in turns([TABLE, *map(str, counts)], rounds):
        if what == TABLE:
            answer = run_main(MAIN, [keys, updates], jars, heap="1g")
            tables.append(answer)
            said = f"{answer['average']:.1f} bytes a row beyond key and value"
        else:
            answer = _query(int(what), batches)
            queries[int(what)].append(answer)
            said = f"{mib(answer['heap_bytes'])} MiB of heap"
        progress(f"round {number + 1}/{rounds} {what}: {said}, load {answer['load']}")
    return {
        "benchmark": "memory",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "durability": {TABLE: NO_FILES, LAMINA: durability(LAMINA)},
        "keys": keys,
        "updates": updates,
        "batches": batches,
        "rounds": rounds,
        "load": spread([answer["load"] for found in (tables, *queries.values()) for answer in found]),
        **summary(tables, queries),
    }


def _query(keys: int, batches: int) -> dict[str, Any]:
    cell = Cell(keys, 10_000, preload=max(1, keys // 1_000_000), warmup=3, timed=batches, driver_memory="3g")
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as checkpoint:
        request = {**asdict(cell), "variant": LAMINA, "closing": cell.closing, "checkpoint": checkpoint}
        return run_child(CHILD, {**request, "action": "run", "heap": True})


def summary(tables: list[dict[str, Any]], queries: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """The figures over all rounds; the curve is that of the last one."""
    few, many = (queries[count] for count in sorted(queries))
    more_rows = max(queries) - min(queries)
    return {
        "table": {
            "key_value_bytes": tables[-1]["key_value_bytes"],
            "average": _over(tables, "average"),
            **{
                sample: {part: spread([answer[sample][part] for answer in tables]) for part in PARTS}
                for sample in SAMPLES.values()
            },
            "pause_ms": {
                kind: spread([max(answer[key] for key in keys) for answer in tables]) for kind, keys in PAUSES.items()
            },
            "heap_at_start": _over(tables, "heap_at_start"),
            "heap_grown": _over(tables, "heap_grown"),
            "curve": tables[-1]["curve"],
        },
        "queries": {
            str(count): {
                "heap_bytes": _over(found, "heap_bytes"),
                "gc_ms_a_batch": _over(found, "gc_ms_a_batch"),
                "resident_bytes": {
                    process: spread([answer["resident_bytes"][process] for answer in found]) for process in PROCESSES
                },
            }
            for count, found in queries.items()
        },
        "heap_a_row": spread([(b["heap_bytes"] - a["heap_bytes"]) / more_rows for a, b in zip(few, many, strict=True)]),
        "same_digest": all(len({answer["digest"] for answer in found}) == 1 for found in (tables, *queries.values())),
    }


def _over(answers: list[dict[str, Any]], key: str) -> Spread:
    return spread([answer[key] for answer in answers])


def longest_pause(table: dict[str, Any]) -> tuple[str, Spread]:
    """What pauses a transaction, or the task that reclaims behind it, the longest, and for how many ms."""
    pauses: dict[str, Spread] = table["pause_ms"]
    kind = max(pauses, key=lambda name: pauses[name]["median"])
    return kind, pauses[kind]


def show(result: dict[str, Any], console: Console) -> None:
    """Print the two tables."""
    found, load = result["table"], result["load"]
    ran = f"{result['rounds']} rounds, load {load['low']}-{load['high']}"
    table = Table(title=f"state memory, bytes a row beyond key and value ({result['keys']:,} keys); {ran}")
    for heading in ("", "beyond key + value", "rounds", "pages", "of them dead", "index", "undo", "free pages", "bar"):
        table.add_column(heading, justify="right" if heading else "left")
    average = found["average"]
    table.add_row("average of all samples", f"{average['median']:.1f}", _rounds(average), *[""] * 5, f"{AVERAGE_BAR}")
    for name, key in SAMPLES.items():
        sample = found[key]
        parts = [f"{sample[part]['median']:.1f}" for part in PARTS]
        bar = f"{WORST_BAR}" if key == "worst" else ""
        table.add_row(name, parts[0], _rounds(sample["overhead"]), *parts[1:], bar)
    console.print(table)
    told_pauses = ", ".join(
        f"{kind} {pause['median']:.2f} ms ({_rounds(pause)})" for kind, pause in found["pause_ms"].items()
    )
    console.print(f"longest pause, wall time (bar {PAUSE_BAR_MS} ms): {told_pauses}")
    heaps = [mib(found[key]["median"]) for key in ("heap_at_start", "heap_grown")]
    console.print(f"heap of the table's JVM: {heaps[0]} MiB empty, {heaps[1]} MiB full")
    table = Table(title=f"lamina in the aggregation query, 10k rows a batch, {result['batches']} batches; {ran}")
    for heading in ("keys", "heap MiB", "rounds", "JVM MiB", "engine MiB", "maintenance MiB", "GC ms a batch"):
        table.add_column(heading, justify="right")
    for keys, answer in result["queries"].items():
        resident = [
            f"{mib(value['median'])} ({mib(value['low'])}-{mib(value['high'])})"
            for value in (answer["resident_bytes"][process] for process in PROCESSES)
        ]
        heap = answer["heap_bytes"]
        table.add_row(
            f"{int(keys):,}",
            mib(heap["median"]),
            f"{mib(heap['low'])}-{mib(heap['high'])}",
            *resident,
            f"{answer['gc_ms_a_batch']['median']:.1f}",
        )
    console.print(table)
    console.print(f"peak resident memory; bar for engine and maintenance process {RESIDENT_BAR_MIB} MiB each")
    heap = result["heap_a_row"]
    each = f"{heap['median']:.2f} bytes ({heap['low']:.2f} to {heap['high']:.2f}; flat below {HEAP_BAR})"
    console.print(f"heap for each further row: {each}")
    console.print(f"same results in all rounds: {'yes' if result['same_digest'] else 'NO'}")
    for name, words in result["durability"].items():
        console.print(f"{TITLES.get(name, 'the table alone')}: {told(words)}")


def mib(count: float) -> str:
    """Bytes as whole MiB."""
    return f"{count / 2**20:.0f}"


def _rounds(value: Spread) -> str:
    return f"{value['low']:.1f}-{value['high']:.1f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds with 400,000 keys")
    parser.add_argument("--rounds", type=int, help="7, or 2 with --quick")
    parser.add_argument("--keys", type=int)
    given = parser.parse_args()
    keys = given.keys or (400_000 if given.quick else 4_000_000)
    result = run(keys, 100, 20 if given.quick else 40, given.rounds or (2 if given.quick else 7))
    name = "memory-quick" if given.quick else "memory"
    write_result(name, result)
    curve = result["table"]["curve"]
    steps = list(range(len(curve)))
    series = {
        "after the transaction": (steps, [point[1] for point in curve]),
        "inside, before its end": (steps, [point[2] for point in curve]),
    }
    title = f"Growth to {keys:,} rows, then {result['updates']} batches of 50,000 updates"
    figure.lines(RESULTS / f"{name}.png", series, title=title, x="transaction", y="bytes a row beyond key and value")
    show(result, Console(width=130))
    if not result["same_digest"]:
        raise SystemExit("the rounds gave different results")


if __name__ == "__main__":
    main()
