"""The engine's side of maintenance: feeds the low-priority process with jobs, and hears what becomes of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lamina.components import Clock
from lamina.engine.maintenance_figures import MaintenanceFigures
from lamina.engine.maintenance_turns import Job, Report, Turns
from lamina.engine.storage_calls import storage_of
from lamina.storage import Jvm
from lamina.store import StoreId
from lamina.store.tables.local_disk import MAINTENANCE

log = logging.getLogger(__name__)

_SHORTEST_LIFE_S = 2.0
"""A process that dies sooner after its start is not started again before this time has passed."""

_VAIN_STARTS = 3
"""After so many starts in a row that failed nobody waits for a job: a lack of memory or of files may be a short one."""

_END_S = 1.5
"""How long the end of the engine waits for that of its maintenance process."""

_KNOWN_S = 3600.0
"""A storage of which no job was asked for so long may be one of the past."""

_SLOW_S = 10.0
"""A job that has said nothing for so long waits for its storage, perhaps for ever."""


@dataclass
class _Work:
    """A job that the process has.

    Args:
        heard: when it last said that it goes on; None while it waits there for other jobs.
        hangs: it said nothing for too long, and its store has heard that it failed.
        is_merged: its merge is over, and its store has heard what was made.
    """

    store: Hashable
    job: Job
    began: float
    heard: float | None
    hangs: bool = False
    is_merged: bool = False

    @property
    def url(self) -> str:
        return self.job.url

    def failed(self, error: Mapping[str, str]) -> dict[str, Any]:
        """The report of a job that ends without one."""
        return {"ok": False, "error": error, "merge_failed": self.job.merges and not self.is_merged}


class MaintenanceQueue:
    """Feeds the maintenance process with the jobs of stores, several at once.

    1. A store has at most one job in work; which store is next is for `Turns` to say. A store that is closed meanwhile
       keeps its jobs for a while, since it may be open again for its next commit.
    2. The process works on `workers` jobs at once. One that waits there, with long merges or for a deletion, takes no
       place among them. Where somebody waits for a job of the same store, it hears so, and waits for no long merges.
    3. The process is started with the engine and started again when it dies. The jobs that it died in are reported as
       failed and not repeated: the stores ask again soon, and a job that kills the process must not do so for ever.
    4. The process ends with the engine, since its standard input is a pipe that only the engine holds.
    5. A job that says nothing for `silence_s` seconds hangs, in a storage that does not answer: it is reported as
       failed, and others get its memory. Its place is lost until its process ends: that is killed once no other job is
       in work. After as much time again no new ones are begun until then. Those that only wait there begin anew. A long
       merge says that it goes on.
    6. A storage in which half of the workers wait for an answer for a while gets no more of them. Where there are
       several storages, none gets the last worker.
    7. A process that cannot be started is tried again; jobs wait meanwhile.
    """

    def __init__(self, clock: Clock, directory: str, silence_s: float, workers: int, jvm: Jvm | None = None) -> None:
        self._clock = clock
        self._silence_s = silence_s
        self._workers = workers
        self._jvm = jvm
        self._directory = directory
        self._own = directory
        self._changed = threading.Condition()
        self._turns = Turns()
        self._work: dict[int, _Work] = {}
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._alive = False
        self._closed = False
        self._starts = 0
        self._vain_starts = 0
        self._figures = MaintenanceFigures()
        self._later: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._killed = False
        self._started = 0.0
        self._looks_at = 0.0
        self._storages: dict[str, float] = {}
        """When a job of each was last asked for."""

    def start(self) -> None:
        """Starts the process and the thread that feeds it."""
        with self._changed:
            self._started = self._clock.monotonic()
            self._spawn()
        threading.Thread(target=self._feed, name="lamina-maintenance", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """Process id of the maintenance process; None before `start`."""
        return self._process.pid if self._process is not None else None

    def submit(self, store: Hashable, job: Job) -> bool:
        """Queues `job` for the store; False where it took the place of one that was waiting."""
        with self._changed:
            now = self._clock.monotonic()
            self._storages[storage_of(job.url)] = now
            new = self._turns.add(store, job, now)
            self._hurry(store)
            # a commit that asks wakes nobody while all workers are busy: the end of a job looks for the next
            if self._busy() < self._workers:
                self._changed.notify_all()
            return new

    def _hurry(self, store: Hashable) -> None:
        """Where somebody waits for a job of a store, the one before it is not to wait for the long merges of others."""
        if self._alive and self._turns.is_awaited(store):
            for number, work in self._work.items():
                if work.store == store and work.heard is None and not work.hangs:
                    self._lines.put(_line({"hurry": number}))

    def call_later(self, store: Hashable, delay_s: float, submit: Callable[[], None]) -> None:
        """Calls `submit`, which may queue a job for the store, after `delay_s`, in place of an earlier call."""
        with self._changed:
            at = self._clock.monotonic() + delay_s
            self._later[store] = at, submit
            if at < self._looks_at:
                self._changed.notify_all()

    def leave(self, store: Hashable, report: Report) -> None:
        """Says that the handle that hears `report` was closed: its waiting jobs are dropped if their turn does not come
        soon."""
        with self._changed:
            self._turns.leave(store, report, self._clock.monotonic())

    def tell_left(self, store: StoreId) -> None:
        """Tells the process that a store is not open here any more."""
        with self._changed:
            if self._alive:
                self._lines.put(_line({"left": asdict(store)}))

    def pop_figures(self, store: Hashable) -> dict[str, int]:
        """What became of the store's files since the last call: segments written, merges that failed, files and
        bytes deleted."""
        with self._changed:
            return self._figures.pop(store)

    def merges(self) -> dict[str, int]:
        """Merges so far: made, failed, and how long all together took."""
        with self._changed:
            return self._figures.merges()

    def stats(self) -> dict[str, Any]:
        """The process, its starts, jobs that wait, are in work and hang, and the figures of those that ended."""
        with self._changed:
            return {
                "pid": self.pid,
                "alive": self._alive,
                "starts": self._starts,
                "waiting": len(self._turns),
                "working_on": [work.job.argument["open"]["store"] for work in self._work.values() if not work.hangs],
                "hanging": sum(work.hangs for work in self._work.values()),
                **self._figures.stats(),
            }

    def kill(self) -> None:
        """Ends the process at once; what it writes is published whole or not at all."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process, and waits for that."""
        self.kill()
        process = self._process
        if process is not None:
            # a process that waits for a dead network file system ends when that answers
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)

    def _spawn(self) -> None:
        try:
            # what it leaves there goes with it
            self._own = tempfile.mkdtemp(prefix=MAINTENANCE, dir=self._directory)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lamina.engine.maintenance"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=self._own,
                # a merge frees as much as it takes; the system's allocator gives it back
                env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            )
        except OSError as error:
            self._fail_start(error)
            return
        start = {
            "workers": self._workers,
            "jvm": None if self._jvm is None else {"socket": self._jvm.socket, "token": self._jvm.token},
        }
        self._lines = queue.SimpleQueue()
        self._lines.put(_line(start))
        # who hears is told that it begins: until then it hears nothing of a process that ends
        begins: queue.SimpleQueue[bool] = queue.SimpleQueue()
        try:
            for target, arguments, name in (
                (self._hear, (self._process, begins), "lamina-maintenance-reports"),
                (self._tell, (self._process, self._lines), "lamina-maintenance-jobs"),
            ):
                threading.Thread(target=target, args=arguments, name=name, daemon=True).start()
        except RuntimeError as error:
            begins.put(False)
            self._process.kill()
            self._process.wait()
            self._fail_start(error)
            return
        self._alive = True
        self._starts += 1
        self._vain_starts = 0
        begins.put(True)

    def _fail_start(self, error: Exception) -> None:
        """No memory, no processes, no threads, no file handles: the queries go on without maintenance until there are
        some again."""
        if self._own != self._directory:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = self._directory
        self._vain_starts += 1
        log.warning("the maintenance process cannot be started (%s); it is tried again", error)
        self._figures.fail_start(f"the maintenance process cannot be started: {error}")

    def _feed(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                if not self._alive:
                    rest = self._started + _SHORTEST_LIFE_S - self._clock.monotonic()
                    if rest > 0:
                        self._changed.wait(rest)
                        continue
                    self._started = self._clock.monotonic()
                    self._spawn()
                refused = self._turns.pop_awaited() if self._vain_starts >= _VAIN_STARTS else []
            if refused:
                self._refuse(refused)
                continue
            with self._changed:
                if not self._alive or self._call_due():
                    continue
                hanging = self._newly_hanging()
                begun = None if hanging else self._begun()
                if not hanging and begun is None:
                    self._end_if_only_hanging()
                    seconds = self._next_look()
                    self._looks_at = float("inf") if seconds is None else self._clock.monotonic() + seconds
                    self._changed.wait(seconds)
                    continue
                lines = self._lines
            for work in hanging:
                self._report(work, work.failed(self._silent()))
            if begun is not None:
                number, work = begun
                job = work.job
                lines.put(_line({**job.argument, "number": number, **job.known(job.collects)}))

    def _refuse(self, jobs: Sequence[tuple[Hashable, Job]]) -> None:
        """There is no process: whoever waits for a job goes on without it. Of the merge that says nothing."""
        report = {"ok": False, "error": self._figures.stats()["last_error"], "merge_failed": False}
        for store, job in jobs:
            now = self._clock.monotonic()
            self._tell_store(_Work(store, job, began=now, heard=None), report)

    def _busy(self) -> int:
        """How many workers have a job."""
        return sum(work.heard is not None for work in self._work.values())

    def _begun(self) -> tuple[int, _Work] | None:
        """The job whose turn it is, in work from now on; None where none is to begin now."""
        now = self._clock.monotonic()
        # what waits in the process takes none of its workers; what hangs has one for good
        if self._busy() >= self._workers or self._is_draining(now):
            return None
        in_work = {work.store for work in self._work.values()}
        full = self._full_storages(now)
        found = self._turns.next(now, lambda store, _: store not in in_work, lambda url: storage_of(url) in full)
        if found is None:
            return None
        number, work = next(self._numbers), _Work(*found, began=now, heard=now)
        self._work[number] = work
        return number, work

    def _full_storages(self, now: float) -> set[str]:
        """Those that get no more workers now: they do not answer, or might not."""
        heard = [(storage_of(work.url), work.heard) for work in self._work.values() if work.heard is not None]
        places = Counter(storage for storage, _ in heard)
        slow = Counter(storage for storage, last in heard if last + _SLOW_S <= now)
        most = max(1, self._workers // 2)
        full = {storage for storage, count in slow.items() if count >= most}
        self._storages = {storage: asked for storage, asked in self._storages.items() if now - asked < _KNOWN_S}
        if len(self._storages) > 1:
            # one that does not answer is known only after a while: it must not have all places by then
            full |= {storage for storage, count in places.items() if count >= max(1, self._workers - 1)}
        return full

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
        """Writes what the process is to read, which may stop to: the pipe holds less than some jobs say."""
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it died; `_hear` sees that too
            while (line := lines.get()) is not None:
                process.stdin.write(line)
                process.stdin.flush()

    def _call_due(self) -> bool:
        """Calls what is due; whether anything was."""
        now = self._clock.monotonic()
        due = [store for store, (at, _) in self._later.items() if at <= now]
        for store in due:
            _, submit = self._later.pop(store)
            try:
                submit()
            except Exception:
                log.exception("a job that was due could not be queued")
        return bool(due)

    def _next_look(self) -> float | None:
        """Seconds until something is due, or a job in work counts as slow or hanging; None where neither will be."""
        now = self._clock.monotonic()
        times = [at for at, _ in self._later.values()]
        for work in self._work.values():
            if work.heard is not None:
                limits = (2 * self._silence_s,) if work.hangs else (_SLOW_S, self._silence_s)
                times += [work.heard + limit for limit in limits if work.heard + limit > now]
        return max(0.0, min(times) - now) if times else None

    def _newly_hanging(self) -> list[_Work]:
        """The jobs that have been silent for too long, which count as hanging from now on."""
        now = self._clock.monotonic()
        found = {
            number: work
            for number, work in self._work.items()
            if not work.hangs and work.heard is not None and work.heard + self._silence_s <= now
        }
        for number, work in found.items():
            work.hangs = True
            self._lines.put(_line({"hangs": number}))
            log.warning("the maintenance of a store of %s has said nothing for %.0f s", work.url, self._silence_s)
        return [*found.values()]

    def _is_draining(self, now: float) -> bool:
        """Whether no more jobs are begun, so that the process can be ended without harm to any."""
        return self._killed or any(
            work.hangs and (work.heard or 0.0) + 2 * self._silence_s <= now for work in self._work.values()
        )

    def _end_if_only_hanging(self) -> None:
        """Kills the process where nobody works there whom that would harm."""
        working = [work for work in self._work.values() if work.heard is not None]
        if working and all(work.hangs for work in working) and self._process is not None and not self._killed:
            self._killed = True
            log.warning("the maintenance process %d hangs; it is killed", self.pid)
            self._process.kill()

    def _silent(self) -> dict[str, str]:
        return {
            "kind": "engine.deadline",
            "message": f"a maintenance job said nothing for {self._silence_s:.0f} s, so the storage does not answer; "
            "its process is started anew, and the store asks again. Raise engine.requestTimeoutMs if the storage is "
            "that slow",
        }

    def _hear(self, process: subprocess.Popen[bytes], begins: queue.SimpleQueue[bool]) -> None:
        if not begins.get():
            return
        assert process.stdout is not None
        for line in process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                break  # it died in the middle of a report
            if "report" in told:
                self._finish(told["number"], told["report"])
            elif "merged" in told:
                self._take_merged(told["number"], told["merged"])
            else:
                self._note(told)
        code = process.wait()
        if not self._closed:
            log.warning("the maintenance process %d ended with exit code %d; it is started again", process.pid, code)
        self._lost(code)

    def _note(self, told: Mapping[str, Any]) -> None:
        """A job goes on, or waits in the process."""
        with self._changed:
            work = self._work.get(told["number"])
            if work is not None and not work.hangs:
                work.heard = None if told.get("waits") else self._clock.monotonic()
                self._hurry(work.store)
                self._changed.notify_all()

    def _lost(self, code: int) -> None:
        """The process ended: jobs that it worked on have failed, unless they did already."""
        shutil.rmtree(self._own, ignore_errors=True)
        with self._changed:
            work, killed = list(self._work.values()), self._killed
            # no job is begun in a process that has ended: nobody would hear of it
            self._killed = True
            for one in work if killed else ():
                if one.heard is None:
                    self._turns.put_back(one.store, one.job, self._clock.monotonic())
        error = {"kind": "engine.lost", "message": f"the maintenance process ended with exit code {code}"}
        for one in work:
            if not one.hangs and not (killed and one.heard is None):
                self._report(one, one.failed(error))
        with self._changed:
            # only now may others begin, in a new process
            self._lines.put(None)
            self._work.clear()
            self._alive = self._killed = False
            self._changed.notify_all()

    def _take_merged(self, number: int, merged: dict[str, Any]) -> None:
        """A job goes on after its merge."""
        with self._changed:
            work = self._work.get(number)
            if work is None or work.hangs:
                _drop(merged)
                return
            work.is_merged, work.heard = True, self._clock.monotonic()
            self._figures.add_files(work.store, merged)
        self._tell_store(work, {"ok": True, **merged})

    def _finish(self, number: int, report: dict[str, Any]) -> None:
        with self._changed:
            work = self._work.get(number)
            unheard = work is not None and not work.hangs
            if work is not None:
                work.heard = None  # it is done, and hangs no more
        if work is not None and unheard:
            self._report(work, report)
        else:
            _drop(report)
        with self._changed:
            # only now may the store's next job begin
            self._work.pop(number, None)
            self._changed.notify_all()

    def _report(self, work: _Work, report: dict[str, Any]) -> None:
        """Tells a store what became of its job."""
        with self._changed:
            self._figures.add(work.store, report, self._clock.monotonic() - work.began)
        self._tell_store(work, report)

    @staticmethod
    def _tell_store(work: _Work, report: dict[str, Any]) -> None:
        try:
            of_job = {"awaited": work.job.is_awaited, "confirmed": work.job.argument.get("confirmed")}
            work.job.report({**report, **of_job})
        except Exception:
            log.exception("a report of the maintenance process was not taken")


def _drop(report: Mapping[str, Any]) -> None:
    """Nobody takes what a job reports."""
    if report.get("in_place") is not None:
        shutil.rmtree(report["in_place"]["directory"], ignore_errors=True)


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
