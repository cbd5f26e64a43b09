"""What a full cache of local copies costs a commit: `python -m benchmarks.full_cache`.

Stores commit the same changes through caches of their own, in blocks and in turns: two are empty and have room for all,
one holds as many copies as fit and makes room for each new one. The storage behind both is a local directory
that passes for a remote one, so that nothing but the cache can differ. A block ends when its eviction has ended, which
is not timed; while it goes on, it competes with the commits.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import sys
import tempfile
import time
from typing import Any

from rich.console import Console
from rich.table import Table

import lamina
from benchmarks import machine
from benchmarks.rounds import write_result
from benchmarks.statistics import ratios
from lamina.format.paths import is_immutable
from lamina.storage import LocalCache, Storage
from lamina.storage.cache import CachingBackend
from lamina.storage.local import LocalBackend

VARIANTS = ("empty", "full", "empty again")
"""What the two empty ones differ by is the machine's noise."""

KEY_BYTES, VALUE_BYTES = 20, 80
COPY_BYTES = 8 << 10
ENGINE_SWITCH_INTERVAL_S = 0.0005
EVICTION_S = 600


class Remote(LocalBackend):
    """A directory that passes for a remote storage."""

    remote = True

    def local_path(self, path: str) -> Any:
        return None


class Variant:
    """A store and its cache."""

    def __init__(self, folder: str, name: str, copies: int) -> None:
        bound = 1 << 40
        self.cache = LocalCache(f"{folder}/{name}/copies", bound, is_immutable)
        for number in range(copies):
            self.cache.keep(f"other://{number}", bytes(COPY_BYTES))
        if copies:
            # the high-water mark is where the cache stands
            bound = self.cache.held_bytes * 20 // 19
            self.cache = LocalCache(f"{folder}/{name}/copies", bound, is_immutable)
        root = f"{folder}/{name}/state"
        storage = Storage(root, backend=CachingBackend(Remote(root, fsync=False), self.cache, root))
        self.store = lamina.open_store(
            f"{folder}/{name}", storage=storage, compression_codec="uncompressed", writable=True
        )
        self.blocks: list[list[float]] = []

    def commit(self, commits: int, rows: int, source: random.Random) -> list[float]:
        """Milliseconds of each commit."""
        times = []
        for _ in range(commits):
            for number in range(rows):
                self.store.put(b"%0*d" % (KEY_BYTES, number), source.randbytes(VALUE_BYTES))
            started = time.perf_counter()
            self.store.commit()
            times.append((time.perf_counter() - started) * 1000)
        self.cache.wait_for_eviction(EVICTION_S)
        return times


def run(copies: int, rows: int, blocks: int, commits: int, directory: str | None) -> dict[str, Any]:
    """Times `blocks` blocks of `commits` commits of each variant, in turns, after one block that warms up."""
    sys.setswitchinterval(ENGINE_SWITCH_INTERVAL_S)
    source = random.Random(7)
    load = machine.load()
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-", dir=directory) as folder:
        variants = {name: Variant(folder, name, copies if name == "full" else 0) for name in VARIANTS}
        for number in range(1 + blocks):
            for name in VARIANTS[:: 1 if number % 2 else -1]:
                times = variants[name].commit(commits, rows, source)
                if number:
                    variants[name].blocks.append(times)
        caches = {name: variant.cache.stats() for name, variant in variants.items()}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine.describe(),
        "load": load,
        "copies": copies,
        "rows": rows,
        "blocks": blocks,
        "commits": commits,
        "commit_ms": {name: figures([t for block in v.blocks for t in block]) for name, v in variants.items()},
        "p99_ratio_of_blocks": {
            name: ratios([p99(b) for b in variants[name].blocks], [p99(b) for b in variants["empty"].blocks])
            for name in VARIANTS[1:]
        },
        "cache": {
            name: {key: value for key, value in cache.items() if key != "directory"} for name, cache in caches.items()
        },
    }


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def figures(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "p99": p99(values), "max": max(values)}


def show(result: dict[str, Any], console: Console) -> None:
    """Prints a table."""
    commits = result["blocks"] * result["commits"]
    table = Table(title=f"commit of {result['rows']} rows, {commits:,} of each in turns, {result['copies']:,} copies")
    for heading in ("cache", "median ms", "p99 ms", "max ms", "kept", "without room", "evicted"):
        table.add_column(heading, justify="right")
    for name, found in result["commit_ms"].items():
        cache = result["cache"][name]
        table.add_row(
            name,
            *(f"{found[figure]:.2f}" for figure in ("median", "p99", "max")),
            *(str(cache.get(figure, 0)) for figure in ("kept", "no_room", "evicted")),
        )
    console.print(table)
    for name, ratio in result["p99_ratio_of_blocks"].items():
        whole = result["commit_ms"][name]["p99"] / result["commit_ms"]["empty"]["p99"]
        console.print(
            f"p99 {name} / empty: {whole:.3f} over all; of blocks {ratio['median']:.3f} "
            f"({ratio['low']:.3f} to {ratio['high']:.3f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=30_000)
    parser.add_argument("--rows", type=int, default=70)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--commits", type=int, default=1000, help="of each variant in a block")
    parser.add_argument("--directory", help="where stores and caches lie; default: the temporary directory")
    arguments = parser.parse_args()
    result = run(arguments.copies, arguments.rows, arguments.blocks, arguments.commits, arguments.directory)
    show(result, Console())
    write_result("full_cache", result)


if __name__ == "__main__":
    main()
