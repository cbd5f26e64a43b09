"""Questions that are asked and answered one by one: their command line, and their section of the page of evidence.

An answer is kept with its commit, date and parameters until the question is asked again. One of other parameters, or of
a shim or engine that has changed since, is not shown.
"""

from __future__ import annotations

import argparse
import datetime
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.bars import Bar, Figures, printed
from benchmarks.changes import Change, later, told_of
from benchmarks.markdown import BARS, header, table, verdict
from benchmarks.rounds import RESULTS, progress, write_result

Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """One question.

    Args:
        name: on the command line.
        asks: what is asked, in a line.
        goal: what is a good answer.
        full: the parameters; what was measured with others is not shown as an answer.
        quick: those that differ in a short run.
        rounds: how often it is measured.
        measure: gives the figures, small.
        bars: holds figures against the bars.
        table: the figures behind them, heads first.
        setup: says in a sentence what ran.
    """

    name: str
    asks: str
    goal: str
    full: Parameters
    quick: Parameters
    rounds: int
    measure: Callable[[Parameters, int], Figures]
    bars: Callable[[Parameters, Figures], list[Bar]]
    table: Callable[[Figures], tuple[Sequence[str], list[list[str]]]]
    setup: Callable[[Parameters, Figures], str]

    def answer(self, quick: bool, rounds: int | None, minutes: float | None = None) -> dict[str, Any]:
        """Measures, and says of what: the cell of a result."""
        parameters = {**self.full, **(self.quick if quick else {})}
        if minutes is not None and "minutes" in parameters:
            parameters["minutes"] = minutes
        count = rounds or (1 if quick else self.rounds)
        cell = {
            "date": datetime.date.today().isoformat(),
            "commit": machine.commit(),
            "code": machine.code(),
            "machine": machine.describe(),
            "load": machine.load(),
            "files": machine.temporary_files(),
            "parameters": parameters,
            "rounds": count,
        }
        return {**cell, "figures": self.measure(parameters, count)}

    def later(self, cell: Mapping[str, Any], result: str) -> list[Change] | None:
        """The changes since a cell of a result was measured; None where not all of them spare it."""
        return later(cell["code"], f"{result}/{self.name}")

    def refused(self, cell: Mapping[str, Any], result: str) -> str | None:
        """Why a cell of a result is no answer today; None where it is one."""
        if self.later(cell, result) is None:
            return f"measured at {cell['commit']}, and shim or engine have changed since"
        if cell["parameters"] != dict(self.full):
            return "measured with other parameters"
        return None


@dataclass(frozen=True)
class Questions:
    """Questions of one subject.

    Args:
        result: the name of the file of their answers.
        title: of their section.
        purpose: what they are asked for, in words that follow the command.
        words: what holds for all answers, in the section behind that list.
    """

    result: str
    title: str
    purpose: str
    words: str
    questions: Sequence[Question]

    def read(self, name: str) -> dict[str, Any]:
        """The answers of the last run by the name of their question; none where there was none."""
        try:
            found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())["cells"]
        except FileNotFoundError:
            return {}
        return found

    def section(self, result: dict[str, Any]) -> str:
        """What is asked, and the answers that count."""
        asked = [[f"`{question.name}`", question.asks, question.goal] for question in self.questions]
        heads = ["question", "what is asked", "bar"]
        if not any(question.goal for question in self.questions):
            heads, asked = heads[:2], [row[:2] for row in asked]
        parts = [f"## {self.title}\n", self._how(), table(heads, asked), self.words]
        details = []
        for question in self.questions:
            cell = result.get("cells", {}).get(question.name)
            if cell is None:
                continue
            refused = question.refused(cell, self.result)
            if refused is not None:
                parts.append(f"Not shown: `{question.name}`, {refused}.\n")
                continue
            answered = table(*question.table(cell["figures"]))
            told = question.setup(cell["parameters"], cell["figures"])
            told += f" {cell['rounds']} rounds, local files on {cell['files']}. {header(cell)[:-1]}"
            told += f" Commit {cell['commit']}.{told_of(question.later(cell, self.result))}"
            details.append(f"### {question.name}\n\n{told}\n\n{answered}")
        if found := self.bars(result):
            parts.append(table([*BARS, "commit", "date"], found))
        return "\n".join([*parts, *details])

    def _how(self) -> str:
        words = (
            f"`python -m benchmarks.{self.result}` {self.purpose}. `--only NAME` asks one question, `--quick` asks a "
            "small one, to see whether it runs, and `--json` prints the answers as JSON. An answer is kept with its "
            "commit, date and parameters. One of other parameters, or of a shim or engine that has changed in what it "
            "measures, is not shown here."
        )
        return textwrap.fill(words, 120) + "\n"

    def bars(self, result: dict[str, Any]) -> list[list[str]]:
        """Each bar of an answer that counts, with commit and date."""
        return [
            [bar.what, bar.bar, bar.measured, verdict(bar.met), cell["commit"], cell["date"]]
            for question in self.questions
            if (cell := result.get("cells", {}).get(question.name)) is not None
            and question.refused(cell, self.result) is None
            for bar in question.bars(cell["parameters"], cell["figures"])
        ]

    def show(self, cells: dict[str, Any], short: bool, console: Console) -> None:
        """Prints what is behind the bars, and the bars.

        Args:
            short: other parameters are no reason to refuse an answer.
        """
        summary = Table(title="bars")
        for head in ("bar", "asked", "measured", "", "commit", "date"):
            summary.add_column(head, justify="right" if head in ("asked", "measured") else "left")
        for question in self.questions:
            cell = cells.get(question.name)
            if cell is None:
                continue
            refused = None if short else question.refused(cell, self.result)
            if refused is not None:
                summary.add_row(question.asks, "", "", f"refused: {refused}", cell["commit"], cell["date"])
                continue
            console.print(f"\n{question.name}: {question.setup(cell['parameters'], cell['figures'])}")
            told = f"{cell['rounds']} rounds, load before them {cell['load']}, local files on {cell['files']}"
            console.print(f"{told}; parameters {cell['parameters']}")
            console.print(printed(*question.table(cell["figures"])))
            for bar in question.bars(cell["parameters"], cell["figures"]):
                summary.add_row(bar.what, bar.bar, bar.measured, _verdict(bar), cell["commit"], cell["date"])
        if summary.row_count:
            console.print(summary)

    def main(self, description: str | None) -> None:
        """Command line."""
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.result}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        names = [question.name for question in self.questions]
        parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
        parser.add_argument("--quick", action="store_true", help="small, one round: whether it runs")
        parser.add_argument("--rounds", type=int, help="rounds of each question")
        parser.add_argument("--json", action="store_true", help="print the result as JSON instead of tables")
        parser.add_argument("--minutes", type=float, help="how long a question goes on that is about minutes")
        given = parser.parse_args()
        # what was not asked as the page has it goes beside the last answers
        short = given.quick or given.minutes is not None
        file = self.result + ("-quick" if short else "")
        cells = {} if short else self.read(file)
        for question in self.questions:
            if question.name in given.only:
                progress(f"{question.name}: {question.asks}")
                answer = question.answer(given.quick, given.rounds, given.minutes)
                # question by question: all of them take hours, and others may be asked meanwhile
                cells = {**(cells if short else self.read(file)), question.name: answer}
                write_result(file, {"benchmark": self.result, "cells": cells})
        if given.json:
            print(json.dumps(cells, indent=1, sort_keys=True))
        else:
            self.show(cells, short, Console(width=190))


def _verdict(bar: Bar) -> str:
    return "met" if bar.met else "NOT MET"
