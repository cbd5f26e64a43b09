"""What `storage.fsync.enabled` costs a commit on local files: `python -m benchmarks.storage`.

Two stores, one with and one without, commit the same changes in turns, the other one first each time, so that a slow
moment of the disk meets both. A commit is timed from its call to its return: encoding, compression, and one file whose
bytes, name and directory are on the disk when it returns, or need not be.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import tempfile
import time
from typing import Any

from rich.console import Console
from rich.table import Table

import lamina
from benchmarks import machine
from benchmarks.rounds import write_result
from benchmarks.statistics import ratios

VARIANTS = {"off": False, "on": True}
KEY_BYTES, VALUE_BYTES = 40, 56
WARM_UP = 3


def changes(rows: int, source: random.Random) -> list[tuple[bytes, bytes]]:
    """Rows of random bytes, so that compression cannot help."""
    return [(source.randbytes(KEY_BYTES), source.randbytes(VALUE_BYTES)) for _ in range(rows)]


def run(rows: int, commits: int, directory: str | None) -> dict[str, Any]:
    """Times `commits` commits of each variant, in turns."""
    source = random.Random(7)
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    load = machine.load()
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-", dir=directory) as folder:
        stores = {
            variant: lamina.open_store(f"{folder}/{variant}", writable=True, storage_fsync_enabled=fsync)
            for variant, fsync in VARIANTS.items()
        }
        for number in range(WARM_UP + commits):
            batch = changes(rows, source)
            for variant in sorted(VARIANTS, reverse=number % 2 == 1):
                store = stores[variant]
                for key, value in batch:
                    store.put(key, value)
                started = time.perf_counter()
                store.commit()
                if number >= WARM_UP:
                    times[variant].append((time.perf_counter() - started) * 1000)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine.describe(),
        "load": load,
        "rows": rows,
        "commits": commits,
        "commit_ms": {
            variant: {
                "median": statistics.median(values),
                "p99": statistics.quantiles(values, n=100, method="inclusive")[98],
                "max": max(values),
            }
            for variant, values in times.items()
        },
        "ratio_on_to_off": ratios(times["on"], times["off"]),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Prints a table."""
    title = f"commit of {result['rows']:,} rows, {result['commits']} of each in turns, load {result['load']}"
    table = Table(title=title)
    for heading in ("storage.fsync", "median ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right")
    for variant, found in result["commit_ms"].items():
        table.add_row(variant, *(f"{found[name]:.1f}" for name in ("median", "p99", "max")))
    console.print(table)
    ratio = result["ratio_on_to_off"]
    console.print(f"on to off: {ratio['median']:.2f} (95 % {ratio['low']:.2f}-{ratio['high']:.2f})")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 commits")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--commits", type=int)
    parser.add_argument("--directory", help="on the disk to measure; default: the directory of temporary files")
    given = parser.parse_args()
    result = run(given.rows or 2_000, given.commits or (20 if given.quick else 100), given.directory)
    write_result("storage-quick" if given.quick else "storage", result)
    show(result, Console(width=110))


if __name__ == "__main__":
    main()
