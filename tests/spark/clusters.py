"""A standalone cluster of Spark on this machine, and files for the queries on it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lamina.spark.jars import spark_home

WORKERS = ("127.0.0.1", "127.0.0.2")
"""The hosts of a cluster's workers: Spark speculates on another host only."""


def url_of(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where a master says that it listens."""
    deadline = time.monotonic() + 300
    while not (found := re.search(r"Starting Spark master at (spark://\S+)", log.read_text(encoding="utf-8"))):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.1)
    return found[1]


@contextmanager
def standalone(path: Path) -> Iterator[str]:
    """The URL of a master, with a worker of one core on each host; none of them is left."""
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_DIRS": str(path / "local")}
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(path / f"{name}.log", "wb") as log:
            # A group of its own, which the worker's executors and their engines belong to.
            process = subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(process)
        return process

    try:
        package = "org.apache.spark.deploy"
        listens = start("master", f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = url_of(path / "master.log", listens)
        for host in WORKERS:
            own = ["--cores", "1", "--memory", "1500m", "--webui-port", "0", "--work-dir", str(path / host)]
            start(f"worker {host}", f"{package}.worker.Worker", "--host", host, *own, url)
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def feed(folder: Path, number: int, rows: Sequence[dict[str, Any]]) -> None:
    """One file, thus one batch; numbers ascend."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:05d}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # the source takes files by time of modification
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
