"""Several maintenance jobs at once: workers, a turn for long merges, and deletions of many stores in one request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lamina.components import Clock
from lamina.storage import Storage
from lamina.store.collection.collector import by_storage
from lamina.store.collection.known_others import KnownOthers, newer_run
from lamina.store.memory.budget import Share

_PROGRESS_S = 1.0

_AT_ONCE = 1000
"""Files that are deleted before it is said again that the job goes on: one request to an object store."""

Progress = Callable[[int, int], None]


class Turn(Enum):
    """What a job may have to wait for before it goes on."""

    LONG_MERGE = "long merge"
    WORKER = "worker"


class Deletion:
    """Files that the collection of one store is to delete.

    Args:
        others: what is known of others of the checkpoint.
        files: their paths, and the storage of each.
    """

    def __init__(self, others: KnownOthers, files: Sequence[tuple[Storage, str]]) -> None:
        self.others = others
        self.files = files
        self.stopped: str | None = None
        self.error: Exception | None = None

    def outcome(self) -> str | None:
        """Why nothing was deleted, or None where it was; raises what the storage raised."""
        if self.error is not None:
            raise self.error
        return self.stopped


def delete(deletions: Sequence[Deletion], goes_on: Callable[[], None] = lambda: None) -> None:
    """Deletes files of stores of one checkpoint, unless a newer run of the query is there by now.

    Args:
        goes_on: called after each part of them.
    """
    first = deletions[0]
    try:
        # what was known when the files were looked at may be old news
        standing = first.others.now()
        if standing is not None and standing.newer is not None:
            for deletion in deletions:
                deletion.stopped = newer_run(standing.newer)
        else:
            for storage, paths in by_storage(file for deletion in deletions for file in deletion.files).items():
                for start in range(0, len(paths), _AT_ONCE):
                    storage.delete_many(paths[start : start + _AT_ONCE])
                    goes_on()
    except Exception as error:
        # all of them ask again
        for deletion in deletions:
            deletion.error = error


@dataclass(frozen=True)
class Merged:
    """A job goes on after its merge; `report` is what it has to say so far, and says no more of in the end."""

    report: Mapping[str, Any]


Steps = Generator[Turn | Deletion | Merged | Share, bool | None, dict[str, Any]]
"""A job: where it yields something it goes on when its turn has come or the deletion is made; gives its report. It is
sent False where it goes on before its turn, since somebody waits for it. A share is what it takes memory from."""


@dataclass
class _Running:
    """A job in work."""

    number: int
    steps: Steps
    hurries: bool = False
    turn: Future[None] | None = None
    """For which it waits."""
    share: Share | None = None
    hangs: bool = False


class MaintenancePool:
    """Works on several jobs at once.

    1. At most `workers` threads work on jobs. A job that waits for others has none of them.
    2. Long merges are made one after the other, in a thread of their own: short jobs always get through, and what
       merges have in memory is bounded. One for which somebody waits meanwhile goes on as a short one.
    3. Collections that want to delete while files of their checkpoint are being deleted wait, and are next, all
       together: one look at the runs and one request for many stores.
    4. What a job that hangs has in memory is counted no more: jobs on other storages do not wait for it.

    Args:
        steps: begins a job, given what it hears progress by.
        send: takes what is to be told of a job.
        ended: called after each job.
    """

    def __init__(
        self,
        steps: Callable[[Mapping[str, Any], Progress], Steps],
        workers: int,
        send: Callable[[Mapping[str, Any]], None],
        ended: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._steps = steps
        self._send = send
        self._ended = ended
        self._clock = clock
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="lamina-maintenance")
        self._long_merges = ThreadPoolExecutor(1, thread_name_prefix="lamina-long-merge")
        self._lock = threading.Lock()
        self._gathered: dict[KnownOthers, list[tuple[_Running, Deletion]]] = {}
        self._jobs: dict[int, _Running] = {}

    def begin(self, job: Mapping[str, Any]) -> None:
        """Works on a job as soon as a worker is free."""
        number = int(job["number"])
        is_due = self._now_and_then()

        def progress(done: int, _: int) -> None:
            if is_due():
                self._goes_on(number, done)

        running = _Running(number, self._steps(job, progress))
        with self._lock:
            self._jobs[number] = running
        self._workers.submit(self._advance, running)

    def hurry(self, number: int) -> None:
        """Somebody waits for a job: it does not wait for the long merges of others."""
        with self._lock:
            running = self._jobs.get(number)
            if running is not None:
                running.hurries = True
                # once: it may be said again, while the job waits for something else
                turn, running.turn = running.turn, None
                if turn is not None and turn.cancel():
                    self._workers.submit(self._resume, running, False)

    def cancel_memory(self, number: int) -> None:
        """A job hangs, perhaps for good: others get what it has in memory, and if it goes on it takes no more."""
        with self._lock:
            running = self._jobs.get(number)
            if running is not None:
                running.hangs = True
                self._cancel_if_hanging(running)

    @staticmethod
    def _cancel_if_hanging(running: _Running) -> None:
        if running.hangs and running.share is not None:
            running.share.cancel()

    def _now_and_then(self) -> Callable[[], bool]:
        """Says whether enough time has passed since it last said so, or since now."""
        sent = self._clock.monotonic()

        def is_due() -> bool:
            nonlocal sent
            now = self._clock.monotonic()
            if now - sent < _PROGRESS_S:
                return False
            sent = now
            return True

        return is_due

    def _advance(self, running: _Running, has_turn: bool | None = None) -> None:
        try:
            wait = running.steps.send(has_turn)
            while isinstance(wait, Merged | Share):
                if isinstance(wait, Merged):
                    self._send({"number": running.number, "merged": wait.report})
                else:
                    with self._lock:
                        running.share = wait
                        self._cancel_if_hanging(running)
                wait = running.steps.send(None)
        except StopIteration as end:
            with self._lock:
                del self._jobs[running.number]
            self._send({"number": running.number, "report": end.value})
            self._ended()
            return
        if isinstance(wait, Deletion):
            self._delete(running, wait)
            return
        self._waits(running)
        with self._lock:
            if wait is Turn.LONG_MERGE and not running.hurries:
                running.turn = self._long_merges.submit(self._resume, running, True)
            else:
                self._workers.submit(self._resume, running, wait is Turn.WORKER)

    def _resume(self, running: _Running, has_turn: bool) -> None:
        self._goes_on(running.number, 0)
        self._advance(running, has_turn)

    def _delete(self, running: _Running, deletion: Deletion) -> None:
        with self._lock:
            gathered = self._gathered.get(deletion.others)
            if gathered is not None:
                # before whoever deletes now can say that it goes on
                self._waits(running)
                gathered.append((running, deletion))
                return
            self._gathered[deletion.others] = []
        self._delete_together(deletion.others, [(running, deletion)])

    def _delete_together(self, others: KnownOthers, jobs: Sequence[tuple[_Running, Deletion]]) -> None:
        is_due = self._now_and_then()

        def all_go_on() -> None:
            for running, _ in jobs:
                self._goes_on(running.number, 0)

        all_go_on()
        delete([deletion for _, deletion in jobs], lambda: all_go_on() if is_due() else None)
        with self._lock:
            gathered = self._gathered.pop(others)
            if gathered:
                self._gathered[others] = []
        if gathered:
            self._workers.submit(self._delete_together, others, gathered)
        for running, _ in jobs:
            self._workers.submit(self._advance, running)

    def _goes_on(self, number: int, done: int) -> None:
        self._send({"number": number, "progress": done})

    def _waits(self, running: _Running) -> None:
        self._send({"number": running.number, "waits": True})
