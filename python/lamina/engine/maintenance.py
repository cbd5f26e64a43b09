"""`python -m lamina.engine.maintenance`: the second process, which compacts and collects at low priority.

One JSON object per line. On standard input comes first how many workers there are and where the JVM's Hadoop files
are, then numbered jobs. On standard output lines with a job's number say what becomes of it: `progress` that it goes
on, with the rows that were merged or the manifests that were read so far; `waits` that it waits for other jobs, and
needs no worker until its next `progress`; `report`, the last one, what it did. The end of standard input ends the
process at once, in the middle of jobs too: files are published whole or not at all.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from lamina.components import Clock, Ids, RandomIds, SystemClock
from lamina.engine.cycles import collect_seldom
from lamina.engine.imports import without_pandas
from lamina.engine.maintenance_pool import Deletion, MaintenancePool, Merged, Progress, Steps, Turn, delete
from lamina.engine.reports import (
    footprint_from_json,
    places_from_json,
    places_to_json,
    segment_from_json,
    segment_to_json,
)
from lamina.engine.store_opener import OpenArgument, OpenedStore, StoreOpener
from lamina.errors import LaminaError
from lamina.settings import Settings
from lamina.storage import Jvm
from lamina.store import CheckpointState, Collected, Compacted, Store, StoreId, Version
from lamina.store.collection.known_others import KnownOthers
from lamina.store.memory.budget import MemoryBudget, Share
from lamina.store.restore.detours import place
from lamina.store.versions.resolution import is_empty

log = logging.getLogger(__name__)

_IDLE_S = 3600.0
"""A store that had no job for this long is forgotten: it was closed, or its query rests."""

_IDLE_LOOK_S = 60.0

_LEFT_KEPT = 2_048
"""So many stores are kept that are open nowhere in this engine: some come back, with `unloadOnCommit` after each rare
trigger, and those of queries that ended do not."""

_NICE = 19
_SWEEP_S = 5.0

_OF_MERGES = ("segment", "merged", "merge_ms", "compacted", "materialized", "tried", "in_place")
"""What a report says of a merge."""

_PAUSES = 5
_SHORT_PAUSE_S = 10.0
"""A store's next collection comes so many times later as the last ones of all open stores took of the interpreter
together: a look costs some microseconds a retained version, of which many stores may have very many. Shorter pauses are
not made."""

LONG_BYTES = 8 << 20
"""A merge of more takes its turn among such merges, one after the other, and none of the workers."""

SHORT_MERGES_BYTES = 64 << 20
"""What the other merges have in memory together, beside the databases that they have open; where all of them would wait
for more, one goes beyond it."""


LONG_MERGE_BYTES = 160 << 20
"""What a long one takes where it has the choice: two large tables of it are sent to a remote storage at once."""


@dataclass
class _Kept:
    """A store that had a job: how it was opened, what is known of others of its checkpoint, when it was last used,
    whether it is open in the engine no more, why its collections were stopped, how much processor time the last one
    took to look at its files, and until when it has no other."""

    argument: OpenArgument
    opened: OpenedStore
    others: KnownOthers
    used: float
    left: bool
    stops: set[str] = field(default_factory=set)
    took_s: float = 0.0
    rests_until: float = 0.0

    @property
    def store(self) -> Store:
        return self.opened.store

    def is_newer_than(self, argument: OpenArgument) -> bool:
        """Whether a newer run of the query than that of an open has opened it."""
        claimed = argument.claimed
        return claimed is not None and self.opened.checkpoint.is_newer_than(claimed[0], argument.run_id, claimed[1])

    def is_older_than(self, other: OpenedStore) -> bool:
        """Whether an older run than another one has opened it, or a run on the checkpoint that was there before."""
        own = self.opened.checkpoint
        return own.uuid != other.checkpoint.uuid or other.checkpoint.outlives(own)

    def warn_once(self, stop: str) -> None:
        """Says once why nothing of the store is collected."""
        if stop not in self.stops:
            self.stops.add(stop)
            store = self.argument.store
            log.warning("nothing of %s of %s is collected: %s", self.store.identity, store.checkpoint_url, stop)


class Maintainer:
    """Works on jobs, on several at once but never on two of one store. Thread-safe.

    A store is kept from one job to the next, since what its collector knows (the registry of its files, and when
    versions without a file of their own left retention) takes a manifest a version to learn, or cannot be learned
    again at all. That is small; the manifests, which are not, are dropped after each job. So memory follows the number
    of stores that this executor works on, and an open by a new run of the query replaces that of the run before it. Of
    those that are open no more, as after many short queries, the ones used last are kept.
    """

    def __init__(self, clock: Clock, ids: Ids, jvm: Jvm | None = None) -> None:
        self._clock = clock
        # a store's last job may be its last one here
        self._stores = StoreOpener(Settings.parse, clock, ids, jvm, unused_s=0.0)
        self._lock = threading.Lock()
        self._kept: dict[StoreId, _Kept] = {}
        self._working: dict[StoreId, bool] = {}
        """The stores that have a job, and whether they were left since it was given."""
        self._others: WeakValueDictionary[CheckpointState, KnownOthers] = WeakValueDictionary()
        self._looked_for_idle = clock.monotonic()
        self._memory = MemoryBudget(SHORT_MERGES_BYTES)

    def work(self, job: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Does a job alone, as `steps` says."""
        steps = self.steps(job, progress)
        merged: dict[str, Any] = {}
        while True:
            try:
                wait = next(steps)
            except StopIteration as end:
                return {**end.value, **merged}
            if isinstance(wait, Deletion):
                delete([wait])
            elif isinstance(wait, Merged):
                merged = dict(wait.report)

    def steps(self, job: Mapping[str, Any], progress: Progress | None = None) -> Steps:
        """Compacts the store of `job` if it is worth it, and collects if asked; what was done, and the error if any.

        Each step may be done by another thread. Between them the job waits for what is given.
        """
        argument = OpenArgument.from_json(job["open"])
        with self._lock:
            self._working[argument.store] = False
        return self._reported(argument, job, progress)

    def _reported(self, argument: OpenArgument, job: Mapping[str, Any], progress: Progress | None) -> Steps:
        report: dict[str, Any] = {"ok": True, "segment": None, "collected": {}}
        try:
            yield from self._steps(argument, job, progress, report)
        except Exception as error:
            ours = LaminaError.from_exception(error)
            log.warning("the maintenance of a store failed: %s", ours, exc_info=ours is not error)
            report |= {"ok": False, "error": {"kind": ours.kind, "message": ours.message}}
        finally:
            with self._lock:
                is_left, kept = self._working.pop(argument.store), self._kept.get(argument.store)
                # a job of a handle that was closed, too
                over = self._pop_left(argument.store) if is_left or (kept is not None and kept.left) else []
            self._close(over)
        return report

    def _steps(
        self, argument: OpenArgument, job: Mapping[str, Any], progress: Progress | None, report: dict[str, Any]
    ) -> Generator[Turn | Deletion | Merged | Share, bool | None, None]:
        """Does `job`; each step notes in `report` what it did, so that a failure of the next one does not hide it."""
        kept = self._kept_for(argument, is_closed=job["closed"])
        if kept is None:
            # of a run that is over: nobody misses it
            report |= {
                "ok": False,
                "error": {"kind": "state.superseded", "message": "a newer run of the query is here"},
            }
            return
        try:
            confirmed = kept.store.confirm(Version(job["confirmed"]["version"], job["confirmed"]["attempt"]))
            # the engine knows best which wait: this process may be new, or have made some that it never heard of
            kept.store.set_waiting_segments([segment_from_json(segment) for segment in job["waiting"]])
            kept.store.note_footprints(footprint_from_json(one) for one in job["footprints"])
            report["stamped"] = [
                {"name": name, "segment": None if stamped is None else segment_to_json(stamped)}
                for name, stamped in kept.store.stamp_segments(progress)
            ]
            kept.opened.known.broken.add(places_from_json(job["broken"]))
            made, was_alone, failed = None, False, None
            merges = job["compact"] or job["at_once"]
            try:
                if merges:
                    made, was_alone = yield from self._compaction(kept.store, job, progress, report)
                    report["compacted"] = True
                if job["at_once"]:
                    report["tried"] = job["broken"]
            except Exception as error:
                # what cannot be merged is no reason to keep what nobody needs
                failed = error
                report["merge_failed"] = True
                if LaminaError.from_exception(error).kind.startswith("file."):
                    # no other way leads to the state, and nobody here has what is broken
                    report["tried"] = job["broken"]
            try:
                if made is not None and made.in_place is not None and job["in_place"]:
                    # last: whoever hears of it owns it, and until then it goes with this process
                    in_place = replace(made.in_place(tempfile.gettempdir()), attempt=confirmed.attempt)
                    report["in_place"] = in_place.to_json()
                if job["at_once"] and failed is None:
                    # only with them: whoever waits for tables is to read them
                    report["materialized"] = {"version": confirmed.version, "attempt": confirmed.attempt}
            except Exception as error:
                failed = error
            rests = self._clock.monotonic() < kept.rests_until
            if job["collect"] and not rests and not kept.store.is_settled(confirmed):
                if merges and not report.get("merge_failed"):
                    # a look at a large log takes long, and may never end: the merge does not wait for it
                    yield Merged({name: report.pop(name) for name in _OF_MERGES if name in report})
                    report["segment"] = None
                if was_alone:
                    yield Turn.WORKER
                yield from self._collection(kept, confirmed, progress, report)
            if failed is not None:
                raise failed
        finally:
            kept.store.rest()

    def _compaction(
        self, store: Store, job: Mapping[str, Any], progress: Progress | None, report: dict[str, Any]
    ) -> Generator[Turn | Share, bool | None, tuple[Compacted | None, bool]]:
        """What was made, and whether as a long merge, which has no worker."""
        merge = store.plan_compaction(at_once=job["at_once"])
        if merge is None:
            return None, False
        long = merge.bytes > LONG_BYTES
        # who waits does not wait for the long merges of others, and shares the memory of the short ones
        is_alone = long and not job["awaited"] and (yield Turn.LONG_MERGE) is not False
        memory = MemoryBudget(LONG_MERGE_BYTES) if is_alone else self._memory
        # who waits for the memory of others goes on, whatever its storage does
        share = memory.share(waiting=lambda: None if progress is None else progress(0, 0))
        yield share
        began = self._clock.monotonic()
        try:
            compacted = merge.run(progress, share)
        finally:
            # also of one that failed
            report["merge_ms"] = round(1000 * (self._clock.monotonic() - began))
        # until a commit refers to it, the next compaction must not merge the same files again
        store.adopt(compacted.made)
        # whatever becomes of the collection: this process believes in the segment, so the engine has to
        report["segment"] = segment_to_json(compacted.made)
        report["merged"] = dict(compacted.merged)
        return compacted, is_alone

    def _collection(
        self, kept: _Kept, confirmed: Version, progress: Progress | None, report: dict[str, Any]
    ) -> Generator[Turn | Deletion, bool | None, None]:
        manifests = itertools.count(1)

        def progressed() -> None:
            if progress is not None:
                progress(next(manifests), 0)

        began = self._clock.processor()
        try:
            judged = kept.store.judge(confirmed, kept.others, progressed)
        finally:
            self._pace(kept, self._clock.processor() - began)
        if judged.files:
            deletion = Deletion(kept.others, judged.files)
            yield deletion
            stopped = deletion.outcome()
            collected = judged.done() if stopped is None else Collected((), False, stopped)
        else:
            collected = judged.done()
        report |= {"collected": collected.metrics(), "stopped": collected.stopped}
        if collected.stopped is None:
            report["space"] = {"stored_bytes": collected.stored_bytes, "newest_bytes": collected.newest_bytes}
        elif not is_empty(confirmed.attempt):
            kept.warn_once(collected.stopped)
        if collected.lost:
            report["lost"] = places_to_json(map(place, collected.lost))

    def _pace(self, kept: _Kept, took_s: float) -> None:
        """Takes note of how much processor time a look at a store's files took."""
        with self._lock:
            kept.took_s = took_s
            together_s = sum(one.took_s for one in self._kept.values() if not one.left)
        if _PAUSES * together_s >= _SHORT_PAUSE_S:
            kept.rests_until = self._clock.monotonic() + _PAUSES * together_s

    def leave(self, store: StoreId) -> None:
        """Gives up the local files of a store that is not open any more, once no job uses them; what its collector
        knows stays for a while."""
        with self._lock:
            # under it no job begins or ends
            if store in self._working:
                self._working[store] = True
                return
            over = self._pop_left(store)
        self._close(over)

    def _pop_left(self, store: StoreId) -> list[_Kept]:
        """Takes out what of the stores that were left has not been used for longest, now that this one was, too."""
        kept = self._kept.get(store)
        if kept is None:
            return []
        kept.left = True
        kept.store.give_up_files()
        left = [one for one in self._kept.values() if one.left and one.argument.store not in self._working]
        left.sort(key=lambda one: one.used)
        return [self._kept.pop(one.argument.store) for one in left[: max(0, len(left) - _LEFT_KEPT)]]

    def _close(self, kept: Iterable[_Kept]) -> None:
        for one in kept:
            self._stores.close(one.opened)

    def _kept_for(self, argument: OpenArgument, *, is_closed: bool) -> _Kept | None:
        """The store as this run of the query opened it; None where a newer run has it.

        Args:
            is_closed: whether a handle asks for it that was closed, so that the store may be open no more.
        """
        now = self._clock.monotonic()
        with self._lock:
            kept = self._kept.get(argument.store)
            closed = []
            is_over = kept is not None and kept.is_newer_than(argument)
            if kept is not None and kept.argument != argument and not is_over:
                closed.append(self._kept.pop(argument.store))
                kept = None
            if now - self._looked_for_idle > _IDLE_LOOK_S:
                self._looked_for_idle = now
                idle = [
                    one
                    for one in self._kept.values()
                    if one.argument.store not in self._working and now - one.used > _IDLE_S
                ]
                closed += [self._kept.pop(one.argument.store) for one in idle]
                kept = self._kept.get(argument.store)
            if kept is not None and not is_over:
                kept.used = now
                kept.left = kept.left and is_closed
        self._close(closed)
        if is_over:
            return None
        if kept is not None:
            return kept
        opened = self._stores.open(argument)
        self._close(self._pop_of_older_runs(opened))
        with self._lock:
            others = self._others.setdefault(opened.checkpoint, KnownOthers(opened.checkpoint, self._clock))
            kept = self._kept[argument.store] = _Kept(argument, opened, others, now, is_closed)
        return kept

    def _pop_of_older_runs(self, opened: OpenedStore) -> list[_Kept]:
        """Takes out stores as older runs of the query have opened them: what they know of log objects is as large as
        the checkpoint, and none of them is used again."""
        with self._lock:
            old = [
                store
                for store, kept in self._kept.items()
                if store.checkpoint_url == opened.id.checkpoint_url
                and kept.is_older_than(opened)
                and store not in self._working
            ]
            return [self._kept.pop(store) for store in old]


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


