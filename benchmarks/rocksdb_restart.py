"""Restarts of a query with a large state on tables of RocksDB, from S3 and where it was, beside the built-in store and
a query without a state."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import session, variants
from benchmarks.bars import Bar, Figures, between, least, most
from benchmarks.hadoop_jars import hadoop_aws_jars
from benchmarks.questions import Parameters
from benchmarks.restore import evict
from benchmarks.rounds import progress, run_child
from benchmarks.statistics import Spread, ratios, spread
from benchmarks.variants import ON_TABLES, STATELESS, TITLES, TUNED
from lamina.settings import PREFIX

if TYPE_CHECKING:
    from benchmarks.slow_s3 import SlowS3

CHILD = "benchmarks.aggregation_child"
COLD, COPIES = "S3 alone", "S3, with local copies"
CELLS = {f"{TITLES[ON_TABLES]}, {COLD}": (ON_TABLES, COLD), f"{TITLES[ON_TABLES]}, {COPIES}": (ON_TABLES, COPIES),
         f"{TITLES[TUNED]}, {COLD}": (TUNED, COLD), f"{TITLES[STATELESS]}, {COLD}": (STATELESS, COLD)}  # fmt: skip
FASTER, COPIES_S = 2.0, 2.0


def measure(parameters: Parameters, rounds: int) -> Figures:
    """Builds the state of each store once, on local files, and restarts it from a copy on S3, each in a fresh JVM."""
    # what only reads results does without moto
    from benchmarks.slow_s3 import SlowS3

    stores = [ON_TABLES, TUNED, STATELESS]
    variants.prepare(stores)
    found: dict[str, list[dict[str, Any]]] = {cell: [] for cell in CELLS}
    sizes: dict[str, int] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as name,
        SlowS3(parameters["latency_s"], parameters["bytes_per_s"]) as server,
    ):
        for store in stores:
            folder = Path(name) / store
            request = {**parameters, "variant": store, "action": "build", "checkpoint": str(folder)}
            if store == STATELESS:
                request["rest_s"] = 0
            run_child(CHILD, request, 3600)
            sizes[store] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            progress(f"{store}: {sizes[store] / 1e6:,.0f} MB")
        for number in range(rounds):
            for cell, (store, place) in CELLS.items():
                answer = _restarted(parameters, Path(name), store, place, server)
                found[cell].append(answer)
                progress(f"round {number + 1}/{rounds} {cell}: {answer['restart_s']:.1f} s, {answer['metrics']}")
    restarts = {cell: [one["restart_s"] for one in answers] for cell, answers in found.items()}
    ours, copies, theirs, _ = restarts.values()
    return {
        "restart_s": {cell: spread(times) for cell, times in restarts.items()},
        "batch_ms": {cell: spread([one["batch_s"] * 1000 for one in answers]) for cell, answers in found.items()},
        "carried": {cell: spread([one["carried"] for one in answers]) for cell, answers in found.items()},
        "faster": {COLD: ratios(theirs, ours), COPIES: ratios(theirs, copies)},
        "beyond_s": beyond(restarts),
        "load_s": {
            cell: spread([one["metrics"]["laminaLoadMs"] / 1000 / session.PARTITIONS for one in answers])
            for cell, answers in found.items()
            if CELLS[cell][0] == ON_TABLES
        },
        "bytes": sizes,
        "state_rows": statistics.median(one["state_rows"] for one in found[next(iter(CELLS))]),
    }


def beyond(restarts: dict[str, list[float]]) -> dict[str, Spread]:
    """How many seconds longer the restarts of each cell take than those of a query without a state."""
    without = restarts[list(CELLS)[-1]]
    return {cell: spread([a - b for a, b in zip(times, without, strict=True)]) for cell, times in restarts.items()}


def _restarted(parameters: Parameters, folder: Path, store: str, place: str, server: SlowS3) -> dict[str, Any]:
    url = server.put(folder / store, store)
    request = {**parameters, "variant": store, "action": "restart", "checkpoint": url}
    request["jars"] = [str(jar) for jar in hadoop_aws_jars()]
    with tempfile.TemporaryDirectory(prefix="copies-", dir=folder) as copies:
        request["conf"] = {
            **{f"spark.hadoop.{key}": value for key, value in server.settings.items()},
            PREFIX + "storage.cache.directory": copies,
            PREFIX + "storage.cache.maxBytes": "16g",
        }
        try:
            if place == COPIES:
                run_child(CHILD, request, 1800)
                # from the beginning once more: what the first one wrote is not there
                server.remove(store)
                server.put(folder / store, store)
                evict(Path(copies))
            carried = server.carried
            answer = run_child(CHILD, request, 1800)
            return {**answer, "carried": server.carried - carried}
        finally:
            server.remove(store)


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """Beside the built-in store, and where the files are on this machine."""
    copies = list(CELLS)[1]
    return [
        least(
            f"backend rocksdb, 4 GB, restart from S3: faster than {TITLES[TUNED]}",
            FASTER,
            figures["faster"][COLD],
            " times",
        ),
        *(
            most(f"backend rocksdb, 4 GB, restart with local copies of S3's files{what}", COPIES_S, found[copies], " s")
            for what, found in (
                ("", figures["restart_s"]),
                (", beyond a query without a state", figures["beyond_s"]),
                (", of it the load of a store", figures["load_s"]),
            )
        ),
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each store and place."""
    heads = ["", "restart, s", "beyond no state, s", "of it the load of a store, s", "batch after it, ms", "MB from S3"]
    return heads, [
        [
            cell,
            between(figures["restart_s"][cell], 1),
            between(figures["beyond_s"][cell], 1),
            between(figures["load_s"][cell], 1) if cell in figures["load_s"] else "",
            between(figures["batch_ms"][cell], 0),
            f"{figures['carried'][cell]['median'] / 1e6:,.0f}",
        ]
        for cell in CELLS
    ]


def setup(parameters: Parameters, figures: Figures) -> str:
    """What ran."""
    sizes = ", ".join(f"{TITLES[store]} {size / 1e6:,.0f} MB" for store, size in figures["bytes"].items())
    return (
        f"Count and greatest text of {parameters['value_bytes']:,} characters per key, {figures['state_rows']:,.0f} "
        f"keys; {parameters['preload'] + parameters['warmup']} batches, with {parameters['rest_s']} seconds for the "
        f"stores' maintenance after the preload and before the last {parameters['warmup'] // 2}. Checkpoints: {sizes}. "
        f"A restart is the time from the query's start, in a fresh JVM whose session is "
        f"there, to the end of its first batch of {parameters['rows']:,} rows, less the median of those after it; the "
        f"engine's start is in it. Local copies are kept: with S3 alone none is there before. Without a state the same "
        f"rows go to as many partitions. S3 is moto's server behind "
        f"{parameters['latency_s'] * 1000:.0f} ms and {parameters['bytes_per_s'] / 1e6:.0f} MB/s a connection."
    )
