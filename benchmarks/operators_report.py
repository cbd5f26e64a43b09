"""The sections of docs/evidence.md on the stateful operators."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import operators
from benchmarks.markdown import BARS, around, header, table, verdict
from benchmarks.variants import HDFS, TITLES


def operators_section(result: dict[str, Any]) -> str:
    """State time and batch time of each operator."""
    minor = ".".join(result["machine"]["spark"].split(".")[:2])
    name = operators.result_name(minor)
    if minor != operators.SPARKS[0]:
        return "\n".join([f"## Stateful operators on Spark {minor}\n", header(result), *_found(result, name)])
    parts = ["## Every stateful operator\n", header(result)]
    parts.append(
        f"About a million rows of state, {result['rows']:,} rows a batch, of which about half change a row that is "
        "there; as many rows leave the state with each batch as come. `local[2]`, two shuffle partitions, a sink that "
        "drops the rows; joins with Spark's state format 2, which is what Spark 4.3 takes for every store but its own "
        f"RocksDB; {result['rounds']} rounds.\n\n"
        "*State* is the sum of the five times after it, in ms, summed over the two tasks. *Updates*, *removals* (of "
        "timers too) and *commit* are what Spark reports as `allUpdatesTimeMs`, `allRemovalsTimeMs`, "
        "`timerProcessingTimeMs` and `commitTimeMs`. Spark's clock of the updates runs on while the operator fetches "
        "and computes the rows that come in, which costs every store the same. *Opening* is `laminaLoadMs`, "
        "`rocksdbLoadLatencyMs`, and in the HDFS store, which has no metric for it, a clock around its opens. "
        "*Durable* is lamina's wait for its files at the end of a task, `laminaDurableMs` by task; in the other stores "
        "it is part of the commit. *Nothing evicted* is the time of the removals, by store, in a batch that removes "
        "nothing. Left out: the same operators with functions in Python, whose time is mostly Python's, and `limit`, "
        "which keeps one row.\n"
    )
    return "\n".join([*parts, *_found(result, name), EVICTION])


EVICTION = """Of the time that a join in state format 2 takes to evict nothing, as a profile shows it (JFR, 3473
samples), 58 % are lookups: Spark walks the keys in one store and asks another one for every value, whose place in the
index and whose row are cache misses that depend on each other. 12 % are the walk, 30 % Spark's own: the row that it
asks by, copies, the condition. Nothing that a store does makes it look at fewer rows. State format 4 reads its rows in
the order of time and stops at the first that stays (Spark 4.2, below); Spark 4.3 sets it back to 2 on every provider
that is not RocksDB's class.
"""


def _found(result: dict[str, Any], name: str) -> list[str]:
    parts = [f"![state time](benchmarks/{name}.png)\n"]
    for operator in operators.present(result).values():
        parts.append(f"### {operator['title']}\n")
        rows = [
            [
                TITLES[store],
                around(state, 0),
                *(_part(operator, store, part) for part in operators.PARTS),
                _ratio(operator["state_speed_up"].get(store)),
                around(operator["add_batch_ms"][store], 0),
                _ratio(operator["batch_speed_up"].get(store)),
                _idle(operator["idle_removal_ms"].get(store)),
            ]
            for store, state in operator["state_ms"].items()
        ]
        heads = ["store", "state (all rounds)", *operators.PARTS, "lamina shorter", "addBatch (all rounds)",
                 "lamina shorter", "nothing evicted"]  # fmt: skip
        parts.append(table(heads, rows))
        parts.append(_checks(result, operator))
    parts.append(table(BARS, operators_bars(result)))
    return parts


def operators_bars(result: dict[str, Any]) -> list[list[str]]:
    """Each bar with what was measured."""
    spark = f"Spark {'.'.join(result['machine']['spark'].split('.')[:2])}"
    return [
        [f"{spark}, {target}", bar, measured, verdict(met)] for target, bar, measured, met in operators.bars(result)
    ]


def _part(operator: dict[str, Any], store: str, part: str) -> str:
    found = operator["parts_ms"][store]
    return f"{found[part]:.0f}" if part in found else ""


def _ratio(ratio: Any) -> str:
    return f"{around(ratio)} times" if ratio else ""


def _idle(idle: Any) -> str:
    return f"{idle['median']:.1f}" if idle else ""


def _checks(result: dict[str, Any], operator: dict[str, Any]) -> str:
    rows, changed, removed = (
        statistics.median(operator[key].values()) for key in ("state_rows", "updated_rows", "removed_rows")
    )
    stateless = result["stateless"][str(operator["sides"])]["add_batch_ms"][HDFS]
    same = "All stores gave the same results." if operator["same_digest"] else "**The stores gave different results.**"
    stores, load = max(operator["stores"].values()), operator["load"]
    return (
        f"{rows:,.0f} rows of state in {stores:.0f} stores, {changed:,.0f} updated and {removed:,.0f} removed by a "
        f"batch; addBatch of the same rows without any state: {around(stateless, 0)} ms. Load average before the runs "
        f"{load['low']}-{load['high']}. {same} {operator['note']}".rstrip()
        + "\n"
    )
