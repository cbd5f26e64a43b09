"""What a request to S3 costs through each of the two clients: `python -m benchmarks.requests`.

One process publishes, reads, looks at and lists objects of 2,000 bytes on moto's server, which has a process of its
own, with obstore and with s3fs in turns, from one thread and from several. Processor time is that of this process, all
threads of both clients included; the rate is bounded by the server, which shares the machine.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.rounds import turns, write_result
from benchmarks.slow_s3 import hadoop_keys
from benchmarks.statistics import ratios, spread
from lamina.storage import Storage
from lamina.storage.s3 import S3Backend

SIZE = 2_000
LISTED = 20
NATIVE, S3FS = "obstore", "s3fs"
BUCKET = "lamina"


def storages(endpoint: str) -> dict[str, Storage]:
    """One place through each client."""
    native = Storage(f"s3a://{BUCKET}/x", hadoop_keys(endpoint))
    opened = native._backend
    if not isinstance(opened, S3Backend) or type(opened) is S3Backend:
        raise SystemExit("the native client is not used here: is obstore installed, and no variable AWS_* set?")
    return {NATIVE: native, S3FS: Storage(native.url, backend=S3Backend(opened._filesystem, opened._root))}


def operations(storage: Storage, names: Iterator[int]) -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    data = os.urandom(SIZE)
    storage.publish("read", data)
    for number in range(LISTED):
        storage.publish(f"listed/{number}", data)
    return {
        "publish": lambda: storage.publish(f"published/{next(names)}", data),
        "publish_if_absent": lambda: storage.publish_if_absent(f"published/{next(names)}", data),
        "read": lambda: storage.read("read", SIZE),
        "read_tail": lambda: storage.read_tail("read", 1_000),
        "size": lambda: storage.size("read"),
        f"list of {LISTED}": lambda: storage.list("listed"),
    }


def measure(operation: Callable[[], object], times: int, threads: int) -> tuple[float, float]:
    """Processor time of one operation in ms, and operations a second."""

    def work() -> None:
        for _ in range(times // threads):
            operation()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    processor, wall = time.process_time(), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done = times // threads * threads
    return (time.process_time() - processor) * 1000 / done, done / (time.perf_counter() - wall)


def run(rounds: int, times: int, threads: list[int]) -> dict[str, Any]:
    """All operations, the clients in turns."""
    load = machine.load()
    cells: list[dict[str, Any]] = []
    with server() as endpoint:
        names = itertools.count()
        by_client = {client: operations(storage, names) for client, storage in storages(endpoint).items()}
        for name, count in itertools.product(by_client[NATIVE], threads):
            found: dict[str, list[tuple[float, float]]] = {client: [] for client in by_client}
            for of_client in by_client.values():
                measure(of_client[name], count, count)
            for _, client in turns(list(by_client), rounds):
                found[client].append(measure(by_client[client][name], times, count))
            cells.append(
                {
                    "operation": name,
                    "threads": count,
                    "cpu_ms": {client: spread([cpu for cpu, _ in values]) for client, values in found.items()},
                    "a_second": {client: spread([rate for _, rate in values]) for client, values in found.items()},
                    "cpu_ratio": ratios([cpu for cpu, _ in found[S3FS]], [cpu for cpu, _ in found[NATIVE]]),
                }
            )
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine.describe(),
        "load": load,
        "bytes": SIZE,
        "rounds": rounds,
        "times": times,
        "cells": cells,
    }


@contextmanager
def server() -> Iterator[str]:
    """The address of moto's server with one bucket."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        port = here.recv()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", f"/{BUCKET}")
        connection.getresponse().read()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()


def _serve(parent: Connection) -> None:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    parent.send(running.get_host_and_port()[1])
    threading.Event().wait()


def show(result: dict[str, Any], console: Console) -> None:
    """Prints a table."""
    title = f"{result['bytes']:,} bytes, {result['rounds']} rounds of {result['times']} requests in turns"
    table = Table(title=f"{title}, load {result['load']}")
    heads = ("operation", "threads", "obstore, ms CPU", "s3fs, ms CPU", "ratio", "obstore /s", "s3fs /s")
    for heading in heads:
        table.add_column(heading, justify="right")
    for cell in result["cells"]:
        cpu, rate, ratio = cell["cpu_ms"], cell["a_second"], cell["cpu_ratio"]
        table.add_row(
            cell["operation"],
            str(cell["threads"]),
            *(f"{cpu[client]['median']:.2f}" for client in (NATIVE, S3FS)),
            f"{ratio['median']:.1f} ({ratio['low']:.1f}-{ratio['high']:.1f})",
            *(f"{rate[client]['median']:.0f}" for client in (NATIVE, S3FS)),
        )
    console.print(table)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 64 requests")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--times", type=int, help="requests of each kind in a round")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 16])
    given = parser.parse_args()
    result = run(given.rounds or (3 if given.quick else 9), given.times or (64 if given.quick else 160), given.threads)
    write_result("requests-quick" if given.quick else "requests", result)
    show(result, Console(width=120))


if __name__ == "__main__":
    main()
