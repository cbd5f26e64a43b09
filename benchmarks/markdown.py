"""Tables, medians with their interval, verdicts, what a benchmark ran on and wrote, and how that gets into a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.statistics import Spread
from benchmarks.variants import TITLES, told


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and the others are numbers."""
    rule = ["---", *("---:" for _ in heads[1:])]
    lines = ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]
    return "\n".join(lines) + "\n"


BARS = ("target", "bar", "measured", "")
"""Heads of a table of targets."""


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


def durabilities(result: dict[str, Any]) -> str:
    """How durable and how compressed each variant wrote."""
    titles = {**TITLES, "table": "the table alone"}
    lines = [f"- {titles[name]}: {told(words)}" for name, words in result["durability"].items()]
    return "\n".join(["Durability:\n", *lines, ""])


def fill(page: str, name: str, content: str) -> str:
    """The page with what stands between the comments `name` and `/name` replaced."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, opened, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise SystemExit(f"the page has no comments {start.strip()} and {end} to write between: put them back")
    return f"{before}{start}{content}{end}{after}"
