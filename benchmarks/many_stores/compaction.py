"""Whether compaction keeps up with 1,000 stores that are all committed to once a second.

One process holds the stores' handles as an engine does, with a maintenance process beside it, and makes a batch a
second: a begin and a commit of each store. Once a minute it asks for maintenance of all, as Spark does. Chains are
counted in the manifests of the newest versions, after each batch.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Figures, between, least, most, percentile
from benchmarks.many_stores.stores import FAMILY, Rows, Stores
from benchmarks.processes import taken_s
from benchmarks.questions import Parameters, Question
from benchmarks.rounds import print_result, progress, run_child
from benchmarks.statistics import spread
from lamina.components import RandomIds, SystemClock
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.sessions import Sessions, StoreHandle
from lamina.engine.store_opener import OpenArgument
from lamina.settings import Settings
from lamina.store import StoreId, Version
from lamina.store.memory.budget import unbounded
from lamina.store.versions.chain import files

SPARK_ASKS_S = 60.0
SHARE, BEYOND = 99.0, 2


class Chains:
    """The stores, and the files of which their newest versions consist."""

    def __init__(self, folder: Path, stores: int, rows: int) -> None:
        clock, ids, settings = SystemClock(), RandomIds(), Settings.parse({})
        private = folder / "engine"
        private.mkdir()
        self.limit = settings.compaction_max_chain
        self.queue = MaintenanceQueue(
            clock, str(private), settings.engine_request_timeout_ms / 1000, settings.engine_maintenance_workers
        )
        self.queue.start()
        sessions = Sessions(settings, self.queue, clock, ids)
        url = str(folder / "state")
        opens = [
            OpenArgument(StoreId(url, 0, number, "default"), {}, {}, Stores.run, False, 2, "4.3.0", 100)
            for number in range(stores)
        ]
        self._handles = [sessions.get(sessions.open(one.to_json())["handle"]) for one in opens]
        self._rows = Rows(rows)
        self._attempts: list[str | None] = [None] * stores
        self.version = 0
        self.snapshots = 0

    def batch(self) -> list[int]:
        """The next version of each store; of how many files it consists."""
        found = []
        for number, handle in enumerate(self._handles):
            self._attempts[number] = attempt = self._commit(handle, self._attempts[number])
            manifest = handle.store.manifest(Version(self.version + 1, attempt))
            assert manifest is not None
            found.append(files(manifest.references))
        self.version += 1
        return found

    def _commit(self, handle: StoreHandle, base: str | None) -> str:
        asked = {"version": self.version, "attempt": base, "task_attempt": 1, "load_empty": False}
        begun = handle.begin({**asked, "force_snapshot": False, "have": True})
        self.snapshots += begun["snapshot"] and self.version > 0
        header = {
            "attempt": begun["attempt"],
            "version": self.version + 1,
            "base": {"version": self.version, "attempt": base},
            "counts": {str(family): count.to_json() for family, count in self._rows.counts.items()},
            "column_families": [FAMILY.to_json()],
            "next_column_family": 1,
            "task_attempt": 1,
        }
        sections = self._rows.sections(self.version + 1, begun["snapshot"])
        accepted = handle.accept(header, sections, unbounded(), most_held=0)
        handle.durable(accepted)
        return accepted.attempt

    def maintain(self) -> None:
        """What Spark's maintenance asks."""
        for handle in self._handles:
            handle.maintain({})


