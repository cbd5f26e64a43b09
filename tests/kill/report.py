"""What the result of a kill campaign says: whether it is clean, what it falls short of, tables."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rounds import LONG_MINUTES
from lamina.errors import KINDS
from tests.kill.campaign import SPILLING
from tests.kill.points import AT_RANDOM, COLLECTION, COMPACTION, NO_LINEAGE_CHECK, PUBLICATION, RESTORE, TABLES
from tests.kill.processes import DRIVER, ENGINE, EXECUTOR, MAINTENANCE
from tests.kill.storage import DISK
from tests.kill.tasks import OF_A_KILL

WRONG_NUMBERS = ("lost", "duplicated", "reordered", "foreign")
WRONG_LISTS = ("orphans", "damaged_files", "leaked_processes", "open_files_left")
TITLES = {"foreign": "of an attempt that does not count"}

LEAST, LEAST_OUTER, LEAST_AT = 300, 60, 10
"""How many kills a record has to have: in all, of drivers and executors, and at each named point."""

HOOKED = {ENGINE: (*PUBLICATION, RESTORE), MAINTENANCE: (*COMPACTION, *TABLES, COLLECTION)}
"""The named points that the hook has in each process of lamina."""

TRIES = 4
"""So many orders in vain, and none carried out, are more than chance: of 322 on a busy machine 10 were in vain."""


def faults(result: dict[str, Any]) -> list[str]:
    """All that is wrong, in words; nothing where the campaign is clean."""
    found = [f"{TITLES.get(name, name)}: {result[name]}" for name in WRONG_NUMBERS if result[name]]
    for name in WRONG_LISTS:
        found += [f"{name.replace('_', ' ')}: {one}" for one in result[name]]
    if result["stuck"]:
        found.append(f"cannot go on: {result['stuck']}")
    found += [f"the query failed, and no kill explains it: {told}" for told in unexplained(result)]
    return found + [f"a task failed, and no kill explains it: {told}" for told in result["unexplained_task_errors"]]


def unexplained(result: dict[str, Any]) -> list[str]:
    """The failures of the query with an error of lamina that no kill explains."""
    return [told for told in result["failures_of_the_query"] if _kind(told) not in (None, *OF_A_KILL)]


def is_caught(result: dict[str, Any]) -> bool:
    """Whether a campaign has noticed that a promise was taken away."""
    return bool(caught_by(result))


def caught_by(result: dict[str, Any]) -> str:
    """By what a campaign has noticed it, which no slow machine looks like; "" where it has not."""
    if wrong := [f"{TITLES.get(name, name)} {result[name]}" for name in WRONG_NUMBERS if result[name]]:
        return ", ".join(wrong)
    told = [*result["failures_of_the_query"], *result["damaged_files"], result["stuck"]]
    missing = result["broken"] != NO_LINEAGE_CHECK and any("[file.missing]" in one for one in told)
    return "file.missing" if missing else ""


def shortfalls(result: dict[str, Any]) -> list[str]:
    """What a campaign should have killed and did not: one that kills nobody finds nothing wrong.

    A long one is held to the targets. Of a shorter one little is asked, since a slow machine may need minutes until
    the query is back after a kill: one kill in one and a half minutes, and some at the points of the hook in each
    process.
    """
    found = [] if result["tasks"] else ["no task in Spark's event logs, so that no error of one was looked at"]
    if result.get("backend") == SPILLING and not result["spilled_bytes"]:
        found.append("no batch kept changes on the local disk")
    if result["minutes"] >= LONG_MINUTES:
        return found + [f"{name}: {count} of {bar}" for name, bar, count in targets(result) if count < bar]
    killed, missed = _at(result["kills"]), _at(result["missed"])
    least = max(1, int(result["minutes"] / 1.5))
    if killed.total() < least:
        found.append(f"kills: {killed.total()} of {least}")
    if not any(killed[point] for points in HOOKED.values() for point in points):
        found.append("no kill at any point of the hook")
    for process, points in HOOKED.items():
        tried = sum(missed[point] for point in points)
        if tried >= TRIES and not any(killed[point] for point in points):
            found.append(f"no kill at a point of the {process} process, in {tried} attempts")
    return found


def _at(counted: list[list[Any]]) -> Counter[str]:
    """Counts by point."""
    at: Counter[str] = Counter()
    for point, _, count in counted:
        at[point] += count
    return at


def targets(result: dict[str, Any]) -> list[tuple[str, int, int]]:
    """How many kills of a kind a long campaign should have, and had."""
    at = _at(result["kills"])
    outer = sum(count for _, victim, count in result["kills"] if victim in (DRIVER, EXECUTOR))
    named = min(((count, point) for point, count in at.items() if point != AT_RANDOM), default=(0, "any point"))
    return [
        ("kills", LEAST, at.total()),
        ("of a driver or an executor", LEAST_OUTER, outer),
        (f"at each named point; fewest {named[1]}", LEAST_AT, named[0]),
    ]


def record_of(storage: str, backend: str) -> str:
    """The name of the record of campaigns."""
    return "-".join(["kill", *(one for one in (storage, backend) if one not in (DISK, "heap"))])


def check_alike(results: list[dict[str, Any]]) -> None:
    """Ends the program where campaigns cannot be one result."""
    for name in ("storage", "backend", "code"):
        if len(found := {str(result.get(name)) for result in results}) > 1:
            raise SystemExit(f"campaigns of another {name} do not add up: {', '.join(sorted(found))}")


def merged(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Several campaigns as one result."""
    check_alike(results)
    total = dict(results[-1])
    for name in ("minutes", "starts", "batches", "records", "tasks", *WRONG_NUMBERS):
        total[name] = sum(result[name] for result in results)
    # older records do not have it
    total["spilled_bytes"] = sum(result.get("spilled_bytes", 0) for result in results)
    for name in (*WRONG_LISTS, "failures_of_the_query", "unexplained_task_errors", "examples"):
        total[name] = [one for result in results for one in result[name]]
    total["task_errors"] = dict(sum((Counter(result["task_errors"]) for result in results), Counter()))
    total["stuck"] = "; ".join(result["stuck"] for result in results if result["stuck"])
    for name in ("kills", "missed"):
        counts: Counter[tuple[str, str]] = Counter()
        for result in results:
            for point, victim, count in result[name]:
                counts[point, victim] += count
        total[name] = [[*one, count] for one, count in counts.items()]
    total["campaigns"] = sum(result.get("campaigns", 1) for result in results)
    return total


