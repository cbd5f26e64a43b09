"""The engine's side of maintenance: a queue with one job per store, and the low-priority process that does them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lamina.components import Clock
from lamina.storage import Jvm

log = logging.getLogger(__name__)

_SHORTEST_LIFE_S = 2.0
"""A process that dies sooner after its start is not started again before this time has passed."""

_END_S = 5.0
"""How long the end of the engine waits for that of its maintenance process."""

_LEFT_S = 300.0
"""How long the job of a store that was closed waits for its turn: the store may be closed and opened for each batch."""

_MOST_UNREPORTED = 10_000
"""Stores of which is remembered what nobody asked for yet; those of queries that have ended are forgotten first."""

FIGURES = ("segments", "deleted_files", "deleted_bytes")

Report = Callable[[dict[str, Any]], None]


@dataclass
class Job:
    """Maintenance of one store: what the process is told, and who hears what it reports.

    `waiting` gives, as JSON, the finished segments that the store's next commit is to refer to. It is asked when the
    job is sent: then the reports of all jobs before it were heard. `left` is when the store was closed, in seconds of
    the clock.
    """

    argument: dict[str, Any]
    report: Report
    waiting: Callable[[], list[dict[str, Any]]]
    left: float | None = None


class MaintenanceQueue:
    """Feeds the maintenance process, one job at a time, in the order in which stores asked.

    1. A store has at most one job waiting and one in work; asking again replaces the waiting one. A store that is
       closed meanwhile keeps them for a while, since it may be open again for its next commit.
    2. The process is started with the engine and started again when it dies. The job that it died in is reported as
       failed and not repeated: the store asks again soon, and a job that kills the process must not do so for ever.
    3. The process ends with the engine, since its standard input is a pipe that only the engine holds.
    4. A job that says nothing for `silence_s` seconds hangs, in a storage that does not answer: its process is killed.
       A long merge says that it goes on.
    5. A process that cannot be started is tried again; jobs wait meanwhile.
    """

    def __init__(self, clock: Clock, directory: str, silence_s: float, jvm: Jvm | None = None) -> None:
        self._clock = clock
        self._silence_s = silence_s
        self._jvm = jvm
        self._directory = directory
        self._changed = threading.Condition()
        self._waiting: OrderedDict[Hashable, Job] = OrderedDict()
        self._current: tuple[Hashable, Job] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._alive = False
        self._closed = False
        self._starts = 0
        self._done = 0
        self._failed = 0
        self._segments = 0
        self._collected: Counter[str] = Counter()
        self._unreported: OrderedDict[Hashable, Counter[str]] = OrderedDict()
        self._later: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._heard = 0.0
        self._silent = False
        self._started = 0.0
        self._last_error: dict[str, str] | None = None
        self._stopped: str | None = None
        self._busy_s = 0.0

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
            replaced = self._waiting.get(store)
            new = replaced is None
            if replaced is not None and replaced.argument.get("collect"):
                job = replace(job, argument={**job.argument, "collect": True})
            self._waiting[store] = job
            self._changed.notify_all()
            return new

    def call_later(self, store: Hashable, delay_s: float, submit: Callable[[], None]) -> None:
        """Calls `submit`, which may queue a job for the store, after `delay_s`, in place of an earlier call."""
        with self._changed:
            self._later[store] = self._clock.monotonic() + delay_s, submit
            self._changed.notify_all()

    def leave(self, store: Hashable, report: Report) -> None:
        """Says that the handle that hears `report` was closed: its waiting job is dropped if its turn does not come
        soon."""
        with self._changed:
            job = self._waiting.get(store)
            if job is not None and job.report == report:
                job.left = self._clock.monotonic()

    def pop_figures(self, store: Hashable) -> dict[str, int]:
        """What became of the store's files since the last call: segments written, files and bytes deleted."""
        with self._changed:
            found = self._unreported.pop(store, Counter())
        return {name: found[name] for name in FIGURES}

    def stats(self) -> dict[str, Any]:
        """The process, its starts, jobs waiting, in work, done and failed, the time spent, and what became of files.

        `collected` adds up all collections: files and bytes that were deleted, or looked at and kept, by class.
        """
        with self._changed:
            return {
                "pid": self.pid,
                "alive": self._alive,
                "starts": self._starts,
                "waiting": len(self._waiting),
                "working_on": self._current[1].argument["open"]["store"] if self._current else None,
                "done": self._done,
                "failed": self._failed,
                "segments": self._segments,
                "deleted_files": self._collected["delete_files"],
                "deleted_bytes": self._collected["delete_bytes"],
                "collected": dict(sorted(self._collected.items())),
                "collection_stopped": self._stopped,
                "last_error": self._last_error,
                "busy_ms": round(self._busy_s * 1000),
            }

    def close(self) -> None:
        """Ends the process at once; what it writes is published whole or not at all."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            process = self._process
        if process is not None:
            process.kill()
            # a process that waits for a dead network file system ends when that answers
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)

    def _spawn(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lamina.engine.maintenance"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=self._directory,
                # a merge frees as much as it takes; the system's allocator gives it back
                env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            )
        except OSError as error:
            # no memory, no processes, no file handles: the queries go on without maintenance until there are some again
            log.warning("the maintenance process cannot be started (%s); it is tried again", error)
            message = f"the maintenance process cannot be started: {error}"
            self._last_error = {"kind": "engine.start", "message": message}
            return
        self._alive = True
        self._starts += 1
        start = {"jvm": None if self._jvm is None else {"socket": self._jvm.socket, "token": self._jvm.token}}
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died; `_hear` sees that too
            self._process.stdin.write(json.dumps(start).encode() + b"\n")
            self._process.stdin.flush()
        threading.Thread(
            target=self._hear, args=(self._process,), name="lamina-maintenance-reports", daemon=True
        ).start()

    def _feed(self) -> None:
        while True:
            with self._changed:
                while not self._closed and self._alive and (self._current or not self._waiting):
                    if not self._call_due():
                        self._changed.wait(self._next_look())
                        self._end_if_silent()
                if self._closed:
                    return
                if not self._alive:
                    rest = self._started + _SHORTEST_LIFE_S - self._clock.monotonic()
                    if rest > 0:
                        self._changed.wait(rest)
                        continue
                    self._started = self._clock.monotonic()
                    self._spawn()
                    continue
                store, job = self._waiting.popitem(last=False)
                if job.left is not None and self._clock.monotonic() - job.left > _LEFT_S:
                    continue
                assert self._process is not None
                assert self._process.stdin is not None
                self._current = store, job
                self._work_began = self._heard = self._clock.monotonic()
                pipe = self._process.stdin
            line = json.dumps({**job.argument, "waiting": job.waiting()})
            try:
                pipe.write(line.encode() + b"\n")
                pipe.flush()
            except OSError:
                pass  # it died; `_hear` sees that too

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
        """Seconds until something is due, or the job in work counts as hanging; None where neither will be."""
        times = [max(0.0, at - self._clock.monotonic()) for at, _ in self._later.values()]
        rest = self._rest()
        return min(times if rest is None else [*times, rest], default=None)

    def _rest(self) -> float | None:
        """Seconds until the job in work counts as hanging; None where there is none, or one that is ended already."""
        if self._current is None or self._silent:
            return None
        return max(0.0, self._heard + self._silence_s - self._clock.monotonic())

    def _end_if_silent(self) -> None:
        if self._current is not None and self._rest() == 0 and self._process is not None and not self._silent:
            self._silent = True
            log.warning(
                "the maintenance process %d has said nothing for %.0f s; it is killed", self.pid, self._silence_s
            )
            self._process.kill()

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                report = json.loads(line)
            except ValueError:
                break  # it died in the middle of a report
            if "progress" in report:
                with self._changed:
                    self._heard = self._clock.monotonic()
            else:
                self._finish(report)
        code = process.wait()
        if not self._closed:
            log.warning("the maintenance process %d ended with exit code %d; it is started again", process.pid, code)
        with self._changed:
            silent, self._silent = self._silent, False
        kind, message = "engine.lost", f"the maintenance process ended with exit code {code}"
        if silent:
            kind = "engine.deadline"
            message = (
                f"the maintenance process was killed: its job said nothing for {self._silence_s:.0f} s, so the storage "
                "does not answer; the store asks again. Raise engine.requestTimeoutMs if the storage is that slow"
            )
        self._finish({"ok": False, "error": {"kind": kind, "message": message}}, died=True)

    def _add_figures(self, store: Hashable, report: Mapping[str, Any]) -> None:
        collected = report.get("collected", {})
        unreported = self._unreported.setdefault(store, Counter())
        unreported["segments"] += report.get("segment") is not None
        unreported["deleted_files"] += collected.get("delete_files", 0)
        unreported["deleted_bytes"] += collected.get("delete_bytes", 0)
        self._unreported.move_to_end(store)
        while len(self._unreported) > _MOST_UNREPORTED:
            self._unreported.popitem(last=False)

    def _finish(self, report: dict[str, Any], died: bool = False) -> None:
        with self._changed:
            finished = self._current
            if finished is not None:
                self._done += report["ok"]
                self._failed += not report["ok"]
                self._segments += report.get("segment") is not None
                self._collected.update(report.get("collected", {}))
                self._add_figures(finished[0], report)
                self._last_error = report.get("error", self._last_error)
                self._stopped = report.get("stopped", self._stopped)
                self._busy_s += self._clock.monotonic() - self._work_began
        try:
            if finished is not None:
                finished[1].report(report)
        except Exception:
            log.exception("a report of the maintenance process was not taken")
        with self._changed:
            # Only now may the next job begin, in a new process if this one died.
            self._current = None
            self._alive = self._alive and not died
            self._changed.notify_all()
