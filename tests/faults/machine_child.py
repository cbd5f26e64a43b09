"""A query on a machine that runs out of something, or whose clock is set.

`python -m tests.faults.machine_child <directory> <case>...`. Some cases need a mount namespace (`unshare -m`), since
they mount a small file system for the state of their query, for the engine's tables or for Spark's shuffles; others are
made by the hook (`machine_hook`). In each case the query runs, the machine fails it, is mended, and the query is
started again from its checkpoint. Prints one JSON object: per case the error of the failed run (null where it went on),
how many file handles it was refused, how many merges failed in it, and whether all answers are right.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lamina.format import log_object, verify
from lamina.format.manifest import FILE, CommitManifest
from lamina.settings import PREFIX
from tests.spark.conftest import shim_jar
from tests.spark.streams import A_FILE_EACH, LAMINA, OF_MODE, Streams
from tests.spark.test_restarts import unload_all

BATCHES = 3
ROWS = 400
MIB = 1 << 20
HOUR_MS = 3_600_000
STATE_MOUNTED = ("full disk", "read only")
LOCAL_MOUNTED = {"full disk of the engine": "engine", "full disk of Spark": "spark"}
"""Cases of a local disk, and what it is called in the folder of all cases."""
MOUNTED = (*STATE_MOUNTED, *LOCAL_MOUNTED)
CASES = (*MOUNTED, "too many open files", "quota", "clock")

TABLES = {**A_FILE_EACH, PREFIX + "backend": "rocksdb", PREFIX + "rocksdb.materializeEvery": "1"}


def session(folder: Path) -> SparkSession:
    return (
        SparkSession.builder.master("local[2,3]")
        .config("spark.jars", shim_jar())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "spark"))
        .config(PREFIX + "engine.localDirectory", str(folder / "engine"))
        # files are collected while the cases run
        .config("spark.sql.streaming.minBatchesToRetain", "2")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "200ms")
        .config("spark.sql.streaming.stateStore.lamina.retention.minAgeMs", "2000")
        .config("spark.sql.streaming.stateStore.lamina.heap.maxBytes", "256m")
        .config("spark.sql.streaming.stateStore.lamina.heap.handOverMs", "0")
        .getOrCreate()
    )


def rows(batch: int) -> list[dict[str, Any]]:
    """Values that compress badly, so that each batch needs room."""
    first = batch * ROWS
    return [
        {"t": "2024-01-01T00:00:00Z", "k": f"{n * 2_654_435_761 % 2**32:08x}" * 8, "v": n}
        for n in range(first // 2, first // 2 + ROWS)
    ]


def totals(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def expected(batches: int) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for batch in range(batches):
        for row in rows(batch):
            n, total = found.get(row["k"], (0, 0))
            found[row["k"]] = (n + 1, total + row["v"])
    return found


class Case:
    """One query."""

    def __init__(self, spark: SparkSession, folders: Path, name: str) -> None:
        folder = folders / name.replace(" ", "-")
        folder.mkdir(parents=True)
        self.streams = Streams(spark, folder)
        self.conf = TABLES if name in LOCAL_MOUNTED else {}
        self.state = self.streams.checkpoint() / "state"
        self.state.mkdir(parents=True)
        if name in STATE_MOUNTED:
            mount(self.state, 2 * MIB)
        self.local = folders / LOCAL_MOUNTED.get(name, "")
        self.batches = 0
        self.reloads = 0
        self.failed_merges = 0
        self.answers: dict[int, dict[str, tuple[int, int]]] = {}
        self.after_batch: Callable[[], object] = lambda: None

    def run(self) -> str | None:
        """Feeds some batches and runs the query over them; the error that ended it."""
        for _ in range(BATCHES):
            self.streams.feed("s", rows(self.batches))
            self.batches += 1
        return self.run_again()

    def run_again(self) -> str | None:
        def collect(frame: DataFrame, batch: int) -> None:
            self.answers[batch] = {row.k: (row.n, row.total) for row in frame.collect()}
            self.after_batch()

        try:
            run = self.streams.run(totals, LAMINA, mode="complete", each_batch=collect, conf=self.conf)
            self.reloads += run.metric("laminaReloads")
            self.failed_merges += run.metric("laminaFailedMerges")
        except Exception as error:
            return str(error)
        return None

    def right(self) -> bool:
        """Whether every batch gave the answer that the input says."""
        return sorted(self.answers) == list(range(self.batches)) and all(
            found == expected(batch + 1) for batch, found in self.answers.items()
        )

    def newest(self) -> CommitManifest:
        """The manifest of the newest version of a store whose commits are files."""
        newest = max((self.state / "0" / "0").glob("*.lam"), key=lambda path: int(path.name.split("_")[0]))
        manifest = verify(newest.read_bytes(), str(newest))
        assert isinstance(manifest, CommitManifest)
        return manifest

    def newest_age_ms(self) -> float:
        """How long ago the newest version was written, as its manifest says, or the index of its log object."""
        if not OF_MODE:
            return time.time() * 1000 - self.newest().created_ms
        newest = max(self.state.glob("_lamina/log/*.log"), key=lambda path: path.stat().st_mtime_ns)
        return time.time() * 1000 - log_object.verify(newest.read_bytes(), newest.stem, str(newest)).created_ms

    def left(self) -> list[str]:
        """Names of temporary files that failed publications left; those that are being written go by themselves."""
        names = {path.name for path in self.state.rglob(".*.tmp")}
        deadline = time.monotonic() + 30
        while names and time.monotonic() < deadline:
            time.sleep(0.1)
            names &= {path.name for path in self.state.rglob(".*.tmp")}
        return sorted(names)


def mount(directory: Path, size: int) -> None:
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "lamina-test", str(directory)], check=True)


def remount(directory: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(directory)], check=True)


def fill(filler: Path) -> None:
    """Has a file take all that the file system has left."""
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def engine(spark: SparkSession) -> int:
    """The engine's process."""
    assert spark.sparkContext._jvm is not None
    children = spark.sparkContext._jvm.java.lang.ProcessHandle.current().children().iterator()
    while children.hasNext():
        pid = int(children.next().pid())
        if b"lamina.engine" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no engine runs")