def run(request: dict[str, Any]) -> dict[str, Any]:
    """All batches."""
    chains = Chains(Path(request["folder"]), request["stores"], request["rows"])
    began = asked = time.monotonic()
    processor = time.process_time()
    batch_s, within, longest, median = [], [], [], []
    for number in range(request["batches"]):
        # a batch that is late puts off those after it: Spark begins none before the last one has ended
        due = began + number * request["interval_s"]
        late = time.monotonic() - due
        began += max(0.0, late)
        time.sleep(max(0.0, -late))
        start = time.monotonic()
        found = chains.batch()
        batch_s.append(time.monotonic() - start)
        most_files = BEYOND + math.log2(chains.version)
        within.append(100 * sum(one <= most_files for one in found) / len(found))
        longest.append(max(found))
        median.append(statistics.median(found))
        if time.monotonic() - asked >= SPARK_ASKS_S:
            asked = time.monotonic()
            chains.maintain()
    stats = chains.queue.stats()
    commits = request["batches"] * request["stores"]
    result = {
        "batch_s": statistics.median(batch_s),
        "batch_s_p95": percentile(batch_s, 95),
        "a_second": request["batches"] / (time.monotonic() - began),
        "within": statistics.mean(within),
        "last_within": within[-1],
        "least_within": min(within),
        "batches_within": 100 * sum(one >= SHARE for one in within) / len(within),
        "last_longest": longest[-1],
        "longest": max(longest),
        "last_median": median[-1],
        "at_limit": sum(one >= chains.limit for one in longest),
        "snapshots": chains.snapshots,
        "segments": stats["segments"],
        "failed": stats["failed"],
        "waiting": stats["waiting"],
        "engine_ms_a_commit": (time.process_time() - processor) * 1000 / commits,
        "maintenance_s": taken_s(int(stats["pid"])),
        "limit": chains.limit,
    }
    chains.queue.close()
    return result


def measure(parameters: Parameters, rounds: int) -> Figures:
    """All rounds, each with stores of its own."""
    answers = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
            request = {**parameters, "folder": folder}
            answers.append(run_child("benchmarks.many_stores.compaction", request, timeout=3600))
        last = answers[-1]
        progress(
            f"round {number + 1}/{rounds}: {last['batch_s']:.2f} s a batch, at the end {last['last_within']:.1f} % "
            f"within, longest {last['longest']}, load {last['load']}"
        )
    return {key: spread([float(answer[key]) for answer in answers]) for key in answers[0]}


def bars(parameters: Parameters, figures: Figures) -> list[Bar]:
    """Whether the batches came as asked stands beside them: chains of fewer batches are no answer.

    The newest versions are those of the last batch. What share of the stores was within the bound after all batches is
    in the table: the first versions are merged most often, since their bound is lowest.
    """
    what = f"{parameters['stores']:,} stores, {1 / parameters['interval_s']:g} batch a second"
    return [
        least(
            f"{what}: stores of at most {BEYOND} + log2(versions) files, at the end",
            SHARE,
            figures["last_within"],
            " %",
        ),
        most(f"{what}: stores at the limit of {figures['limit']['median']:.0f} files", 0, figures["at_limit"], "", 0),
        most(f"{what}: seconds that a batch took", parameters["interval_s"], figures["batch_s"], " s"),
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each figure."""
    titles = {
        "batch_s": "a batch, s",
        "batch_s_p95": "p95",
        "a_second": "batches a second",
        "within": "stores within 2 + log2(versions), all batches, %",
        "last_within": "the last batch, %",
        "least_within": "least of all batches, %",
        "batches_within": "batches with 99 % of the stores within, %",
        "last_median": "files of the middle store, last batch",
        "last_longest": "files of the longest chain, last batch",
        "longest": "of all batches",
        "snapshots": "whole states that commits wrote",
        "segments": "merges",
        "failed": "failed jobs",
        "waiting": "jobs that wait at the end",
        "engine_ms_a_commit": "CPU of a commit, ms",
        "maintenance_s": "CPU of the maintenance process, s",
    }
    return ["what", "measured"], [[title, between(figures[key])] for key, title in titles.items()]


def setup(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    return (
        f"{parameters['batches']} batches of {parameters['rows']} rows to each of {parameters['stores']:,} stores, one "
        f"every {parameters['interval_s']:g} s or as soon as the last one has ended; local files."
    )


QUESTION = Question(
    name="compaction",
    asks="whether compaction keeps up with 1,000 stores and a batch a second, on local files",
    goal="2 + log2(versions) files for 99 % of the stores, none at the limit",
    full={"stores": 1_000, "rows": 20, "batches": 180, "interval_s": 1.0},
    quick={"stores": 100, "batches": 30},
    rounds=2, measure=measure, bars=bars, table=table, setup=setup,
)  # fmt: skip


if __name__ == "__main__":
    print_result(run(json.loads(sys.argv[1])))
