"""The stores that the benchmark of the changelog compares: lamina in each of its modes, and Spark's RocksDB."""

from __future__ import annotations

from benchmarks import variants
from benchmarks.variants import FLOOR, LAMINA, SNAPSHOTS, TUNED
from lamina.settings import PREFIX
from lamina.spark.configure import FILE_MANAGER, FILE_MANAGER_KEY

OFF, TASK, EXECUTOR, UNHEDGED, PATIENT = "off", "task", "executor", "executor-unhedged", "patient"
_ON = {PREFIX + "changelog.enabled": "true"}
_BARRIER = {
    **_ON,
    PREFIX + "durability.level": "executor",
    FILE_MANAGER_KEY: FILE_MANAGER,
}
MODES: dict[str, tuple[str, dict[str, str]]] = {
    FLOOR: (FLOOR, {}),
    SNAPSHOTS: (SNAPSHOTS, {}),
    TUNED: (TUNED, {}),
    OFF: (LAMINA, {}),
    TASK: (LAMINA, _ON),
    EXECUTOR: (LAMINA, _BARRIER),
    PATIENT: (LAMINA, {**_BARRIER, PREFIX + "changelog.batchDelayMs": "4000"}),
    UNHEDGED: (LAMINA, {**_BARRIER, PREFIX + "changelog.hedging.enabled": "false"}),
}
"""The variant of each, and what is set beside it."""

TITLES = {
    FLOOR: variants.TITLES[FLOOR],
    SNAPSHOTS: variants.TITLES[SNAPSHOTS],
    TUNED: variants.TITLES[TUNED],
    OFF: "lamina, changelog off",
    TASK: "lamina, changelog, durability task",
    EXECUTOR: "lamina, changelog, durability executor",
    PATIENT: "the same, batchDelayMs 4,000",
    UNHEDGED: "the same, without hedging",
}


def prepare(modes: list[str]) -> None:
    """Compiles what they need, before anything is timed."""
    variants.prepare(sorted({MODES[mode][0] for mode in modes}))
