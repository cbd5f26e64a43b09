"""What the state costs in memory, and its longest pauses: `python -m benchmarks.memory`.

The table alone, in a JVM of its own: bytes a row beyond key and value while it grows to all keys and through 100
batches of updates, sampled inside and after every transaction, and the longest single put. Then the aggregation query
with few and with many keys: heap after a full collection, and resident memory of JVM, engine and maintenance process.
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
from benchmarks.jvm import run_main
from benchmarks.rounds import RESULTS, progress, run_child, write_result
from benchmarks.scala import benchmark_jar
from benchmarks.variants import LAMINA, prepare, shim_jar

MAIN = "lamina.benchmarks.memory.MemoryBenchmark"
AVERAGE_BAR, WORST_BAR, PAUSE_BAR_MS, RESIDENT_BAR_MIB = 32, 56, 20, 300


def run(keys: int, updates: int, batches: int) -> dict[str, Any]:
    """The table, then the query at an eighth of the keys and at all of them."""
    shim = shim_jar()
    micro = benchmark_jar("micro", [shim])
    jars = [benchmark_jar("memory", [micro, shim]), micro, shim]
    table = run_main(MAIN, [keys, updates], jars, heap="1g")
    progress(f"table: {table['average']:.1f} bytes a row beyond key and value")
    prepare([LAMINA])
    queries = {}
    for count in (keys // 8, keys):
        cell = Cell(count, 10_000, preload=max(1, count // 1_000_000), warmup=3, timed=batches, driver_memory="3g")
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as checkpoint:
            request = {**asdict(cell), "variant": LAMINA, "closing": cell.closing, "checkpoint": checkpoint}
            queries[str(count)] = run_child(CHILD, {**request, "action": "run", "heap": True})
        progress(f"query: {count:,} keys")
    return {
        "benchmark": "memory",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "keys": keys,
        "updates": updates,
        "batches": batches,
        "table": table,
        "queries": queries,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the two tables."""
    found = result["table"]
    table = Table(
        title=f"state memory, bytes a row beyond key and value ({result['keys']:,} keys), load {found['load']}"
    )
    for heading in ("", "beyond key + value", "pages", "of them dead", "index", "undo", "free pages", "bar"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("average of all samples", f"{found['average']:.1f}", "", "", "", "", "", f"{AVERAGE_BAR}")
    rows = {
        "all keys in": "grown",
        f"after {result['updates']} batches of updates": "after_updates",
        "worst sample": "worst",
    }
    for name, key in rows.items():
        sample = found[key]
        parts = [f"{sample[part]:.1f}" for part in ("overhead", "pages", "dead", "index", "undo", "waiting")]
        table.add_row(name, *parts, f"{WORST_BAR}" if key == "worst" else f"{AVERAGE_BAR}")
    console.print(table)
    pauses = {
        "put while growing": found["longest_put_growing_ms"],
        "put while updating": found["longest_put_updating_ms"],
        "reclaim after a commit": max(found["longest_maintain_growing_ms"], found["longest_maintain_updating_ms"]),
    }
    told = ", ".join(f"{name} {millis:.2f} ms" for name, millis in pauses.items())
    console.print(f"longest pause, wall time (bar {PAUSE_BAR_MS} ms): {told}")
    console.print(
        f"heap of the table's JVM: {_mib(found['heap_at_start'])} MiB empty, {_mib(found['heap_grown'])} MiB full"
    )
    table = Table(title=f"lamina in the aggregation query, 10k rows a batch, {result['batches']} batches")
    for heading in ("keys", "heap MiB", "JVM MiB", "engine MiB", "maintenance MiB", "GC ms a batch"):
        table.add_column(heading, justify="right")
    for keys, answer in result["queries"].items():
        resident = answer["resident_bytes"]
        parts = [_mib(resident.get(name, 0)) for name in ("jvm", "engine", "maintenance")]
        table.add_row(f"{int(keys):,}", _mib(answer["heap_bytes"]), *parts, f"{answer['gc_ms_a_batch']:.1f}")
    console.print(table)
    console.print(f"peak resident memory; bar for engine and maintenance process {RESIDENT_BAR_MIB} MiB each")


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="400,000 keys")
    parser.add_argument("--keys", type=int)
    given = parser.parse_args()
    keys = given.keys or (400_000 if given.quick else 4_000_000)
    result = run(keys, 100, 20 if given.quick else 100)
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


if __name__ == "__main__":
    main()
