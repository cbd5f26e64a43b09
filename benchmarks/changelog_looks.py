"""How long stores wait to hear whether the log object is there that they stand on, with another look beside a slow one.

Each process looks for one object after the other, as an executor does batch by batch; all stores of it wait for the
same look. Requests sleep, so many processes are played at once.
"""

from __future__ import annotations

import math
import random
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bars import Bar, Figures, between, least, percentile
from benchmarks.changelog_waits import PERCENTS
from benchmarks.questions import Parameters
from benchmarks.rounds import progress
from benchmarks.slow_storage import PUBLISHED, latency
from benchmarks.statistics import spread
from lamina.components import SystemClock
from lamina.store.files.latencies import Latencies
from lamina.store.files.shared_looks import SharedLooks

HEDGED, PLAIN = "hedged", "plain"
TITLES = {HEDGED: "a slow look has another one beside it", PLAIN: "one look"}
HALVED = 2.0


class _Never(Latencies):
    """No look counts as slow."""

    def slow_s(self, percent: float) -> float:
        return math.inf


def _looked(variant: str, parameters: Parameters, seed: int) -> tuple[list[float], int]:
    """Milliseconds of each look of one process, and how many requests they were."""
    drawn, requests = random.Random(seed), []

    def request(name: str) -> bool:
        requests.append(name)
        time.sleep(parameters["scale"] * latency(drawn.random()))
        return True

    looks = SharedLooks(request, SystemClock(), lambda _: True, Latencies() if variant == HEDGED else _Never())
    took = []
    for number in range(parameters["warmup"] + parameters["looks"]):
        if number == parameters["warmup"]:
            requests.clear()
        started = time.monotonic()
        looks.is_there(str(number))
        took.append(1000 * (time.monotonic() - started))
    return took[parameters["warmup"] :], len(requests)


def measure(parameters: Parameters, rounds: int) -> Figures:
    """Both variants at once in each round, as their requests only sleep."""
    found: dict[str, dict[str, list[float]]] = {variant: {} for variant in TITLES}
    processes: int = parameters["processes"]
    for number in range(rounds):
        seeds = range(number * processes, (number + 1) * processes)
        with ThreadPoolExecutor(len(TITLES) * processes) as threads:
            runs = {
                variant: [threads.submit(_looked, variant, parameters, seed) for seed in seeds] for variant in TITLES
            }
        for variant, answers in runs.items():
            took = [one for answer in answers for one in answer.result()[0]]
            figures = {f"p{percent:g}": percentile(took, percent) for percent in PERCENTS}
            figures["requests"] = sum(answer.result()[1] for answer in answers) / len(took)
            for name, value in figures.items():
                found[variant].setdefault(name, []).append(value)
            progress(f"round {number + 1}/{rounds} {variant}: {figures}")
    pairs = zip(found[PLAIN]["p99.9"], found[HEDGED]["p99.9"], strict=True)
    return {
        variant: {name: spread(values) for name, values in figures.items()} for variant, figures in found.items()
    } | {"shorter": spread([plain / hedged for plain, hedged in pairs])}


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """The tail."""
    return [least("p99.9 of one look for a log object, to that with another one", HALVED, figures["shorter"], " times")]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each variant."""
    names = [f"p{percent:g}" for percent in PERCENTS]
    return ["", *(f"{name} ms" for name in names), "requests a look"], [
        [title, *(between(figures[variant][name], 0) for name in names), between(figures[variant]["requests"], 3)]
        for variant, title in TITLES.items()
    ]


def setup(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    return (
        f"{parameters['processes']} processes, played by threads, that look {parameters['looks']:,} times each after "
        f"{parameters['warmup']:,}. A request takes a time drawn from {PUBLISHED}, times {parameters['scale']:g}, as "
        "nothing of the kind is published for HEAD."
    )
