"""Writes docs/benchmarks.md and the evidence behind it from the JSON of the last runs: `python -m benchmarks.report`.

The page has the bars and three charts, docs/evidence.md the tables of each benchmark, the README a few figures. What
was measured of another shim or engine than this is refused: none of them says anything of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import batches_report, operators_report, proofs_report, store_report
from benchmarks.changelog import CHANGELOG
from benchmarks.changes import later, listed, told_of
from benchmarks.many_stores.answers import MANY_STORES
from benchmarks.markdown import BARS, fill, table
from benchmarks.rocksdb import ROCKSDB
from benchmarks.rounds import RESULTS
from benchmarks.scala import ROOT
from benchmarks.shapes import SHAPES

PAGE, EVIDENCE = "benchmarks.md", "evidence.md"
DOCS = ROOT / "docs"
README = ROOT / "README.md"
CHARTS = ("aggregation", "restore", "compaction-light")

INTRODUCTION = """# Benchmarks

Each bar is held against the last run of its benchmark, at the commit and on the day beside it. The tables behind them,
with machine, parameters and spread, are the [evidence](evidence.md). Both pages are written by
`python -m benchmarks.report`. To run the benchmarks again:

```
python -m benchmarks.aggregation      # --quick: small cells, about three minutes
python -m benchmarks.micro
python -m benchmarks.restore
python -m benchmarks.memory
python -m benchmarks.compaction
python -m benchmarks.restore_places
python -m benchmarks.storage
python -m benchmarks.operators        # every stateful operator, about an hour; again with Spark 4.2
python -m benchmarks.shapes           # other clusters, storages and rows, about an hour; --only NAME: one of them
python -m benchmarks.rocksdb          # state on tables of RocksDB, some hours; --only NAME: one question
python -m benchmarks.changelog        # the log that stores share, some hours; --only NAME: one question
python -m benchmarks.full_cache       # the commits of a store whose local copies are full
python -m benchmarks.many_stores      # seven questions, some hours; --only NAME: one of them
python -m benchmarks.soak --minutes 60
python -m tests.kill --minutes 65
python -m benchmarks.report
```

Every store runs in a fresh JVM, the stores take turns, and each round starts with another one. A ratio is taken within
a round; given are the median over rounds and their range, or where it says so its 95 % bootstrap interval. *Met*
compares the median with the target. The floor is the same rows in a query without a state. The *bare map* is one
`java.util.HashMap` of copied rows for each store, with no files, no versions and no recovery: a peer that keeps
nothing.
"""

BEHIND = """# Evidence

What stands behind the bars of the [benchmarks](benchmarks.md), one section a benchmark.
"""

Rows = list[list[str]]


@dataclass(frozen=True)
class Section:
    """A benchmark on the pages.

    Args:
        evidence: its section, of its result.
        bars: its bars with what was measured and the verdict, of its result.
    """

    evidence: Callable[[dict[str, Any]], str]
    bars: Callable[[dict[str, Any]], Rows] = lambda _: []


ASKED = (SHAPES, ROCKSDB, CHANGELOG, MANY_STORES)
ONE_BY_ONE = {asked.result for asked in ASKED}
"""Results whose answers each have the code that they measured."""

SECTIONS = {
    "aggregation": Section(batches_report.aggregation_section, batches_report.aggregation_bars),
    "micro": Section(store_report.micro_section, store_report.micro_bars),
    "restore": Section(store_report.restore_section, store_report.restore_bars),
    "restore_places": Section(store_report.restore_places_section),
    "storage": Section(store_report.fsync_section),
    "memory": Section(store_report.memory_section, store_report.memory_bars),
    "compaction-light": Section(store_report.compaction_section, store_report.compaction_bars),
    "compaction-heavy": Section(store_report.compaction_section, store_report.compaction_bars),
    "operators": Section(operators_report.operators_section, operators_report.operators_bars),
    "operators-4.2": Section(operators_report.operators_section, operators_report.operators_bars),
    **{asked.result: Section(asked.section, asked.bars) for asked in ASKED},
    "soak": Section(proofs_report.soak_section),
    **{name: Section(proofs_report.kill_section, proofs_report.kill_bars) for name in proofs_report.KILLS},
    "kill-broken": Section(proofs_report.broken_section),
}


def current(folder: Path, name: str) -> tuple[dict[str, Any] | None, str | None]:
    """The last result of that name, or why it is not shown; neither where there is none."""
    source = folder / f"{name}.json"
    if not source.exists():
        # what is asked is said without an answer, too
        return ({} if name in ONE_BY_ONE else None), None
    found: dict[str, Any] = json.loads(source.read_text())
    if name not in ONE_BY_ONE and later(found.get("code", ""), name) is None:
        return None, f"`{name}`, measured at {found.get('commit', 'a commit that it does not name')}"
    return found, None


def page_of(results: dict[str, dict[str, Any]], charts: list[str]) -> str:
    """The page: all bars, and the charts that there are."""
    rows = []
    for name, result in results.items():
        for row in SECTIONS[name].bars(result):
            # an answer says by itself of which commit it is
            rows.append(row if len(row) > len(BARS) else [*row, result["commit"], result["date"]])
    parts = [INTRODUCTION]
    if rows:
        parts.append(table([*BARS, "commit", "date"], rows))
    return "\n".join([*parts, *(f"![{name}](benchmarks/{name}.png)\n" for name in charts)])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON results")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages; the README is written with ours")
    given = parser.parse_args()
    figures = given.docs / "benchmarks"
    figures.mkdir(parents=True, exist_ok=True)
    parts = [BEHIND]
    results: dict[str, dict[str, Any]] = {}
    refused = []
    for name, section in SECTIONS.items():
        result, reason = current(given.results, name)
        figure = f"{name}.png"
        if reason is not None:
            refused.append(reason)
        if result is None:
            # a figure goes with what it shows
            (figures / figure).unlink(missing_ok=True)
            continue
        results[name] = result
        parts.append(section.evidence(result))
        if name not in ONE_BY_ONE and (after := told_of(later(result["code"], name))):
            parts.append(f"{after.strip()}\n")
        # a clone has the figures of earlier runs in the documentation only
        if figure in parts[-1] and ((given.results / figure).exists() or not (figures / figure).exists()):
            shutil.copyfile(given.results / figure, figures / figure)
    if refused:
        told = "Not shown, since shim or engine have changed after them: " + "; ".join(refused) + "."
        print(told, file=sys.stderr)
        parts.insert(1, told + "\n")
    parts.append(listed())
    (given.docs / EVIDENCE).write_text("\n".join(parts))
    (given.docs / PAGE).write_text(page_of(results, [name for name in CHARTS if name in results]))
    if given.docs == DOCS and "aggregation" in results:
        shown = batches_report.readme_figures(results["aggregation"], results.get("restore"))
        README.write_text(fill(README.read_text(), "figures", shown))


if __name__ == "__main__":
    main()