def full_disk(spark: SparkSession, case: Case) -> Callable[[], None]:
    filler = case.state / "filler"
    fill(filler)
    return filler.unlink


def full_local_disk(spark: SparkSession, case: Case) -> Callable[[], None]:
    """From a batch on, and whatever room comes meanwhile; before that versions stand on tables."""
    while not any(one.kind == FILE for one in case.newest().references):
        assert case.run() is None
    filler, over = case.local / "filler", threading.Event()

    def keep_full() -> None:
        while not over.is_set():
            fill(filler)
            over.wait(0.005)

    thread = threading.Thread(target=keep_full)

    def begin() -> None:
        case.after_batch = lambda: None
        thread.start()

    def mend() -> None:
        over.set()
        thread.join()
        filler.unlink()

    case.after_batch = begin
    return mend


def read_only(spark: SparkSession, case: Case) -> Callable[[], None]:
    remount(case.state, "ro")
    return lambda: remount(case.state, "rw")


def too_many_open_files(spark: SparkSession, case: Case) -> Callable[[], None]:
    pid = engine(spark)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, before[1]))
    return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, before) and None


def quota(spark: SparkSession, case: Case) -> Callable[[], None]:
    """Room for what a run claims, and for no version."""
    return hook("quota", 1024)


def clock(spark: SparkSession, case: Case) -> Callable[[], None]:
    return hook("clock", -HOUR_MS)


def hook(fault: str, number: int) -> Callable[[], None]:
    """Tells the processes of lamina, which look at the link at any time."""
    link = Path(os.environ["LAMINA_MACHINE"]) / fault
    link.symlink_to(str(number))
    return link.unlink


def refused() -> int:
    """How many file handles the system had not for the processes of lamina, ever."""
    return sum(name.startswith("refused-") for name in os.listdir(os.environ["LAMINA_MACHINE"]))


FAULTS: dict[str, Callable[[SparkSession, Case], Callable[[], None]]] = {
    "full disk": full_disk,
    **dict.fromkeys(LOCAL_MOUNTED, full_local_disk),
    "read only": read_only,
    "too many open files": too_many_open_files,
    "quota": quota,
    "clock": clock,
}


def main(folder: Path, names: list[str]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for name, local in LOCAL_MOUNTED.items():
        if name in names:
            mount(folder / local, 64 * MIB)
    spark = session(folder)
    spark.sparkContext.setLogLevel("OFF")
    results = {}
    for name in names:
        case = Case(spark, folder, name)
        first = case.run()
        before = refused()
        mend = FAULTS[name](spark, case)
        case.failed_merges = 0
        error = case.run()
        left = case.left()
        age = case.newest_age_ms()
        refusals = refused() - before
        # its tables have to be read from the checkpoint then
        unload_all(spark)
        opened = case.run() if name in LOCAL_MOUNTED else None
        mend()
        # so that the restart has nothing but the files
        unload_all(spark)
        case.reloads = 0
        results[name] = {
            "before": first,
            "error": error,
            "failed_merges": case.failed_merges,
            "opened": opened,
            "restarted": case.run_again(),
            "further": case.run(),
            "right": case.right(),
            "temporary_files": left,
            "newest_age_ms": age,
            "refused": refusals,
            "reloads": case.reloads,
        }
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
