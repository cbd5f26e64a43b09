"""The pieces of a page of results: tables, medians with their interval, verdicts, and what it ran on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.statistics import Spread


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and the others are numbers."""
    rule = ["---", *("---:" for _ in heads[1:])]
    lines = ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]
    return "\n".join(lines) + "\n"


def around(value: Spread, digits: int = 2) -> str:
    """Median and interval."""
    return f"{value['median']:.{digits}f} ({value['low']:.{digits}f}-{value['high']:.{digits}f})"


def verdict(met: bool) -> str:
    """Whether a target is met."""
    return "met" if met else "**not met**"


def header(result: dict[str, Any]) -> str:
    """When and on what a benchmark ran."""
    found = result["machine"]
    return (
        f"{result['date']}; {found['cpu']}, {found['cores']} cores, {found['memory_gib']:.0f} GiB, {found['system']}; "
        f"JDK {found['jdk']}, Python {found['python']}, Spark {found['spark']}, pyarrow {found['pyarrow']}.\n"
    )
