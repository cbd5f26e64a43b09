"""What is asked for, held against what was measured, and how that is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.statistics import Spread

Figures = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """What is asked for, and what was measured."""

    what: str
    bar: str
    measured: str
    met: bool


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


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(round(len(ordered) * percent / 100, 9)) - 1)]
