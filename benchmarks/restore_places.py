"""Restores of many sizes from many places: `python -m benchmarks.restore_places`.

Chains as in `benchmarks.restore`: a snapshot of all keys, and then changes of a quarter of them in 1, 20 or 200
increments. Each is restored in a JVM that has restored another, small one before: from local files that are not in the
page cache (`disk`), from an S3 server behind 50 ms of latency and 50 MB/s a connection (`s3`), and from local copies
of its objects (`copies`). Beside them the two built-in stores, from local files and with 20 increments; the heap store
has no lists, so that its chain has puts instead, and no room for the largest state.

The yardstick is the larger of two times: what the bytes take one reader, on the disk or with the bandwidth of one
connection, and 100 ns for each row that is read. Several connections may beat it; round trips come on top.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine, variants
from benchmarks.restore import CHILD, evict, seconds
from benchmarks.rounds import progress, run_child, write_result
from benchmarks.statistics import ratios, spread
from benchmarks.variants import HDFS, LAMINA, ROCKSDB, TITLES
from lamina.settings import PREFIX

if TYPE_CHECKING:
    from benchmarks.slow_s3 import SlowS3

DISK, S3, COPIES = "disk", "s3", "copies"
PLACES = (DISK, S3, COPIES)
LATENCY_S, BYTES_PER_S = 0.05, 50e6
ROW_S = 100e-9
BAR, BAR_RATIO = 1.5, 0.3
CHANGED = 4
"""The increments of a chain change one key in so many, together."""

ROOM, WARM_BYTES = 4, 32 << 20
"""Local copies have room for so many times a chain's bytes, since what the batches after both restores write is there
too, and for the small chains before them."""

CHAINS = [1, 20, 200]
WITH_BUILT_IN = 20
HDFS_KEYS = 4_000_000
"""The built-in heap store keeps more keys than these in no 8 GiB."""


def run(sizes: Sequence[int], chains: Sequence[int], places: Sequence[str], rounds: int, name: str) -> dict[str, Any]:
    """Every cell, chain by chain; what there is of it is written beside `name` after each."""
    # what only reads results does without moto
    from benchmarks.slow_s3 import SlowS3

    variants.prepare([LAMINA, HDFS, ROCKSDB])
    cells: list[dict[str, Any]] = []
    result = {
        "benchmark": "restore_places",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "rounds": rounds,
        "cells": cells,
    }
    with SlowS3(LATENCY_S, BYTES_PER_S) as s3:
        for keys in sizes:
            for increments in chains:
                with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
                    chain = Chain(Path(folder), keys, increments, s3)
                    cells += chain.measure(places, rounds)
                # chain by chain: the largest ones take long
                write_result(f"{name}-partial", result)
    return result


class Chain:
    """One chain, built on local files, and its restores."""

    def __init__(self, folder: Path, keys: int, increments: int, s3: SlowS3) -> None:
        self._folder = folder
        self._keys = keys
        self._increments = increments
        self._s3 = s3
        built_in = [ROCKSDB, *([HDFS] if keys <= HDFS_KEYS else [])] if increments == WITH_BUILT_IN else []
        self._requests = {store: self._build(store) for store in (LAMINA, *built_in)}

    def _build(self, store: str) -> dict[str, Any]:
        request = {
            "variant": store,
            "keys": self._keys,
            "rows": self._keys // CHANGED // self._increments,
            "increments": self._increments,
            "batches": 8,
            "driver_memory": "8g" if store == HDFS and self._keys >= 2_000_000 else "3g",
            "checkpoint": str(self._folder / store),
            "folder": str(self._folder),
        }
        built = run_child(CHILD, {**request, "action": "build"}, timeout=1800)
        progress(f"{self._keys:,} keys, {self._increments} increments, {store}: {built['bytes'] / 1e6:.0f} MB")
        return {**request, "action": "restore", "warm": True, "ids": built["ids"], "bytes": built["bytes"]}

    def measure(self, places: Sequence[str], rounds: int) -> list[dict[str, Any]]:
        """A cell for each place."""
        found: dict[str, list[dict[str, Any]]] = {place: [] for place in places}
        built_in: dict[str, list[dict[str, Any]]] = {store: [] for store in self._requests if store != LAMINA}
        disk = []
        for number in range(rounds):
            for place, answers in found.items():
                answers.append(self._restore(LAMINA, place))
                progress(f"  round {number + 1}/{rounds} {place}: {seconds(answers[-1]):.2f} s")
            disk.append(self._read_s())
            for store, answers in built_in.items():
                answers.append(self._restore(store, DISK))
                progress(f"  round {number + 1}/{rounds} {store}: {seconds(answers[-1]):.2f} s")
        _check_digests(found, built_in)
        beside = {store: [seconds(one) for one in answers] for store, answers in built_in.items()}
        best = min(beside, key=lambda store: statistics.median(beside[store]), default=None)
        cells = []
        for place, answers in found.items():
            times = [seconds(answer) for answer in answers]
            yardstick = self.yardstick_s(self._bytes / BYTES_PER_S if place == S3 else min(disk))
            cell = {
                "keys": self._keys,
                "increments": self._increments,
                "place": place,
                "bytes": self._bytes,
                "restore_s": spread(times),
                "yardstick_s": yardstick,
                "to_yardstick": spread([one / yardstick for one in times]),
                "engine_bytes": max(answer["resident_bytes"]["engine"] for answer in answers),
            }
            if best is not None and place == DISK:
                cell["built_in_s"] = {store: spread(taken) for store, taken in beside.items()}
                cell |= {"built_in": best, "to_built_in": ratios(times, beside[best])}
            cells.append(cell)
        return cells

    @property
    def _bytes(self) -> int:
        return int(self._requests[LAMINA]["bytes"])

    def yardstick_s(self, bytes_s: float) -> float:
        """What a restore is measured by, where one reader takes so long for its bytes."""
        return max(bytes_s, (self._keys + self._keys // CHANGED) * ROW_S)

    def _restore(self, store: str, place: str) -> dict[str, Any]:
        request = self._requests[store]
        if place == DISK:
            # of a restore's own batches nothing may be left for the next one
            copy = self._folder / "copy"
            shutil.copytree(request["checkpoint"], copy)
            try:
                evict(copy)
                return run_child(CHILD, {**request, "checkpoint": str(copy)})
            finally:
                shutil.rmtree(copy)
        name = f"{self._keys}-{self._increments}"
        url = self._s3.put(Path(request["checkpoint"]), name)
        cache = self._folder / "cache"
        settings = {**self._s3.settings, PREFIX + "storage.cache.directory": str(cache)}
        settings[PREFIX + "storage.cache.maxBytes"] = str(ROOM * self._bytes + WARM_BYTES if place == COPIES else 0)
        try:
            for _ in range(2 if place == COPIES else 1):
                # the first one leaves the copies behind, which are then as cold as the files
                evict(self._folder)
                # the small chain before lies below the chain, and goes with it
                there = {"checkpoint": url, "folder": url, "settings": settings}
                carried = self._s3.carried
                answer = run_child(CHILD, {**request, **there})
            carried = self._s3.carried - carried
            if place == COPIES and carried > self._bytes / 10:
                raise SystemExit(f"{carried:,} bytes were read from S3 where local copies were to be measured")
            return answer
        finally:
            self._s3.remove(name)
            shutil.rmtree(cache, ignore_errors=True)

    def _read_s(self) -> float:
        """How long one reader takes for the chain's files, which are not in the page cache."""
        chain = Path(self._requests[LAMINA]["checkpoint"])
        evict(chain)
        began = time.perf_counter()
        for path in sorted(chain.rglob("*")):
            if path.is_file():
                path.read_bytes()
        return time.perf_counter() - began


