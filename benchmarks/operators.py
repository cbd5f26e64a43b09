"""How long a micro-batch of each stateful operator takes with each state store: `python -m benchmarks.operators`.

State time is what Spark reports as updates, removals (of timers too) and commit, with the opening of the stores and, in
lamina, the wait for durable files at the end of the tasks; all summed over the tasks. Spark's clock of the updates also
runs while rows are fetched and computed that the operator asks for, which costs every store the same. The figure of a
run is the median of its timed batches, that of an operator the median over rounds. Ratios are taken within rounds. The
results of all stores are compared.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
import time
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import figure, machine, variants
from benchmarks.markdown import around
from benchmarks.operator_queries import OPERATORS, STATELESS, Operator, Timeline
from benchmarks.rounds import RESULTS, progress, read_result, run_child, turns, write_result
from benchmarks.scala import benchmark_jar
from benchmarks.statistics import ratios, spread
from benchmarks.variants import HDFS, LAMINA, ROCKSDB, TITLES, durability
from lamina.spark.jars import spark_minor

CHILD = "benchmarks.operators_child"
STATE_BAR = 2.0
BATCH_BAR = 1.0
EVICTION_BAR_MS = 30.0
EVICTION_OF = ("join", "join4")
SPARKS = ("4.3", "4.2")
PARTS = ("updates", "removals", "opening", "commit", "durable")
FULL = {"rows": 50_000, "preload": 4, "warmup": 3, "timed": 7, "quiet": 4}
QUICK = {"rows": 5_000, "preload": 2, "warmup": 3, "timed": 4, "quiet": 4}


def timeline(size: dict[str, int], operator: Operator) -> Timeline:
    """The batches of an operator; the sides of a join share the rows."""
    return Timeline(**{**size, "rows": size["rows"] // operator.sides}, seconds=operator.seconds)


def run(size: dict[str, int], chosen: list[str], stores: list[str], rounds: int, memory: str) -> dict[str, Any]:
    """Run all rounds of the operators, and of the stateless queries that read the same rows."""
    variants.prepare(stores)
    benchmark_jar("operators")
    # an operator that does not run on this Spark, or on none of the stores, is left out
    queries = {
        name: operator
        for name, operator in OPERATORS.items()
        if name in chosen and set(operator.stores) & set(stores) and spark_minor() in (operator.sparks or SPARKS)
    }
    if not queries:
        raise SystemExit(f"none of {', '.join(chosen)} runs on Spark {spark_minor()} with {', '.join(stores)}")
    stateless = {str(sides): STATELESS[sides] for sides in sorted({operator.sides for operator in queries.values()})}
    plan = [
        (name, operator, [store for store in operator.stores if name in stateless or store in stores])
        for name, operator in {**stateless, **queries}.items()
    ]
    total, done, began = rounds * sum(len(present) for _, _, present in plan), 0, time.monotonic()
    found: dict[str, dict[str, Any]] = {}
    for name, operator, present in plan:
        runs: dict[str, list[dict[str, Any]]] = {store: [] for store in present}
        batches = asdict(timeline(size, operator))
        for number, store in turns(present, rounds):
            request = {"operator": name, "variant": store, "timeline": batches, "driver_memory": memory}
            with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as checkpoint:
                answer = run_child(CHILD, {**request, "checkpoint": checkpoint})
            runs[store].append(answer)
            done += 1
            minutes = (time.monotonic() - began) / 60
            told = f"{done}/{total}, {minutes:.1f} of about {minutes * total / done:.0f} minutes: {operator.title}"
            told += f", {'' if name in stateless else store} round {number + 1}: addBatch"
            progress(f"{told} {statistics.median(answer['add_batch_ms']):.0f} ms, load {answer['load']}")
        found[name] = {"title": operator.title, "sides": operator.sides, "note": operator.note, "runs": runs}
        found[name] |= batch_summary(runs) | ({} if name in stateless else state_summary(runs))
    return {
        "benchmark": "operators",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "durability": {store: durability(store) for store in stores},
        "rows": size["rows"],
        "rounds": rounds,
        "stateless": {name: found[name] for name in stateless},
        "operators": {name: found[name] for name in queries},
    }


def batch_summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What every query has."""
    times = {store: [statistics.median(answer["add_batch_ms"]) for answer in runs[store]] for store in runs}
    answers = [answer for found in runs.values() for answer in found]
    return {
        "add_batch_ms": {store: spread(values) for store, values in times.items()},
        "batch_speed_up": speed_up(times),
        "gc_ms_a_batch": {
            store: statistics.median(answer["gc_ms_a_batch"] for answer in found) for store, found in runs.items()
        },
        "load": spread([answer["load"] for answer in answers]),
        "same_digest": len({answer["digest"] for answer in answers}) == 1,
        "digest": answers[0]["digest"],
    }


