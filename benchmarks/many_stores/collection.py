"""Collections of 1,000 stores on a storage that is 50 ms away, by the maintenance process of an executor.

Real commits write the versions, to local files. Then a maintenance process that has seen none of them is asked for each
store, as by an executor that takes over all of them: *cold*. *Warm* are the same questions after some more versions of
each store, as they come in an interval of maintenance, and *unchanged* those after none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.bars import Bar, Figures, between, most
from benchmarks.many_stores.latency import LATENCY_S, MAINTENANCE, Distance
from benchmarks.many_stores.stores import Stores
from benchmarks.processes import taken_s
from benchmarks.questions import Parameters, Question
from benchmarks.rounds import print_result, progress, run_child
from benchmarks.scala import ROOT
from benchmarks.statistics import spread
from lamina.engine.store_opener import OpenArgument
from lamina.settings import PREFIX, Settings
from lamina.storage import Storage
from lamina.store import StoreId

COLD, WARM, UNCHANGED = "cold", "warm", "unchanged"
COLD_S, REQUESTS = 300.0, 1.1
SHORT_CHAINS = {PREFIX + "compaction.mode": "full", PREFIX + "compaction.fullInterval": "10"}
"""As after compaction in the background, and without its jobs: what is measured is collection."""


class Maintenance:
    """The maintenance process of an engine; a context manager."""

    def __init__(self, directory: Path, distance: Distance) -> None:
        directory.mkdir()
        variables = distance.variables
        path = os.pathsep.join([variables["PYTHONPATH"], str(ROOT), str(ROOT / "python")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lamina.engine.maintenance"],
            cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **variables, "PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )  # fmt: skip
        self._workers = Settings.parse({}).engine_maintenance_workers
        self._send({"workers": self._workers, "jvm": None})

    def work(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Does all jobs, as many at once as there are workers; their reports."""
        waiting = iter(enumerate(jobs))
        reports: dict[int, dict[str, Any]] = {}

        def send(count: int) -> None:
            for number, job in _next(waiting, count):
                self._send({**job, "number": number})

        send(self._workers)
        assert self._process.stdout is not None
        while len(reports) < len(jobs):
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit("the maintenance process ended")
            told = json.loads(line)
            if "report" in told:
                reports[told["number"]] = told["report"]
            # one that waits there for others has no worker
            if "report" in told or told.get("waits"):
                send(1)
        return [reports[number] for number in range(len(jobs))]

    @property
    def processor_s(self) -> float:
        """Processor time so far."""
        return taken_s(self._process.pid)

    def _send(self, told: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        self._process.stdin.flush()

    def __enter__(self) -> Maintenance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def _next(jobs: Iterator[tuple[int, dict[str, Any]]], count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for _ in range(count):
        job = next(jobs, None)
        if job is not None:
            yield job


def jobs_of(stores: Stores, url: str) -> list[dict[str, Any]]:
    """What Spark's maintenance asks of an engine for each store."""
    claimed = (str(stores.checkpoint.uuid), int(stores.checkpoint.epoch or 0))
    jobs = []
    for number, version in enumerate(stores.versions):
        store = StoreId(url, 0, number, "default")
        argument = OpenArgument(store, SHORT_CHAINS, {}, stores.run, False, 2, "4.3.0", 100, claimed)
        confirmed = {"version": version.version, "attempt": version.attempt}
        # the engine knows of each store that a merge is not worth it, and what it has written itself
        told = {"confirmed": confirmed, "collect": True}
        told |= dict.fromkeys(("compact", "at_once", "awaited", "closed"), False)
        jobs.append({"open": argument.to_json(), **told, **stores.known(number)})
    return jobs


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Makes the stores, and has them collected."""
    distance = Distance(request["distance"])
    url = request["checkpoint"]
    stores = Stores(Storage(url), request["stores"], request["rows"], SHORT_CHAINS)
    for number in range(request["stores"]):
        for _ in range(request["versions"]):
            stores.commit(number)
        stores.forget(number)
    found: dict[str, Any] = {}
    distance.set(MAINTENANCE, request["latency_s"])
    with Maintenance(Path(request["folder"]) / "maintenance", distance) as maintenance:
        for state in (COLD, WARM, UNCHANGED):
            if state == WARM:
                for number in range(request["stores"]):
                    for _ in range(request["changes"]):
                        stores.commit(number)
            jobs = jobs_of(stores, url)
            distance.requests()
            wall, processor = time.perf_counter(), maintenance.processor_s
            reports = maintenance.work(jobs)
            failed = [report.get("error") or report.get("stopped") for report in reports]
            if any(failed):
                raise SystemExit(f"a collection failed: {next(filter(None, failed))}")
            found[state] = {
                "wall_s": time.perf_counter() - wall,
                "processor_s": maintenance.processor_s - processor,
                "requests": distance.requests(),
            }
    return found


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds, each with stores of its own."""
    answers = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
            request = {**parameters, "folder": folder, "distance": f"{folder}/distance"}
            request["checkpoint"] = f"{folder}/state"
            answers.append(run_child("benchmarks.many_stores.collection", request, timeout=3600))
        progress(f"round {number + 1}/{rounds}: cold {answers[-1][COLD]['wall_s']:.1f} s, load {answers[-1]['load']}")
    return summary(answers, parameters["stores"])


def summary(answers: list[dict[str, Any]], stores: int) -> Figures:
    """The figures of all rounds; requests are those of a store."""
    found: Figures = {"load": spread([answer["load"] for answer in answers])}
    for state in (COLD, WARM, UNCHANGED):
        ran = [answer[state] for answer in answers]
        kinds: Counter[str] = sum((Counter(one["requests"]) for one in ran), Counter())
        found[state] = {
            "wall_s": spread([one["wall_s"] for one in ran]),
            "processor_s": spread([one["processor_s"] for one in ran]),
            "requests": spread([sum(one["requests"].values()) / stores for one in ran]),
            "kinds": {kind: round(count / stores / len(ran), 3) for kind, count in sorted(kinds.items())},
        }
    return found


def bars(parameters: Parameters, figures: Figures) -> list[Bar]:
    what = f"{parameters['stores']:,} stores x {parameters['versions']} versions"
    return [
        most(f"cold collection of {what}", COLD_S, figures[COLD]["wall_s"], " s", 1),
        most(
            f"collection after {parameters['changes']} more versions: requests of a store",
            REQUESTS,
            figures[WARM]["requests"],
        ),
        most("collection after none: requests of a store", 0, figures[UNCHANGED]["requests"]),
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each state."""
    heads = ["collection of all", "s", "CPU s", "requests a store", "of them"]
    rows = []
    for state in (COLD, WARM, UNCHANGED):
        found = figures[state]
        kinds = ", ".join(f"{kind} {count:g}" for kind, count in found["kinds"].items() if count >= 0.01)
        rows.append(
            [state, between(found["wall_s"], 1), between(found["processor_s"], 1), between(found["requests"]), kinds]
        )
    return heads, rows


def setup(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    return (
        f"{parameters['stores']:,} stores with {parameters['versions']} versions of {parameters['rows']} rows, "
        f"{parameters['latency_s'] * 1000:.0f} ms before each request, {Settings.parse({}).engine_maintenance_workers} "
        "workers in a maintenance process of its own, at its low priority; 100 versions are retained, and nothing is "
        f"deleted. Warm: after {parameters['changes']} more versions of each store."
    )


QUESTION = Question(
    name="collection",
    asks="collections of 1,000 stores x 100 versions, 50 ms away, by a process that has seen none of them",
    goal="5 minutes; then 1.1 requests a store that changed",
    full={"stores": 1_000, "versions": 100, "changes": 10, "rows": 20, "latency_s": LATENCY_S},
    quick={"stores": 50, "versions": 20},
    rounds=2, measure=measure, bars=bars, table=table, setup=setup,
)  # fmt: skip


if __name__ == "__main__":
    print_result(run(json.loads(sys.argv[1])))
