"""The result of a kill campaign: counts, targets, tables."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.kill_points import AT_RANDOM, NO_LINEAGE_CHECK
from benchmarks.kill_processes import DRIVER, ENGINE, EXECUTOR, MAINTENANCE

if TYPE_CHECKING:
    from benchmarks.kill import Campaign

WRONG_NUMBERS = ("lost", "duplicated", "reordered", "foreign")
WRONG_LISTS = ("orphans", "damaged_files", "leaked_processes", "open_files_left")

LEAST, LEAST_OUTER, LEAST_AT = 300, 60, 10
"""How many kills a long campaign should have: in all, of drivers and executors, and at each named point."""


def result_of(
    campaign: Campaign, verdict: str, end_state: dict[str, Any], minutes: float, broken: str | None
) -> dict[str, Any]:
    """The result as JSON."""
    judge = campaign.judge
    return {
        "benchmark": "kill",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "minutes": minutes,
        "seed": campaign.seed,
        "broken": broken,
        "kills": [[point, victim, campaign.kills[point, victim]] for point, victim in campaign.plan],
        "missed": sum(campaign.missed.values()),
        "starts": campaign.starts,
        "batches": judge.checked,
        "records": judge.records,
        "lost": judge.lost,
        "duplicated": judge.duplicated,
        "reordered": judge.reordered,
        "foreign": judge.foreign,
        "stuck": verdict,
        "failures_of_the_query": campaign.own_failures,
        "leaked_processes": campaign.leaked,
        "open_files_left": end_state["held"],
        "orphans": end_state["orphans"],
        "damaged_files": end_state["damaged"],
        "examples": judge.examples[:5],
    }


def is_clean(result: dict[str, Any]) -> bool:
    """Whether nothing at all is wrong."""
    return not (any(result[name] for name in (*WRONG_NUMBERS, *WRONG_LISTS)) or result["stuck"])


def is_caught(result: dict[str, Any]) -> bool:
    """Whether a campaign has noticed that a promise was taken away, which no slow machine looks like."""
    if any(result[name] for name in WRONG_NUMBERS):
        return True
    told = [*result["failures_of_the_query"], *result["damaged_files"], result["stuck"]]
    return result["broken"] != NO_LINEAGE_CHECK and any("[file.missing]" in one for one in told)


def targets(result: dict[str, Any]) -> list[tuple[str, int, int]]:
    """How many kills of a kind a long campaign should have, and had."""
    at: Counter[str] = Counter()
    for point, _, count in result["kills"]:
        at[point] += count
    outer = sum(count for _, victim, count in result["kills"] if victim in (DRIVER, EXECUTOR))
    named = min(((count, point) for point, count in at.items() if point != AT_RANDOM), default=(0, "any point"))
    return [
        ("kills", LEAST, at.total()),
        ("of a driver or an executor", LEAST_OUTER, outer),
        (f"at each named point; fewest {named[1]}", LEAST_AT, named[0]),
    ]


def merged(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Several campaigns as one result."""
    total = dict(results[-1])
    for name in ("minutes", "missed", "starts", "batches", "records", *WRONG_NUMBERS):
        total[name] = sum(result[name] for result in results)
    for name in (*WRONG_LISTS, "failures_of_the_query", "examples"):
        total[name] = [one for result in results for one in result[name]]
    total["stuck"] = "; ".join(result["stuck"] for result in results if result["stuck"])
    kills: Counter[tuple[str, str]] = Counter()
    for result in results:
        for point, victim, count in result["kills"]:
            kills[point, victim] += count
    total["kills"] = [[*one, count] for one, count in kills.items()]
    total["campaigns"] = sum(result.get("campaigns", 1) for result in results)
    return total


VICTIMS = (ENGINE, MAINTENANCE, EXECUTOR, DRIVER)
HEADS = ("point", *VICTIMS, "all")


def rows_of(result: dict[str, Any]) -> list[list[str]]:
    """How often whom at each point, and the sums."""
    counts = {(point, victim): count for point, victim, count in result["kills"]}
    rows = []
    for point in dict.fromkeys(point for point, _, _ in result["kills"]):
        row = [counts.get((point, victim)) for victim in VICTIMS]
        rows.append([point, *("" if count is None else str(count) for count in row), str(sum(filter(None, row)))])
    sums = [sum(count for (_, one), count in counts.items() if one == victim) for victim in VICTIMS]
    return [*rows, ["all", *map(str, sums), str(sum(sums))]]


def show(result: dict[str, Any], console: Console) -> None:
    """Print a table of kills, and what was wrong."""
    table = Table(title=f"kills in {result['minutes']:g} minutes, {result['batches']} batches")
    for heading in HEADS:
        table.add_column(heading, justify="left" if heading == "point" else "right")
    for row in rows_of(result):
        table.add_row(*row)
    console.print(table)
    console.print(
        f"records {result['records']}: lost {result['lost']}, duplicated {result['duplicated']}, "
        f"reordered {result['reordered']}, of an attempt that does not count {result['foreign']}"
    )
    for name in (*WRONG_LISTS, "failures_of_the_query"):
        console.print(f"{name.replace('_', ' ')}: {len(result[name])}")
        for one in result[name][:5]:
            console.print(f"    {one}")
    if result["stuck"]:
        console.print(f"cannot go on: {result['stuck']}")
    for example in result["examples"][:3]:
        console.print(example)
