"""`python -m lamina.engine.maintenance`: the second process, which compacts and collects at low priority.

One JSON object per line: on standard input comes first where the JVM's Hadoop files are, then jobs, one at a time; each
is answered on standard output, after any number of lines `{"progress": n}` that say that it is going on, with the rows
that were merged or the manifests that were read so far. The end of standard input ends the process at once, in the
middle of a job too: files are published whole or not at all.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from lamina.components import Clock, Ids, RandomIds, SystemClock
from lamina.engine.imports import without_pandas
from lamina.engine.reports import segment_from_json, segment_to_json
from lamina.engine.store_opener import OpenArgument, StoreOpener
from lamina.errors import LaminaError
from lamina.settings import Settings
from lamina.storage import Jvm
from lamina.store import Store, StoreId, Version
from lamina.store.materialization.compaction import WORKING_PREFIX
from lamina.store.versions.resolution import is_empty

log = logging.getLogger(__name__)

_IDLE_S = 3600.0
"""A store that had no job for this long is forgotten: it was closed, or its query rests."""

_NICE = 19
_PROGRESS_S = 1.0
_SWEEP_S = 5.0

Progress = Callable[[int, int], None]


@dataclass
class _Kept:
    """A store that had a job: how it was opened, when it was last used, and why its collections were stopped."""

    argument: OpenArgument
    store: Store
    used: float
    stops: set[str] = field(default_factory=set)

    def warn_once(self, stop: str) -> None:
        """Says once why nothing of the store is collected."""
        if stop not in self.stops:
            self.stops.add(stop)
            store = self.argument.store
            log.warning("nothing of %s of %s is collected: %s", self.store.identity, store.checkpoint_url, stop)


class Maintainer:
    """Works on one job after the other.

    A store is kept from one job to the next, since what its collector knows (the registry of its files, and when
    versions without a file of their own left retention) takes a manifest a version to learn, or cannot be learned
    again at all. That is small; the manifests, which are not, are dropped after each job. So memory follows the number
    of stores that this executor works on, and an open by a new run of the query replaces that of the run before it.
    """

    def __init__(self, clock: Clock, ids: Ids, jvm: Jvm | None = None) -> None:
        self._clock = clock
        self._stores = StoreOpener(Settings.parse, clock, ids, jvm)
        self._kept: dict[StoreId, _Kept] = {}

    def work(self, job: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Compacts the store of `job` if it is worth it, and collects if asked; what was done, and the error if any."""
        report: dict[str, Any] = {"ok": True, "segment": None, "collected": {}}
        try:
            self._work(job, progress, report)
        except Exception as error:
            ours = LaminaError.from_exception(error)
            log.warning("the maintenance of a store failed: %s", ours, exc_info=ours is not error)
            report |= {"ok": False, "error": {"kind": ours.kind, "message": ours.message}}
        return report

    def _work(self, job: Mapping[str, Any], progress: Progress | None, report: dict[str, Any]) -> None:
        """Does `job`; each step notes in `report` what it did, so that a failure of the next one does not hide it."""
        kept = self._kept_for(OpenArgument.from_json(job["open"]))
        store = kept.store
        manifests = itertools.count(1)

        def progressed() -> None:
            if progress is not None:
                progress(next(manifests), 0)

        try:
            confirmed = store.confirm(Version(job["confirmed"]["version"], job["confirmed"]["attempt"]))
            # the engine knows best which wait: this process may be new, or have made some that it never heard of
            store.set_waiting_segments([segment_from_json(segment) for segment in job["waiting"]])
            report["stamped"] = [
                {"name": name, "segment": None if stamped is None else segment_to_json(stamped)}
                for name, stamped in store.stamp_segments(progress)
            ]
            compacted = store.compact(progress)
            if compacted is not None:
                # until a commit refers to it, the next compaction must not merge the same files again
                store.adopt(compacted.segment)
                # whatever becomes of the collection: this process believes in the segment, so the engine has to
                report["segment"] = segment_to_json(compacted.segment)
            if job["collect"]:
                collected = store.collect(confirmed, dry_run=False, progressed=progressed)
                report |= {"collected": collected.metrics(), "stopped": collected.stopped}
                if collected.stopped is not None and not is_empty(confirmed.attempt):
                    kept.warn_once(collected.stopped)
        finally:
            store.rest()

    def _kept_for(self, argument: OpenArgument) -> _Kept:
        now = self._clock.monotonic()
        for store_id, old in list(self._kept.items()):
            replaced = store_id == argument.store and old.argument != argument
            if replaced or now - old.used > _IDLE_S:
                del self._kept[store_id]
                self._stores.close(old.argument)
        kept = self._kept.get(argument.store)
        if kept is None:
            kept = self._kept[argument.store] = _Kept(argument, self._stores.open(argument)[0], now)
        kept.used = now
        return kept


class Sweeper:
    """Gives memory back between jobs: at most every five seconds, so after each job that takes that long.

    It looks at every object that is kept, for cycles. With a thousand stores that takes longer than a small job does.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._swept = clock.monotonic()
        self._worked = False

    def due_in(self) -> float | None:
        """Seconds until the next sweep; None where there was no job since the last one."""
        return max(0.0, self._swept + _SWEEP_S - self._clock.monotonic()) if self._worked else None

    def after_job(self) -> None:
        """Sweeps if the last time was long enough ago."""
        self._worked = True
        if self.due_in() == 0:
            self.sweep()

    def sweep(self) -> None:
        """Gives back what nothing refers to any more."""
        gc.collect()
        pa.default_memory_pool().release_unused()
        self._swept = self._clock.monotonic()
        self._worked = False


def _read_jobs(jobs: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(json.loads(line))
    os._exit(0)


def _remove_left_behind() -> None:
    """Removes what a compaction was working on when the process before this one was killed: an engine has one only."""
    for left in Path.cwd().glob(f"{WORKING_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def main() -> None:
    """Works until standard input ends."""
    without_pandas()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    # The engine's private directory, which goes with the engine, however the two processes end.
    tempfile.tempdir = os.getcwd()
    _remove_left_behind()
    # One processor at most: the others belong to the queries.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    answers, sys.stdout = sys.stdout, sys.stderr
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), name="lamina-jobs", daemon=True).start()
    clock = SystemClock()
    jvm = jobs.get()["jvm"]
    maintainer = Maintainer(clock, RandomIds(), None if jvm is None else Jvm(**jvm))
    sent = clock.monotonic()

    def send(report: Mapping[str, Any]) -> None:
        answers.write(json.dumps(report) + "\n")
        answers.flush()

    def progress(done: int, _: int) -> None:
        nonlocal sent
        now = clock.monotonic()
        if now - sent >= _PROGRESS_S:
            sent = now
            send({"progress": done})

    # what was imported is there to stay: no sweep need look at it
    gc.freeze()
    sweeper = Sweeper(clock)
    while True:
        try:
            job = jobs.get(timeout=sweeper.due_in())
        except queue.Empty:
            sweeper.sweep()
            continue
        send(maintainer.work(job, progress))
        sweeper.after_job()


if __name__ == "__main__":
    main()
