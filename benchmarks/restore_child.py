"""Builds a chain of versions with one state store, or restores the last version of one in a fresh JVM."""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import session
from benchmarks.rounds import print_result
from benchmarks.scala import benchmark_jar
from benchmarks.variants import HDFS, LAMINA, NO_COMPACTION, shim_jar
from lamina.checkpoint import read_identity
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage
from lamina.store.files.store_files import StoreFiles
from lamina.store.versions.chain import files as files_of

WARM_KEYS, WARM_ROWS, WARM_INCREMENTS = 200_000, 20_000, 6
BUILT_IN_FILE = re.compile(r"(\d+)(?:_[^.]*)?\.(snapshot|zip|delta|changelog)")
"""Spark's names of a whole version (the first two) and of what one changed; an id may follow the version."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked: `build` or `restore`."""
    variant = request["variant"]
    jars = [benchmark_jar("micro", [shim_jar()]), benchmark_jar("restore", [benchmark_jar("micro", [shim_jar()])])]
    spark = session.start(variant, driver_memory=request["driver_memory"], extra_jars=jars)
    # the chain is driven without a query: nobody would answer reports, and no maintenance may run into the clock
    spark.conf.set("spark.sql.streaming.stateStore.commitValidation.enabled", "false")
    spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1000")
    for key, value in request.get("settings", {}).items():
        spark.conf.set(key, value)
    if variant == LAMINA:
        # as the built-in stores above: a snapshot and all increments, nothing merged before or during a restore
        for key, value in NO_COMPACTION.items():
            spark.conf.set(key, value)
    benchmark = session.jvm(spark).lamina.benchmarks.restore.RestoreBenchmark
    classic = spark._jsparkSession
    checkpoint, increments = request["checkpoint"], request["increments"]

    def shape(keys: int, rows: int) -> Any:
        return benchmark.shape(session.PARTITIONS, keys, rows, variant != HDFS)

    whole = shape(request["keys"], request["rows"])
    if request["action"] == "build":
        ids = benchmark.build(classic, checkpoint, whole, increments)
        result: dict[str, Any] = {
            "ids": ids,
            "bytes": sum(session.directory_bytes(Path(checkpoint)).values()),
            "files": files_read(variant, Path(checkpoint) / "state", ids.split(",")),
        }
    else:
        if request["warm"]:
            # beside the chains: the parent removes it when nothing of this process can write there any more
            small = f"{request['folder']}/warm-{uuid.uuid4()}"
            ids = benchmark.build(classic, small, shape(WARM_KEYS, WARM_ROWS), WARM_INCREMENTS)
            _restore(benchmark, spark, small, shape(WARM_KEYS, WARM_ROWS), WARM_INCREMENTS + 1, ids, 3)
        result = _restore(benchmark, spark, checkpoint, whole, increments + 1, request["ids"], request["batches"])
        result["resident_bytes"] = session.resident(spark)
    spark.stop()
    return result


def files_read(variant: str, state: Path, ids: list[str]) -> list[int]:
    """How many files the newest version consists of in each partition.

    Of lamina the files that its manifest names. Of a built-in store the newest whole version, which counts as one file,
    and the changes after it.

    Args:
        state: the directory `state` of the chain's checkpoint.
        ids: of the newest version, by partition.
    """
    if variant != LAMINA:
        return [_built_in_files(path.name for path in (state / "0" / str(n)).iterdir()) for n in range(len(ids))]
    storage = Storage(str(state))
    identity = read_identity(storage)
    assert identity is not None
    stores = [StoreIdentity(identity.uuid, 0, partition, "default") for partition in range(len(ids))]
    opened = [StoreFiles(storage, store).open_commit(id) for store, id in zip(stores, ids, strict=True)]
    return [files_of(one.references) for one in opened]


def _built_in_files(names: Iterable[str]) -> int:
    found = [(int(match[1]), match[2]) for match in map(BUILT_IN_FILE.fullmatch, names) if match]
    whole = max((version for version, kind in found if kind in ("snapshot", "zip")), default=0)
    changes = {version for version, kind in found if kind in ("delta", "changelog") and version > whole}
    return bool(whole) + len(changes)


def _restore(
    benchmark: Any, spark: SparkSession, checkpoint: str, shape: Any, version: int, ids: str, batches: int
) -> dict[str, Any]:
    answer = benchmark.restore(spark._jsparkSession, checkpoint, shape, version, ids, batches)
    found: dict[str, Any] = json.loads(answer)
    return found


if __name__ == "__main__":
    print_result(run(json.loads(sys.argv[1])))