def state_summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What a stateful query has besides."""
    times = {
        store: [statistics.median(sum(batch.values()) for batch in answer["state_ms"]) for answer in found]
        for store, found in runs.items()
    }
    found: dict[str, Any] = {
        "state_ms": {store: spread(values) for store, values in times.items()},
        "state_speed_up": speed_up(times),
        "parts_ms": {
            store: {
                part: statistics.median(batch[part] for answer in found for batch in answer["state_ms"])
                for part in PARTS
                if part in found[0]["state_ms"][0]
            }
            for store, found in runs.items()
        },
        "idle_removal_ms": {
            store: spread([statistics.median(answer["idle_removal_ms"]) for answer in found])
            for store, found in runs.items()
            if all(answer["idle_removal_ms"] for answer in found)
        },
    }
    for key in ("stores", "state_rows", "updated_rows", "removed_rows"):
        found[key] = {store: statistics.median(answer[key] for answer in answers) for store, answers in runs.items()}
    return found


def speed_up(times: dict[str, list[float]]) -> dict[str, Any]:
    """How many times faster lamina is than each other store, and the name of the better one of them."""
    others = {store: values for store, values in times.items() if store != LAMINA}
    if LAMINA not in times or not others:
        return {}
    return {
        "better": min(others, key=lambda store: statistics.median(others[store])),
        **{store: ratios(values, times[LAMINA]) for store, values in others.items()},
    }


def present(result: dict[str, Any]) -> dict[str, Any]:
    """The operators of a result in the order of the list, which its JSON does not keep."""
    return {name: result["operators"][name] for name in OPERATORS if name in result["operators"]}


def bars(result: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """(target, bar, measured, met) of each."""
    found = []
    for operator in present(result).values():
        for what, key, bar in (("state time", "state_speed_up", STATE_BAR), ("addBatch", "batch_speed_up", BATCH_BAR)):
            speed = operator[key]
            if speed:
                ratio = speed[speed["better"]]
                name = f"{operator['title']}: {what}, shorter than with {TITLES[speed['better']]}"
                found.append((name, f"≥ {bar:g} times", around(ratio), ratio["median"] >= bar))
    for join in (operator for name, operator in present(result).items() if name in EVICTION_OF):
        if LAMINA not in join["idle_removal_ms"]:
            continue
        took = join["idle_removal_ms"][LAMINA]["median"]
        name = f"{join['title']}: eviction of nothing, a store"
        found.append((name, f"≤ {EVICTION_BAR_MS:g} ms", f"{took:.1f} ms", took <= EVICTION_BAR_MS))
    return found


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    for name, operator in present(result).items():
        rows = statistics.median(operator["state_rows"].values())
        table = Table(
            title=f"{operator['title']}: {rows:,.0f} rows of state, {result['rows']:,} a batch; {result['rounds']} "
            f"rounds, load {operator['load']['low']}-{operator['load']['high']}"
        )
        heads = ("store", "state ms", "rounds", *PARTS, "lamina's", "95 %", "addBatch", "rounds", "lamina's", "nothing")
        for head in heads:
            table.add_column(head, justify="left" if head == "store" else "right")
        for store in operator["state_ms"]:
            table.add_row(*cells(operator, store))
        console.print(table)
        without = result["stateless"][str(operator["sides"])]["add_batch_ms"][HDFS]["median"]
        same = "yes" if operator["same_digest"] else "NO"
        console.print(f"  same results: {same}; addBatch without any state: {without:.0f} ms. {operator['note']}")
        if name in EVICTION_OF:
            console.print("  nothing: removals of a batch that evicts nothing, ms a store")
    for target, bar, measured, met in bars(result):
        console.print(f"{'met    ' if met else 'NOT MET'} {target}: {measured}, bar {bar}")


def cells(operator: dict[str, Any], store: str) -> list[str]:
    """One store's row of an operator's table."""
    state, batch = operator["state_ms"][store], operator["add_batch_ms"][store]
    faster, batch_faster = operator["state_speed_up"].get(store), operator["batch_speed_up"].get(store)
    parts, idle = operator["parts_ms"][store], operator["idle_removal_ms"].get(store)
    return [
        TITLES[store],
        f"{state['median']:.0f}",
        f"{state['low']:.0f}-{state['high']:.0f}",
        *(f"{parts[part]:.0f}" if part in parts else "" for part in PARTS),
        f"{faster['median']:.2f} x" if faster else "",
        f"{faster['low']:.2f}-{faster['high']:.2f}" if faster else "",
        f"{batch['median']:.0f}",
        f"{batch['low']:.0f}-{batch['high']:.0f}",
        f"{batch_faster['median']:.2f} x" if batch_faster else "",
        f"{idle['median']:.1f}" if idle else "",
    ]


def result_name(minor: str) -> str:
    """Name of the result files of a Spark."""
    return "operators" if minor == SPARKS[0] else f"operators-{minor}"


def draw(result: dict[str, Any], name: str) -> None:
    """Write the figure."""
    groups = {key: operator["state_ms"] for key, operator in present(result).items()}
    title = "State time of a batch (median of the rounds; whiskers: all rounds)"
    figure.grouped_bars(RESULTS / f"{name}.png", groups, title=title, unit="ms, summed over tasks", logarithmic=True)


def failed(result: dict[str, Any]) -> list[str]:
    """Operators whose results differ from store to store, or from round to round."""
    found = [*result["operators"].values(), *result["stateless"].values()]
    return [f"{one['title']}: the runs gave different results" for one in found if not one["same_digest"]]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds at a tenth of the rows, about ten minutes")
    parser.add_argument("--rounds", type=int, help="rounds of each operator (3, or 2 with --quick)")
    parser.add_argument("--operators", nargs="+", choices=list(OPERATORS), default=list(OPERATORS))
    parser.add_argument("--variants", nargs="+", choices=(HDFS, ROCKSDB, LAMINA), default=[HDFS, ROCKSDB, LAMINA])
    parser.add_argument("--keep", action="store_true", help="keep the last run's other operators in the result")
    parser.add_argument("--results", help="name of the result files (by default that of the Spark, or operators-quick)")
    given = parser.parse_args()
    rounds = given.rounds or (2 if given.quick else 3)
    size, memory = (QUICK, "2g") if given.quick else (FULL, "6g")
    result = run(size, given.operators, given.variants, rounds, memory)
    file = given.results or ("operators-quick" if given.quick else result_name(spark_minor()))
    if given.keep:
        last = read_result(file)
        for part in ("durability", "stateless", "operators"):
            result[part] = {**last[part], **result[part]}
    write_result(file, result)
    draw(result, file)
    show(result, Console(width=170))
    if wrong := failed(result):
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
