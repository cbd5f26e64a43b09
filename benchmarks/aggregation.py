"""How long a micro-batch of a stock aggregation takes with each state store: `python -m benchmarks.aggregation`.

A time is the median of the timed batches of one run; a cell's figure is the median over rounds. Ratios are taken within
rounds. The results of all variants are compared, and lamina's last round is restored from its files.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import batches, figure, machine, variants
from benchmarks.bars import Bar, least, most, printed
from benchmarks.batches import ORDER, TIMES
from benchmarks.rounds import RESULTS, read_result, run_child, write_result
from benchmarks.statistics import Spread
from benchmarks.variants import FLOOR, HDFS, LAMINA, ROCKSDB, TITLES, durability, told

CHILD = "benchmarks.aggregation_child"
BARS = {
    "10k/10k": {FLOOR: 1.1},
    "1M/100k": {FLOOR: 1.1, HDFS: 4, ROCKSDB: 4},
    "4M/10k": {FLOOR: 1.1, HDFS: 12, ROCKSDB: 2},
}
"""How much longer a batch may take than beside the bare map, and how many times faster it should be than a store."""
WRITTEN_BAR = 0.5
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


FULL = {
    "10k/10k": Cell(10_000, 10_000, preload=1, warmup=60, timed=25),
    "100k/10k": Cell(100_000, 10_000, preload=1, warmup=60, timed=25),
    "1M/100k": Cell(1_000_000, 100_000, preload=2, warmup=6, timed=12),
    "4M/10k": Cell(4_000_000, 10_000, preload=4, warmup=20, timed=15, driver_memory="8g"),
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
        request = {**asdict(cell), "closing": cell.closing}
        runs = batches.alternating(chosen, rounds, partial(one, request, rounds - 1), title=f"{name} ")
        restored = runs[LAMINA][-1]["verified"] if LAMINA in runs else None
        result["cells"][name] = {**asdict(cell), "rounds": rounds, **summary(runs, restored)}
    return result


def one(request: dict[str, Any], last: int, number: int, variant: str) -> dict[str, Any]:
    """One run of one store; of the last one of lamina also what its files say, as `verified`."""
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as checkpoint:
        asked = {**request, "variant": variant, "checkpoint": checkpoint}
        answer = run_child(CHILD, {**asked, "action": "run"})
        if variant == LAMINA and number == last:
            answer["verified"] = run_child(CHILD, {**asked, "action": "verify"})
    return answer


def summary(runs: dict[str, list[dict[str, Any]]], restored: dict[str, Any] | None) -> dict[str, Any]:
    """The figures of one cell."""
    found: dict[str, Any] = batches.figures(runs)
    for key in ("gc_ms_a_batch", "bytes_a_batch", "segment_bytes_a_batch", "updated_rows"):
        found[key] = {
            variant: statistics.median(run[key] for run in answers)
            for variant, answers in runs.items()
            if key in answers[0]
        }
    if restored is not None:
        found["restored"] = restored["restored"] == restored["expected"]
    return found


def written_share(cell: dict[str, Any], variant: str) -> float:
    """Bytes that commits wrote over the uncompressed bytes of the changed rows, each key once."""
    return float(cell["bytes_a_batch"][variant] / (cell["updated_rows"][variant] * CHANGE_BYTES))


def growth(cells: dict[str, Any]) -> float | None:
    """lamina's batch time at 4M keys over that at 100k, at the same number of rows a batch."""
    if not all(LAMINA in cells.get(name, {}).get("add_batch_ms", {}) for name in ("100k/10k", "4M/10k")):
        return None
    large, small = (cells[name]["add_batch_ms"][LAMINA]["median"] for name in ("4M/10k", "100k/10k"))
    return float(large / small)


