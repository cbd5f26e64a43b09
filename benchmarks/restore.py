"""How long a store takes to come back from its files: `python -m benchmarks.restore`.

The chain is a snapshot of all keys and increments with 10 % deletes and 10 % list appends, in two partitions. A restore
is the time from the providers' `init` to the end of the first full batch, less the median of the batches after it; a
full scan follows and its digest is compared. Files are evicted from the page cache first. `fresh` starts everything,
the engine too, in a new JVM; `running` is a JVM that has restored another, small chain before. All stores restore the
same chain: lamina merges nothing and the built-in stores write no later snapshot. The built-in heap store has no column
families and no lists: its chain has puts instead.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import figure, machine, variants
from benchmarks.rounds import RESULTS, progress, run_child, turns, write_result
from benchmarks.statistics import ratios, spread
from benchmarks.variants import HDFS, LAMINA, ROCKSDB, TITLES, durability, told

CHILD = "benchmarks.restore_child"
STATES = ("fresh", "running")
USERS = ("tasks", "tasks in the kernel", "compilers", "other threads of the JVM", "engine", "maintenance")
"""Who uses processor time during a restore, as the child names them."""
BAR_S, BAR_RATIO = 1.2, 0.3


def evict(folder: Path) -> None:
    """Write back and drop a folder's files from the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def run(keys: int, rows: int, increments: int, rounds: int, chosen: list[str], states: list[str]) -> dict[str, Any]:
    """Build one chain for each variant, then restore them in turns."""
    variants.prepare(chosen)
    answers: dict[str, dict[str, list[dict[str, Any]]]] = {state: {v: [] for v in chosen} for state in states}
    built: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
        requests: dict[str, dict[str, Any]] = {}
        for variant in chosen:
            request = {"variant": variant, "keys": keys, "rows": rows, "increments": increments, "batches": 8}
            request["driver_memory"] = "8g" if variant == HDFS and keys >= 2_000_000 else "3g"
            request |= {"checkpoint": str(Path(folder) / variant), "folder": folder}
            built[variant] = run_child(CHILD, {**request, "action": "build"})
            requests[variant] = {**request, "action": "restore", "ids": built[variant]["ids"]}
            size, files = built[variant]["bytes"], between(built[variant]["files"])
            progress(f"{variant}: a chain of {size / 1e6:.0f} MB, {files} files a partition")
        for state in states:
            for number, variant in turns(chosen, rounds):
                evict(Path(folder))
                answer = run_child(CHILD, {**requests[variant], "warm": state == "running"})
                answers[state][variant].append(answer)
                progress(
                    f"{state} round {number + 1}/{rounds} {variant}: {seconds(answer):.2f} s, load {answer['load']}"
                )
    return {
        "benchmark": "restore",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "durability": {variant: durability(variant) for variant in chosen},
        "keys": keys,
        "rows": rows,
        "increments": increments,
        "rounds": rounds,
        "load": spread([a["load"] for found in answers.values() for each in found.values() for a in each]),
        "chain_bytes": {variant: answer["bytes"] for variant, answer in built.items()},
        "chain_files": {variant: answer["files"] for variant, answer in built.items()},
        "states": {state: summary(found) for state, found in answers.items()},
        "same_digest": same_digest(answers),
    }


def seconds(answer: dict[str, Any]) -> float:
    """The restore of one run."""
    return float(answer["first"] - statistics.median(answer["steady"])) / 1e9


def summary(answers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The figures of one state of the JVM."""
    times = {variant: [seconds(answer) for answer in found] for variant, found in answers.items()}
    result: dict[str, Any] = {
        "restore_s": {variant: spread(values) for variant, values in times.items()},
        "steady_ms": {
            v: statistics.median(statistics.median(a["steady"]) for a in f) / 1e6 for v, f in answers.items()
        },
        "scan_s": {v: spread([a["scan"] / 1e9 for a in found]) for v, found in answers.items()},
        "processor_ms": {
            v: {who: statistics.median(a["processor"].get(who, 0) for a in found) for who in USERS}
            for v, found in answers.items()
        },
    }
    built_in = [times[variant] for variant in (HDFS, ROCKSDB) if variant in times]
    if LAMINA in times and built_in:
        result["ratio_to_better_built_in"] = ratios(times[LAMINA], min(built_in, key=statistics.median))
    return result


def same_digest(answers: dict[str, dict[str, list[dict[str, Any]]]]) -> bool:
    """Plain rows are equal in all variants; lists in those that have them."""
    plain = {a["plain"] for found in answers.values() for each in found.values() for a in each}
    lists = {a["lists"] for found in answers.values() for v, each in found.items() for a in each if v != HDFS}
    return len(plain) == 1 and len(lists) <= 1


def between(counts: list[int]) -> str:
    """A count of each partition, as one where they are equal."""
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low}-{high}"


def show(result: dict[str, Any], console: Console) -> None:
    """Print a table for each state of the JVM."""
    load = result["load"]
    for state, found in result["states"].items():
        chain = f"{result['keys']:,} keys + {result['increments']} increments of {result['rows']:,} rows"
        table = Table(
            title=f"restore, JVM {state}: {chain}; {result['rounds']} rounds, load {load['low']}-{load['high']}"
        )
        for heading in ("store", "restore s", "rounds", "batch after ms", "full scan s", "MB", "files a partition"):
            table.add_column(heading, justify="left" if heading == "store" else "right")
        for variant, time in found["restore_s"].items():
            table.add_row(
                TITLES[variant],
                f"{time['median']:.2f}",
                f"{time['low']:.2f}-{time['high']:.2f}",
                f"{found['steady_ms'][variant]:.0f}",
                f"{found['scan_s'][variant]['median']:.2f}",
                f"{result['chain_bytes'][variant] / 1e6:.0f}",
                between(result["chain_files"][variant]),
            )
        console.print(table)
        if ratio := found.get("ratio_to_better_built_in"):
            interval = f"{ratio['low']:.2f}-{ratio['high']:.2f}"
            console.print(f"lamina to the better built-in: {ratio['median']:.2f} (95 % {interval}; bar {BAR_RATIO})")
    console.print(
        f"same digests: {'yes' if result['same_digest'] else 'NO'}; files evicted from the page cache before each"
    )
    for variant, words in result["durability"].items():
        console.print(f"{TITLES[variant]}: {told(words)}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds with 400,000 keys")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--variants", nargs="+", choices=(HDFS, ROCKSDB, LAMINA), default=[HDFS, ROCKSDB, LAMINA])
    parser.add_argument("--states", nargs="+", choices=STATES, default=list(STATES))
    given = parser.parse_args()
    keys = given.keys or (400_000 if given.quick else 4_000_000)
    rounds = given.rounds or (2 if given.quick else 7)
    result = run(keys, keys // 80, 20, rounds, given.variants, given.states)
    name = "restore-quick" if given.quick else "restore"
    write_result(name, result)
    groups = {f"JVM {state}": found["restore_s"] for state, found in result["states"].items()}
    title = f"Restore of {keys:,} keys from a snapshot and 20 increments, cold files"
    figure.grouped_bars(RESULTS / f"{name}.png", groups, title=title, unit="s", logarithmic=True)
    show(result, Console(width=130))
    if not result["same_digest"]:
        raise SystemExit("the stores gave different results")


if __name__ == "__main__":
    main()
