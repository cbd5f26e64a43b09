"""What the page of results says of the long proofs: the hour of one query, the kills, and builds without a promise."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks import soak
from benchmarks.markdown import BARS, header, table, verdict
from tests.kill import report
from tests.kill.campaign import BACKENDS
from tests.kill.processes import DRIVER
from tests.kill.storage import DISK

KILLS = tuple(report.record_of(DISK, backend) for backend in BACKENDS)
"""The records of campaigns on the disk of this machine, by backend."""


def soak_section(result: dict[str, Any]) -> str:
    """Slopes over the run."""
    parts = ["## An hour of one query\n", header(result)]
    parts.append(
        "Deduplication within a watermark, at most two batches a second: each brings new keys, and as many old ones "
        "leave the state; "
        f"{result['live_keys']:,} live keys, {result['batches']} batches in {result['minutes']:g} minutes, "
        f"{result['restarts']} starts, of which every other one finds its table handed over; 10 versions retained. "
        f"A line through all samples from minute {result['from_minute']:g} on, with the 95 % interval of a bootstrap "
        "over blocks of a minute. *Flat*: the interval holds a slope of zero or less, or the slope is below 2 % of "
        "the median an hour.\n"
    )
    parts.append(
        "A shared machine is not equally fast for an hour: the *fixed piece of work* is its processor time in the "
        "benchmark's own process, once a second, and the time of a batch *at the usual pace* is divided by what that "
        "took in its minute, relative to the middle of all. The Java heap is what is in use after a full collection, "
        "once a start. The checkpoint is on the local disk: remote storage and local copies of its files have no part "
        "in this. The claims of runs do not count among the files: each start leaves one, for good.\n"
    )
    parts.append("![soak](benchmarks/soak.png)\n")
    parts.append(table(soak.HEADS, soak.rows_of(result)))
    return "\n".join(parts)


def kill_section(result: dict[str, Any]) -> str:
    """How often whom and where, and what was wrong afterwards."""
    parts = [f"## Kills, backend {result['backend']}\n", header(result)]
    campaigns = result.get("campaigns", 1)
    parts.append(
        f"{campaigns} {'campaign' if campaigns == 1 else 'campaigns'}: a query in `local-cluster[2,1,1024]` for "
        f"{result['minutes']:g} minutes: {result['batches']} batches of "
        f"self-describing records, {result['starts']} starts; SIGKILL of one process after the other, at random or "
        "when it has come to a named point (*during restore*: any load, also one that "
        "only catches up). Each output is compared with the input, and at the end a record is added "
        "to each list that is in the state. Orphans are looked for in the checkpoint's state, and so are open "
        "files.\n"
    )
    parts.append(table(report.HEADS, report.rows_of(result)))
    parts.append(f"{_starts(result)}\n")
    sums = [f"{report.TITLES.get(name, name)} {result[name]}" for name in report.WRONG_NUMBERS]
    sums += [f"{name.replace('_', ' ')} {len(result[name])}" for name in report.WRONG_LISTS]
    parts.append(f"Of {result['records']:,} records, and at the end: {', '.join(sums)}.\n")
    failed = "; ".join(f"{reason} ({count})" for reason, count in Counter(result["task_errors"]).most_common())
    unexplained = len(result["unexplained_task_errors"])
    parts.append(
        f"{result['tasks']:,} attempts of tasks; those that failed, by what explains it: {failed or 'none'}. "
        f"Errors of lamina or lost executors that no kill explains: {unexplained}.\n"
    )
    parts.append(table(BARS, kill_bars(result)))
    return "\n".join(parts)


def kill_bars(result: dict[str, Any]) -> list[list[str]]:
    """How much was killed, and how much of that went wrong."""
    faults, kills = len(report.faults(result)), f"kills, backend {result['backend']}"
    counts = report.targets(result)
    return [
        *([f"{kills}, {name}", f"≥ {bar}", f"{count}", verdict(count >= bar)] for name, bar, count in counts),
        [f"{kills}, what went wrong", "0", f"{faults}", verdict(not faults)],
    ]


def _starts(result: dict[str, Any]) -> str:
    """Why the query was started as often as it was."""
    drivers = sum(count for _, victim, count in result["kills"] if victim == DRIVER)
    found = f"The query was started once, again after each of {drivers} kills of the driver, and"
    failures = report.reasons(result)
    if not failures:
        return f"{found} never failed by itself."
    told = "; ".join(f"{reason} ({count})" for reason, count in failures.most_common())
    why = ""
    if any("indeterminate" in reason for reason in failures):
        why = (
            " The records have tags that are not deterministic: where an executor takes the input of a batch's last "
            "stage with it, Spark does not run part of that stage again, but ends the query, whatever its state store."
        )
    return f"{found} after each failure of its own: {told}.{why}"


def broken_section(result: dict[str, Any]) -> str:
    """What the campaign made of builds without a promise."""
    builds = result["builds"]
    parts = ["### Builds without a promise\n", header(max(builds.values(), key=lambda one: str(one["date"])))]
    parts.append("The campaign with one promise taken away from the build, until it notices.\n")
    rows = []
    for name, one in sorted(builds.items()):
        kills = sum(count for _, _, count in one["kills"])
        noticed = report.caught_by(one) or "**nothing**"
        rows.append([name, one["commit"], one["date"], f"{one['minutes']:g}", f"{kills}", noticed])
    parts.append(table(["build", "commit", "date", "minutes", "kills", "noticed by"], rows))
    return "\n".join(parts)
