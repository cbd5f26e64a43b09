"""Many stores at once, held against their bars: `python -m benchmarks.many_stores`.

Each question is measured by itself and keeps its last answer, with commit, date and parameters, in
`benchmarks/results/many_stores.json`; a short run writes its answers beside that.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.many_stores import answers
from benchmarks.many_stores.bars import Bar, printed
from benchmarks.rounds import progress, write_result


def show(cells: dict[str, Any], quick: bool, console: Console) -> None:
    """Prints what is behind the bars, and the bars."""
    summary = Table(title="bars")
    for head in ("bar", "asked", "measured", "", "commit", "date"):
        summary.add_column(head, justify="right" if head in ("asked", "measured") else "left")
    for question in answers.QUESTIONS:
        cell = cells.get(question.name)
        if cell is None:
            continue
        refused = None if quick else question.refused(cell)
        if refused is not None:
            summary.add_row(question.asks, "", "", f"refused: {refused}", cell["commit"], cell["date"])
            continue
        console.print(f"\n{question.name}: {question.setup(cell['parameters'], cell['figures'])}")
        told = f"{cell['rounds']} rounds, load before them {cell['load']}, local files on {cell['files']}"
        console.print(f"{told}; parameters {cell['parameters']}")
        console.print(printed(*question.table(cell["figures"])))
        for bar in question.bars(cell["parameters"], cell["figures"]):
            summary.add_row(bar.what, bar.bar, bar.measured, _verdict(bar), cell["commit"], cell["date"])
    console.print(summary)


def _verdict(bar: Bar) -> str:
    return "met" if bar.met else "NOT MET"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [question.name for question in answers.QUESTIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="few stores, few batches, one round: whether it runs")
    parser.add_argument("--rounds", type=int, help="rounds of each question")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of tables")
    given = parser.parse_args()
    file = answers.RESULT + ("-quick" if given.quick else "")
    cells = {} if given.quick else answers.read(file)
    for question in answers.QUESTIONS:
        if question.name in given.only:
            progress(f"{question.name}: {question.asks}")
            answer = question.answer(given.quick, given.rounds)
            # question by question: all of them take hours, and others may be asked meanwhile
            cells = {**(cells if given.quick else answers.read(file)), question.name: answer}
            write_result(file, {"benchmark": answers.RESULT, "cells": cells})
    if given.json:
        print(json.dumps(cells, indent=1, sort_keys=True))
    else:
        show(cells, given.quick, Console(width=150))


if __name__ == "__main__":
    main()
