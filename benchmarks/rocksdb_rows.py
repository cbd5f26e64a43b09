"""What a row of a state on tables of RocksDB costs to read: through the shim, and by RocksDB itself."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.bars import Bar, Figures, between, most
from benchmarks.questions import Parameters
from benchmarks.rounds import progress, run_main
from benchmarks.scala import benchmark_jar
from benchmarks.statistics import spread
from benchmarks.variants import shim_jar
from lamina.format.entries import PUT, SCHEMA
from lamina.store.tables.database import Database

MAIN = "org.apache.spark.sql.lamina.BelowBenchmark"
BATCH = 32_768
KEY = b"customer-000000000000000"
VALUE_BYTES = 32
CACHES = {"block cache": 1 << 30, "page cache": 8 << 20}
CACHED_US, BLOCK_CACHE_US, TO_ROCKSDB = 0.4, 3.0, 1.1


def entries(keys: int) -> Iterator[pa.RecordBatch]:
    """All keys of the benchmark, as Spark writes a string of 24 characters, and values of three numbers."""
    for first in range(0, keys, BATCH):
        ids = np.arange(first, min(first + BATCH, keys), dtype="<i8")
        key = np.zeros((len(ids), 16 + len(KEY)), dtype=np.uint8)
        key[:, 8:16] = np.frombuffer(((16 << 32) | len(KEY)).to_bytes(8, "little"), dtype=np.uint8)
        key[:, 16:] = np.frombuffer(KEY, dtype=np.uint8)
        rest, digit = ids.copy(), key.shape[1] - 1
        while rest.any():
            key[:, digit] = np.where(rest > 0, ord("0") + rest % 10, key[:, digit])
            rest //= 10
            digit -= 1
        value = np.zeros((len(ids), VALUE_BYTES // 8), dtype="<i8")
        value[:, 1:] = ids[:, None] * np.array([1, 31, 131])
        yield pa.record_batch(
            [
                pa.array(np.zeros(len(ids), dtype=np.uint16)),
                pa.array(np.full(len(ids), PUT, dtype=np.uint8)),
                _binary(key),
                _binary(value.view(np.uint8)),
            ],
            schema=SCHEMA,
        )


def _binary(rows: np.ndarray[Any, Any]) -> pa.Array:
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


def measure(parameters: Parameters, rounds: int) -> Figures:
    """Each round in a JVM of its own, with each cache."""
    shim = shim_jar()
    jars = [benchmark_jar("micro", [shim]), shim]
    found: dict[str, list[dict[str, float]]] = {cache: [] for cache in CACHES}
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as folder:
        made = Path(folder) / "made"
        with Database(str(made)) as database:
            database.ingest(entries(parameters["keys"]))
            database.settle(lambda: None)
        for number in range(rounds):
            for cache, size in CACHES.items():
                copies = [Path(folder) / name for name in ("shim", "rocksdb")]
                for copy in copies:
                    shutil.rmtree(copy, ignore_errors=True)
                    shutil.copytree(made, copy, copy_function=os.link)
                arguments = [*copies, parameters["keys"], parameters["rows"], parameters["passes"], size]
                answer = run_main(MAIN, arguments, jars, heap="2g")
                found[cache].append({name: answer[name] / 1000 for name in ("cached", "below", "rocksdb")})
                progress(f"round {number + 1}/{rounds}, {cache}: {found[cache][-1]}")
    return {
        cache: {
            **{name: spread([one[name] for one in answers]) for name in answers[0]},
            "ratio": spread([one["below"] / one["rocksdb"] for one in answers]),
        }
        for cache, answers in found.items()
    }


def bars(_: Parameters, figures: Figures) -> list[Bar]:
    """A row that is cached, one whose block is, and one whose block comes from the page cache."""
    in_cache, in_page_cache = (figures[cache] for cache in CACHES)
    return [
        most("get of a row that is in the table", CACHED_US, in_cache["cached"], " µs"),
        most("get from RocksDB's block cache", BLOCK_CACHE_US, in_cache["below"], " µs"),
        most("get from the page cache, to RocksDB's own", TO_ROCKSDB, in_page_cache["ratio"]),
    ]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each cache."""
    heads = ["blocks come from", "row in the table, µs", "row below, µs", "RocksDB's own get, µs", "shim to it"]
    names = ("cached", "below", "rocksdb", "ratio")
    return heads, [[f"the {cache}", *(between(found[name]) for name in names)] for cache, found in figures.items()]


def setup(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    return (
        f"Wall time of one thread, {parameters['keys']:,} keys of 40 bytes with values of 32 in one database, "
        f"{parameters['rows']:,} random rows a pass, {parameters['passes']} passes in turns after three. A row that "
        "was read once is in the table from then on; after each pass all are forgotten. The other reader is rocksdbjni "
        "with the same options and the same cache, which hands out an array where the shim hands out a row."
    )