def bars(result: dict[str, Any]) -> list[Bar]:
    """Each bar with what was measured, of both times where it is about one."""
    found = []
    for name, cell in result["cells"].items():
        for variant, bar in BARS.get(name, {}).items():
            for time, title in TIMES.items():
                if variant not in cell[f"{time}_to"]:
                    continue
                if variant == FLOOR:
                    found.append(most(f"{name}, {title}: to the bare map", bar, cell[f"{time}_to"][FLOOR]))
                else:
                    faster = cell[f"{time}_faster_than"][variant]
                    found.append(least(f"{name}, {title}: faster than {TITLES[variant]}", bar, faster, " times"))
        if LAMINA in cell["bytes_a_batch"]:
            share = written_share(cell, LAMINA)
            written = f"{name}: bytes written of the changes"
            found.append(Bar(written, f"≤ {WRITTEN_BAR}", f"{share:.2f}", share <= WRITTEN_BAR))
    grown = growth(result["cells"])
    if grown is not None:
        what = "addBatch from 100k to 4M keys"
        found.append(Bar(what, f"≤ {GROWTH_BAR} times", f"{grown:.2f} times", grown <= GROWTH_BAR))
    if LAMINA in (spent := result["cells"].get("4M/10k", {}).get("gc_ms_a_batch", {})):
        what = "garbage collection at 4M keys"
        found.append(Bar(what, f"≤ {GC_BAR_MS} ms", f"{spent[LAMINA]:.1f} ms", spent[LAMINA] <= GC_BAR_MS))
    return found


def table_of(cell: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The times of a cell; a row for each store."""
    heads, rows = batches.table(cell)
    for variant, row in zip(batches.present(cell), rows, strict=True):
        row += [f"{cell['gc_ms_a_batch'][variant]:.1f}"]
        row += [f"{cell[name][variant] / 1000:.0f}" for name in ("bytes_a_batch", "segment_bytes_a_batch")]
    return [*heads, "GC ms", "kB written", "kB compacted"], rows


def ran(cell: dict[str, Any]) -> str:
    """How often a cell was measured, and what was checked."""
    load: Spread = cell["load"]
    words = f"{cell['rounds']} rounds, heap {cell['driver_memory']}, load {load['low']}-{load['high']}. "
    words += batches.same_results(cell)
    if "restored" in cell:
        found = "equals" if cell["restored"] else "DIFFERS FROM"
        words += f" The state restored from lamina's files {found} the same query run as a batch."
    return words


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables and the bars."""
    for name, cell in result["cells"].items():
        console.print(printed(*table_of(cell), title=f"{name} keys/rows a batch"))
        console.print(ran(cell))
    for variant, words in result["durability"].items():
        console.print(f"{TITLES[variant]}: {told(words)}")
    summary = Table(title="bars")
    for head in ("bar", "asked", "measured", ""):
        summary.add_column(head)
    for bar in bars(result):
        summary.add_row(bar.what, bar.bar, bar.measured, "met" if bar.met else "NOT MET")
    console.print(summary)


def draw(result: dict[str, Any], name: str) -> None:
    """Write the figure."""
    groups = {f"{cell} keys/rows": values["trigger_ms"] for cell, values in result["cells"].items()}
    title = "Micro-batch time, count/max/sum per key (median of the rounds; whiskers: all rounds)"
    figure.grouped_bars(RESULTS / f"{name}.png", groups, title=title, unit="trigger, ms", logarithmic=True)


def failed(result: dict[str, Any]) -> list[str]:
    """Cells whose results differ or could not be restored."""
    wrong = []
    for name, cell in result["cells"].items():
        if not cell["same_digest"]:
            wrong.append(f"{name}: the stores gave different results")
        if cell.get("restored") is False:
            wrong.append(f"{name}: the state read back from lamina's files differs")
    return wrong


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of small cells, about three minutes")
    parser.add_argument("--rounds", type=int, help="rounds of each cell (5, or 2 with --quick)")
    parser.add_argument("--cells", nargs="+", metavar="KEYS/ROWS", help="only these cells")
    parser.add_argument("--variants", nargs="+", choices=ORDER, default=list(ORDER))
    parser.add_argument("--keep", action="store_true", help="keep the last run's other cells in the result")
    parser.add_argument("--results", default=None, help="name of the result files (aggregation, or aggregation-quick)")
    given = parser.parse_args()
    available = QUICK if given.quick else FULL
    names = given.cells or list(available)
    if unknown := [name for name in names if name not in available]:
        parser.error(f"no cell {unknown[0]}; there are {', '.join(available)}")
    rounds = given.rounds or (2 if given.quick else 5)
    result = run({name: available[name] for name in names}, given.variants, rounds)
    file = given.results or ("aggregation-quick" if given.quick else "aggregation")
    if given.keep:
        last = read_result(file)
        cells = {**last["cells"], **result["cells"]}
        result["cells"] = {name: cells[name] for name in available if name in cells}
        result["durability"] = {**last["durability"], **result["durability"]}
    write_result(file, result)
    draw(result, file)
    console = Console(width=190)
    show(result, console)
    if wrong := failed(result):
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
