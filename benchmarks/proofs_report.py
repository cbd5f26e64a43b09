"""What the page of results says of the long proofs: the hour of one query, and the kills."""

from __future__ import annotations

from typing import Any

from benchmarks import kill_report, soak
from benchmarks.markdown import header, table, verdict


def soak_section(result: dict[str, Any]) -> str:
    """Slopes over the run."""
    parts = ["## An hour of one query\n", header(result)]
    parts.append(
        "Deduplication within a watermark: each batch brings new keys, and as many old ones leave the state; "
        f"{result['live_keys']:,} live keys, {result['batches']} batches in {result['minutes']:g} minutes, "
        f"{result['restarts']} starts, of which every other one finds its table handed over; 10 versions retained. "
        f"A line through all samples from minute {result['from_minute']:g} on, with the 95 % interval of a bootstrap "
        "over blocks of a minute. *Flat*: the interval holds a slope of zero or less, or the slope is below 2 % of "
        "the median an hour.\n"
    )
    parts.append("![soak](benchmarks/soak.png)\n")
    parts.append(table(soak.HEADS, soak.rows_of(result)))
    return "\n".join(parts)


def kill_section(result: dict[str, Any]) -> str:
    """How often whom and where, and what was wrong afterwards."""
    parts = ["## Kills\n", header(result)]
    parts.append(
        f"A query in `local-cluster[2,1,1024]` for {result['minutes']:g} minutes: {result['batches']} batches of "
        f"self-describing records, {result['starts']} starts; SIGKILL of one process after the other, at random or "
        "when it has come to a named point. Each output is compared with the input, and at the end a record is added "
        "to each list that is in the state. Orphans are looked for in the stores' directories, open files in the "
        "checkpoint's state.\n"
    )
    parts.append(table(kill_report.HEADS, kill_report.rows_of(result)))
    titles = {"foreign": "of an attempt that does not count"}
    sums = [f"{titles.get(name, name)} {result[name]}" for name in kill_report.WRONG_NUMBERS]
    sums += [f"{name.replace('_', ' ')} {len(result[name])}" for name in kill_report.WRONG_LISTS]
    parts.append(f"Of {result['records']:,} records, and at the end: {', '.join(sums)}.\n")
    rows = [[name, f"≥ {bar}", f"{count}", verdict(count >= bar)] for name, bar, count in kill_report.targets(result)]
    parts.append(table(["target", "bar", "counted", ""], rows))
    return "\n".join(parts)
