"""What a question about many stores is, what was found on it, and how that is held against its bars."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks import machine
from benchmarks.statistics import Spread

Figures = dict[str, Any]
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Bar:
    """What is asked for, and what was measured."""

    what: str
    bar: str
    measured: str
    met: bool


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

    def answer(self, quick: bool, rounds: int | None) -> dict[str, Any]:
        """Measures, and says of what: the cell of a result."""
        parameters = {**self.full, **(self.quick if quick else {})}
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

    def refused(self, cell: Mapping[str, Any]) -> str | None:
        """Why a cell is no answer today; None where it is one."""
        if cell["code"] != machine.code():
            return f"measured at {cell['commit']}, and shim or engine have changed since"
        if cell["parameters"] != dict(self.full):
            return "measured with other parameters"
        return None


def most(what: str, bar: float, found: Spread, unit: str = "", digits: int = 2) -> Bar:
    """A bar from above, held against the median."""
    return Bar(what, f"≤ {bar:g}{unit}", between(found, digits) + unit, found["median"] <= bar)


def least(what: str, bar: float, found: Spread, unit: str = "") -> Bar:
    """A bar from below, held against the median."""
    return Bar(what, f"≥ {bar:g}{unit}", between(found) + unit, found["median"] >= bar)


def between(found: Spread, digits: int = 2) -> str:
    """Median, and the range of all rounds where there is one."""
    median, low, high = (f"{found[name]:.{digits}f}" for name in ("median", "low", "high"))
    return median if low == high else f"{median} ({low}-{high})"


def printed(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    """A table for the terminal whose first column is text and the others are numbers."""
    table = Table(title=title)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
