"""A query whose batch outgrows its memory on a full disk: `python -m tests.faults.full_spill_disk_child <directory>`.

Needs a mount namespace (`unshare -m`): Spark's local directory is a small file system, which something else fills as
soon as a batch begins to keep changes there. Prints one JSON object: what the query did, what was left of the changes,
and what the query does once there is room; only null where it did not end.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lamina.settings import PREFIX
from tests.faults.machine_child import MIB, fill, mount
from tests.spark.conftest import shim_jar
from tests.spark.memory_query import counted
from tests.spark.programs import program_session
from tests.spark.test_memory_cap import feed

STUCK_S = 300
LEFT_S = 60
ROOM = 16 * MIB
"""What there is until the batch begins, so that the rest is filled in no time."""


def spills(local: Path) -> list[str]:
    """Databases of changes; they come and go meanwhile."""
    return sorted(glob.glob(f"{local}/*/lamina-spill-*"))


def left(local: Path) -> list[str]:
    """Those that stay: tasks of a query that has failed end a little later."""
    deadline = time.monotonic() + LEFT_S
    while (found := spills(local)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def outcome(spark: SparkSession, folder: Path, local: Path) -> dict[str, Any]:
    over, filler = threading.Event(), local / "filler"
    feed(folder / "in")
    free = os.statvfs(local)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - ROOM)

    def keep_full() -> None:
        while not spills(local) and not over.wait(0.002):
            pass
        while not over.wait(0.005):
            fill(filler)

    argument = {"input": str(folder / "in"), "checkpoint": str(folder / "checkpoint")}
    filling = threading.Thread(target=keep_full)
    filling.start()
    full = counted(spark, argument)
    still_there = left(local)
    over.set()
    filling.join()
    filler.unlink()
    return {"full": full, "left": still_there, "with room": counted(spark, argument)}


def main(folder: Path) -> None:
    local = folder / "local"
    mount(local, 256 * MIB)
    settings = {PREFIX + "backend": "rocksdb", PREFIX + "rocksdb.memory.fixedPerExecutorBytes": "24m"}
    spark = program_session("local[2]", shim_jar(), {**settings, "spark.local.dir": str(local)})
    spark.sparkContext.setLogLevel("OFF")
    found: list[dict[str, Any]] = []
    running = threading.Thread(target=lambda: found.append(outcome(spark, folder, local)), daemon=True)
    running.start()
    running.join(STUCK_S)
    print("RESULT " + json.dumps(found[0] if found else None), flush=True)
    # who waits in RocksDB cannot be interrupted, and keeps the JVM
    spark.sparkContext._gateway.proc.kill()  # type: ignore[union-attr]
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
