"""What many stores on tables of RocksDB hold of the system: threads, descriptors, memory, local disk."""

from __future__ import annotations

import tempfile
from typing import Any

from benchmarks import variants
from benchmarks.bars import Bar, Figures, most
from benchmarks.processes import ROLES
from benchmarks.questions import Parameters
from benchmarks.rounds import progress, run_child
from benchmarks.statistics import spread
from benchmarks.variants import ON_TABLES, TITLES, TUNED
from lamina.settings import PREFIX

CHILD = "benchmarks.rocksdb_stores_child"
COUNTS = {"threads": "threads", "files": "open files", "resident": "resident MB"}
LATER = 1.25
"""Threads and open files in the last quarter of the rounds, to those in the quarter before: by the middle all stores
stand on tables."""

EVERY = 4


def measure(parameters: Parameters, _: int) -> Figures:
    """Each store once, in a session of its own."""
    variants.prepare([ON_TABLES, TUNED])
    found: Figures = {"stores": 0, "state_rows": 0, "held": {}, "disk_mb": {}}
    for variant in (ON_TABLES, TUNED):
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
            conf = variants.memory(variant, parameters["memory_mb"])
            if variant == ON_TABLES:
                # so that all stores stand on tables soon
                conf[PREFIX + "rocksdb.materializeEvery"] = str(EVERY)
            rounds = parameters["rounds" if variant == ON_TABLES else "peer_rounds"]
            asked = {**parameters, "rounds": rounds, "variant": variant, "folder": folder, "conf": conf}
            answer = run_child(CHILD, asked, 3600)
        if variant == ON_TABLES:
            found["stores"], found["state_rows"] = answer["stores"], answer["state_rows"]
            found["later"] = _later(_totals(answer["samples"]))
        found["held"][variant] = {count: max(series) for count, series in _totals(answer["samples"]).items()}
        found["disk_mb"][variant] = max(answer["disk"]) / 1e6
        progress(f"{variant}: {found['held'][variant]}")
    return found


def _totals(samples: list[dict[str, Any]]) -> dict[str, list[float]]:
    """What all processes hold together after each round."""
    return {count: [sum(one[role][count] for role in ROLES) for one in samples] for count in COUNTS}


def _later(totals: dict[str, list[float]]) -> dict[str, float]:
    """The most of the last quarter of the rounds, to that of the quarter before."""
    rounds = len(totals["threads"])
    return {
        count: max(series[3 * rounds // 4 :]) / max(series[rounds // 2 : 3 * rounds // 4])
        for count, series in totals.items()
    }


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """That nothing goes on growing."""
    later = figures["later"]
    return [
        most(
            f"{COUNTS[count]} with {figures['stores']} stores, last quarter of the rounds to the one before", LATER, one
        )
        for count in ("threads", "files")
        for one in [spread([later[count]])]
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each store."""
    rows = []
    for variant, most_held in figures["held"].items():
        rows.append(
            [
                TITLES[variant],
                f"{most_held['threads']:,}",
                f"{most_held['files']:,}",
                f"{most_held['resident'] / 1e6:,.0f}",
                f"{figures['disk_mb'][variant]:,.0f}",
            ]
        )
    return ["at most, all processes", *COUNTS.values(), "local disk MB"], rows


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran."""
    return (
        f"{parameters['queries']} joins of {parameters['partitions']} partitions with four stores each in one local[2] "
        f"session, {figures['stores']} stores with {figures['state_rows']:,.0f} rows; {parameters['rounds']} rounds of "
        f"one batch of each; {parameters['memory_mb']} MB for RocksDB and all that is in memory for it, heap "
        f"{parameters['driver_memory']}; tables are made every {EVERY} batches. The built-in store, whose rounds take "
        f"longer, has {parameters['peer_rounds']} of them, which is in its favour."
    )