def reasons(result: dict[str, Any]) -> Counter[str]:
    """How often the query failed by itself, by reason: the kind of an error of lamina, else Spark's words."""
    found: Counter[str] = Counter()
    for told in result["failures_of_the_query"]:
        found[_kind(told) or told.removeprefix("Exception: Job aborted due to stage failure: ")] += 1
    return found


def _kind(told: str) -> str | None:
    """The kind of the error of lamina that a failure names; the last one, which is the cause of those before it."""
    return next((kind for kind in reversed(re.findall(r"\[([a-z.-]+)\]", told)) if kind in KINDS), None)


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
    if result["spilled_bytes"]:
        console.print(f"changes kept on the local disk: {result['spilled_bytes'] >> 20} MiB")
    lists = {name: result[name] for name in (*WRONG_LISTS, "failures_of_the_query")}
    lists["of_them_no_kill_explains"] = unexplained(result)
    lists["errors_of_tasks"] = [f"{count} x {what}" for what, count in sorted(result["task_errors"].items())]
    # an error's kind, in brackets, would be markup
    for name, told in {**lists, "unexplained_task_errors": result["unexplained_task_errors"]}.items():
        console.print(f"{name.replace('_', ' ')}: {len(told)}")
        for one in told[:5]:
            console.print(f"    {one}", markup=False)
    if result["stuck"]:
        console.print(f"cannot go on: {result['stuck']}", markup=False)
    for example in result["examples"][:3]:
        console.print(example, markup=False)