def _check_digests(found: dict[str, list[dict[str, Any]]], built_in: dict[str, list[dict[str, Any]]]) -> None:
    """All restores gave the same rows, and the same lists where there are any."""
    ran = {**found, **built_in}
    plain = {answer["plain"] for answers in ran.values() for answer in answers}
    lists = {answer["lists"] for store, answers in ran.items() if store != HDFS for answer in answers}
    if len(plain) != 1 or len(lists) != 1:
        raise SystemExit(f"the restores gave different states: rows {plain}, lists {lists}")


def show(result: dict[str, Any], console: Console) -> None:
    """Print the table."""
    table = Table(title=f"restore, JVM running; {result['rounds']} rounds")
    for heading in HEADS:
        table.add_column(heading, justify="right")
    for row in rows_of(result):
        table.add_row(*row)
    console.print(table)


HEADS = ("keys", "increments", "from", "MB", "engine MB", "restore s", "yardstick s", "to it", "to the built-in")


def rows_of(result: dict[str, Any]) -> list[list[str]]:
    """The cells as text."""
    rows = []
    for cell in result["cells"]:
        time_s, share, ratio = cell["restore_s"], cell["to_yardstick"], cell.get("to_built_in")
        rows.append([
            f"{cell['keys']:,}", f"{cell['increments']}", cell["place"], f"{cell['bytes'] / 1e6:.0f}",
            f"{cell['engine_bytes'] / 1e6:.0f}",
            f"{time_s['median']:.2f} ({time_s['low']:.2f}-{time_s['high']:.2f})", f"{cell['yardstick_s']:.2f}",
            f"{share['median']:.2f}", f"{ratio['median']:.2f} ({TITLES[cell['built_in']]})" if ratio else "",
        ])  # fmt: skip
    return rows


def met(cell: dict[str, Any]) -> list[bool]:
    """Whether each target of a cell is met: by the yardstick, and beside the better built-in store where they ran."""
    found = [cell["to_yardstick"]["median"] <= BAR]
    return [*found, cell["to_built_in"]["median"] <= BAR_RATIO] if "to_built_in" in cell else found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200,000 keys, one round")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--keys", type=int, nargs="+")
    parser.add_argument("--increments", type=int, nargs="+", default=CHAINS)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    given = parser.parse_args()
    sizes = given.keys or ([200_000] if given.quick else [1_000_000, 4_000_000, 16_000_000])
    whole = given.keys is None and given.increments == CHAINS and given.places == list(PLACES)
    name = "restore_places-quick" if given.quick else "restore_places" if whole else "restore_places-some"
    result = run(sizes, given.increments, given.places, given.rounds or (1 if given.quick else 3), name)
    write_result(name, result)
    show(result, Console(width=130))


if __name__ == "__main__":
    main()
