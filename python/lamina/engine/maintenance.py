"""`python -m lamina.engine.maintenance`: the second process, which compacts and collects at low priority.

One JSON object per line: on standard input comes first where the JVM's Hadoop files are, then jobs, one at a time; each
is answered on standard output. The end of standard input ends the process at once, in the middle of a job too: files
are published whole or not at all.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import signal
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lamina.components import RandomIds, SystemClock
from lamina.engine.open_stores import OpenArgument, OpenStores
from lamina.engine.reports import segment_to_json
from lamina.errors import LaminaError
from lamina.settings import Settings
from lamina.storage import Jvm
from lamina.store import HeapStore, Version

log = logging.getLogger(__name__)

_STORES_KEPT = 64
_NICE = 19


class Maintainer:
    """Works on one job after the other; stores that come again are not opened again."""

    def __init__(self, jvm: Jvm | None = None) -> None:
        self._stores = OpenStores(Settings.parse, SystemClock(), RandomIds(), jvm)
        self._kept: OrderedDict[str, tuple[OpenArgument, HeapStore]] = OrderedDict()

    def work(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Compacts the store of `job` if it is worth it, and collects if asked; what was done, or the error."""
        try:
            return {"ok": True, **self._work(job)}
        except Exception as error:
            ours = LaminaError.from_exception(error)
            log.warning("the maintenance of a store failed: %s", ours, exc_info=ours is not error)
            return {"ok": False, "error": {"kind": ours.kind, "message": ours.message}}

    def _work(self, job: Mapping[str, Any]) -> dict[str, Any]:
        store = self._store(job["open"])
        confirmed = store.confirm(Version(job["confirmed"]["version"], job["confirmed"]["attempt"]))
        compacted = store.compact()
        collected = store.collect(confirmed, dry_run=False) if job["collect"] else None
        return {
            "segment": None if compacted is None else segment_to_json(compacted.segment),
            "deleted": 0 if collected is None else len(collected.deleted),
        }

    def _store(self, argument: Mapping[str, Any]) -> HeapStore:
        key = json.dumps(argument, sort_keys=True)
        kept = self._kept.get(key)
        if kept is None:
            opened = OpenArgument.from_json(argument)
            kept = self._kept[key] = (opened, self._stores.open(opened)[0])
            while len(self._kept) > _STORES_KEPT:
                _, (old, _) = self._kept.popitem(last=False)
                self._stores.close(old)
        self._kept.move_to_end(key)
        return kept[1]


def _read_jobs(jobs: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(json.loads(line))
    os._exit(0)


def main() -> None:
    """Works until standard input ends."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    # The engine's private directory, which goes with the engine, however the two processes end.
    tempfile.tempdir = os.getcwd()
    # One processor at most: the others belong to the queries.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    answers, sys.stdout = sys.stdout, sys.stderr
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), name="lamina-jobs", daemon=True).start()
    jvm = jobs.get()["jvm"]
    maintainer = Maintainer(None if jvm is None else Jvm(**jvm))
    while True:
        report = maintainer.work(jobs.get())
        answers.write(json.dumps(report) + "\n")
        answers.flush()
        gc.collect()
        pa.default_memory_pool().release_unused()


if __name__ == "__main__":
    main()
