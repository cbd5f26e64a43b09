"""How long a micro-batch of a stock aggregation takes with each state store: `python -m benchmarks.aggregation`.

Batch time is the median `addBatch` of the timed batches of one run; a cell's figure is the median over rounds. Ratios
are taken within rounds. The results of all variants are compared, and lamina's last round is restored from its files.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import figure, machine, variants
from benchmarks.rounds import RESULTS, progress, read_result, run_child, turns, write_result
from benchmarks.settings import durability
from benchmarks.statistics import Spread, ratios, spread
from benchmarks.variants import FLOOR, HDFS, LAMINA, ROCKSDB, TITLES

CHILD = "benchmarks.aggregation_child"
BARS = {
    "10k/10k": {FLOOR: 1.1},
    "1M/100k": {FLOOR: 1.1, HDFS: 4, ROCKSDB: 4},
    "4M/10k": {FLOOR: 1.1, HDFS: 12, ROCKSDB: 2},
}
NOISY_BAR = 1.15
GROWTH_BAR = 1.2
GC_BAR_MS = 10
CHANGE_BYTES = 40 + 32  # key and value of a changed row


@dataclass(frozen=True)
class Cell:
    """Keys in the state, rows in a timed batch, and how many batches are spent on what."""

    keys: int
    rows: int
    preload: int
    warmup: int
    timed: int
    driver_memory: str = "4g"

    @property
    def closing(self) -> int:
        """Keys that the digested last batch touches."""
        return min(self.keys, 250_000)

    def memory(self, variant: str) -> str:
        """The heap that a variant gets: the built-in heap store needs twice as much at 4M keys."""
        return "8g" if variant == HDFS and self.keys >= 4_000_000 else self.driver_memory


FULL = {
    "10k/10k": Cell(10_000, 10_000, preload=1, warmup=60, timed=25),
    "100k/10k": Cell(100_000, 10_000, preload=1, warmup=60, timed=25),
    "1M/100k": Cell(1_000_000, 100_000, preload=2, warmup=6, timed=12),
    "4M/10k": Cell(4_000_000, 10_000, preload=4, warmup=20, timed=15),
}
QUICK = {
    "10k/10k": Cell(10_000, 10_000, preload=1, warmup=6, timed=8, driver_memory="2g"),
    "100k/10k": Cell(100_000, 10_000, preload=1, warmup=6, timed=8, driver_memory="2g"),
    "500k/50k": Cell(500_000, 50_000, preload=1, warmup=2, timed=5, driver_memory="2g"),
}


def run(cells: dict[str, Cell], chosen: list[str], rounds: int) -> dict[str, Any]:
    """Run all rounds of all cells."""
    variants.prepare(chosen)
    result: dict[str, Any] = {
        "benchmark": "aggregation",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "durability": {variant: durability(variant) for variant in chosen},
        "cells": {},
    }
    for name, cell in cells.items():
        runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in chosen}
        restored: dict[str, Any] | None = None
        for number, variant in turns(chosen, rounds):
            request = {**asdict(cell), "variant": variant, "closing": cell.closing}
            request["driver_memory"] = cell.memory(variant)
            with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as checkpoint:
                request["checkpoint"] = checkpoint
                answer = run_child(CHILD, {**request, "action": "run"})
                runs[variant].append(answer)
                if variant == LAMINA and number == rounds - 1:
                    restored = run_child(CHILD, {**request, "action": "verify"})
            took = statistics.median(answer["add_batch_ms"])
            progress(f"{name} round {number + 1}/{rounds} {variant}: {took:.0f} ms a batch, load {answer['load']}")
        result["cells"][name] = {**asdict(cell), "rounds": rounds, **summary(runs, restored), "runs": runs}
    return result


def summary(runs: dict[str, list[dict[str, Any]]], restored: dict[str, Any] | None) -> dict[str, Any]:
    """The figures of one cell."""
    times = {variant: [statistics.median(r["add_batch_ms"]) for r in answers] for variant, answers in runs.items()}
    digests = {r["digest"] for answers in runs.values() for r in answers}
    found: dict[str, Any] = {
        "batch_ms": {variant: spread(values) for variant, values in times.items()},
        "ratio_to_floor": {
            v: ratios(values, times[FLOOR]) for v, values in times.items() if FLOOR in times and v != FLOOR
        },
        "speed_up": {
            v: ratios(values, times[LAMINA]) for v, values in times.items() if LAMINA in times and v != LAMINA
        },
        "load": spread([r["load"] for answers in runs.values() for r in answers]),
        "same_digest": len(digests) == 1,
    }
    for key in ("gc_ms_a_batch", "bytes_a_batch", "segment_bytes_a_batch", "updated_rows", "commit_ms"):
        found[key] = {variant: statistics.median(r[key] for r in answers) for variant, answers in runs.items()}
    if restored is not None:
        found["restored"] = restored["restored"] == restored["expected"]
    return found


def written_share(cell: dict[str, Any], variant: str) -> float:
    """Bytes that commits wrote over the uncompressed bytes of the changed rows, each key once."""
    return float(cell["bytes_a_batch"][variant] / (cell["updated_rows"][variant] * CHANGE_BYTES))


def growth(cells: dict[str, Any]) -> float | None:
    """lamina's batch time at 4M keys over that at 100k, at the same number of rows a batch."""
    if not all(LAMINA in cells.get(name, {}).get("batch_ms", {}) for name in ("100k/10k", "4M/10k")):
        return None
    large, small = (cells[name]["batch_ms"][LAMINA]["median"] for name in ("4M/10k", "100k/10k"))
    return float(large / small)