def _read_jobs(jobs: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    try:
        for line in sys.stdin.buffer:
            jobs.put(json.loads(line))
    finally:
        # also where the engine was killed in the middle of a line
        os._exit(0)


def main() -> None:
    """Works until standard input ends."""
    without_pandas()
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
    # None: a job has ended
    jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), name="lamina-jobs", daemon=True).start()
    clock = SystemClock()
    start = jobs.get()
    assert start is not None
    maintainer = Maintainer(clock, RandomIds(), None if start["jvm"] is None else Jvm(**start["jvm"]))
    sending = threading.Lock()

    def send(told: Mapping[str, Any]) -> None:
        with sending:
            answers.write(json.dumps(told) + "\n")
            answers.flush()

    pool = MaintenancePool(maintainer.steps, start["workers"], send, lambda: jobs.put(None), clock)
    collect_seldom()
    sweeper = Sweeper(clock)
    while True:
        try:
            job = jobs.get(timeout=sweeper.due_in())
        except queue.Empty:
            sweeper.sweep()
            continue
        if job is None:
            sweeper.after_job()
        elif "left" in job:
            maintainer.leave(StoreId(**job["left"]))
        elif "hurry" in job:
            pool.hurry(job["hurry"])
        elif "hangs" in job:
            pool.cancel_memory(job["hangs"])
        else:
            pool.begin(job)


if __name__ == "__main__":
    main()