def show(result: dict[str, Any], console: Console) -> None:
    """Print the table."""
    for name, cell in result["cells"].items():
        load: Spread = cell["load"]
        table = Table(title=f"{name} keys/rows a batch; {cell['rounds']} rounds, load {load['low']}-{load['high']}")
        for heading in (
            "store",
            "addBatch ms",
            "rounds",
            "ratio to floor",
            "95 %",
            "lamina's speed-up",
            "GC ms",
            "kB written",
            "of changes",
            "kB compacted",
        ):
            table.add_column(heading, justify="left" if heading == "store" else "right")
        for variant, time in cell["batch_ms"].items():
            ratio, speed = cell["ratio_to_floor"].get(variant), cell["speed_up"].get(variant)
            table.add_row(
                TITLES[variant],
                f"{time['median']:.0f}",
                f"{time['low']:.0f}-{time['high']:.0f}",
                f"{ratio['median']:.2f}" if ratio else "",
                f"{ratio['low']:.2f}-{ratio['high']:.2f}" if ratio else "",
                f"{speed['median']:.2f} x" if speed else "",
                f"{cell['gc_ms_a_batch'][variant]:.1f}",
                f"{cell['bytes_a_batch'][variant] / 1000:.0f}",
                f"{written_share(cell, variant):.2f}",
                f"{cell['segment_bytes_a_batch'][variant] / 1000:.0f}",
            )
        console.print(table)
        console.print(f"  same results: {'yes' if cell['same_digest'] else 'NO'}", end="")
        console.print(f"; restored from lamina's files: {_word(cell.get('restored'))}")
    for variant, words in result["durability"].items():
        told = ", ".join(f"{key} {value}" for key, value in words.items() if key != "durability")
        console.print(f"{TITLES[variant]}: {words['durability']}; {told}")
    grown = growth(result["cells"])
    if grown is not None:
        console.print(f"lamina from 100k to 4M keys at 10k rows a batch: x {grown:.2f} (bar {GROWTH_BAR})")


def draw(result: dict[str, Any], name: str) -> None:
    """Write the figure."""
    groups = {f"{cell} keys/rows": values["batch_ms"] for cell, values in result["cells"].items()}
    title = "Micro-batch time, count/max/sum per key (median of the rounds; whiskers: all rounds)"
    figure.grouped_bars(RESULTS / f"{name}.png", groups, title=title, unit="addBatch, ms", logarithmic=True)


def failed(result: dict[str, Any]) -> list[str]:
    """Cells whose results differ or could not be restored."""
    wrong = []
    for name, cell in result["cells"].items():
        if not cell["same_digest"]:
            wrong.append(f"{name}: the stores gave different results")
        if cell.get("restored") is False:
            wrong.append(f"{name}: the state read back from lamina's files differs")
    return wrong


def _word(value: bool | None) -> str:
    return "not checked" if value is None else "identical" if value else "DIFFERENT"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of small cells, about three minutes")
    parser.add_argument("--rounds", type=int, help="rounds of each cell (7, or 2 with --quick)")
    parser.add_argument("--cells", nargs="+", metavar="KEYS/ROWS", help="only these cells")
    parser.add_argument("--variants", nargs="+", choices=variants.ALL, default=list(variants.ALL))
    parser.add_argument("--keep", action="store_true", help="keep the last run's other cells in the result")
    parser.add_argument("--results", default=None, help="name of the result files (aggregation, or aggregation-quick)")
    given = parser.parse_args()
    available = QUICK if given.quick else FULL
    names = given.cells or list(available)
    if unknown := [name for name in names if name not in available]:
        parser.error(f"no cell {unknown[0]}; there are {', '.join(available)}")
    rounds = given.rounds or (2 if given.quick else 7)
    result = run({name: available[name] for name in names}, given.variants, rounds)
    file = given.results or ("aggregation-quick" if given.quick else "aggregation")
    if given.keep:
        last = read_result(file)
        cells = {**last["cells"], **result["cells"]}
        result["cells"] = {name: cells[name] for name in available if name in cells}
        result["durability"] = {**last["durability"], **result["durability"]}
    write_result(file, result)
    draw(result, file)
    console = Console(width=130)
    show(result, console)
    if wrong := failed(result):
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
