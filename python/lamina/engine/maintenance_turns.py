"""Whose turn it is: the jobs of stores that wait for the maintenance process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

COLLECTION_WAITS_S = 60.0
"""A collection counts as asked for so much later: compactions go first, and no collection waits for ever."""

AWAITED_IN_A_ROW = 8
"""Jobs that somebody waits for; then one goes that nobody does, so that files are collected all the same."""

LEFT_S = 300.0
"""How long the job of a store that was closed waits for its turn: the store may be closed and opened for each batch."""

Report = Callable[[dict[str, Any]], None]


@dataclass
class Job:
    """Maintenance of one store: what the process is told, and who hears what it reports.

    `known` gives, as JSON, what the engine knows of the store, for a job that collects or does not. It is asked when
    the job is sent: then the reports of all jobs before it were heard. `left` is when the store was closed, in seconds
    of the clock.
    """

    argument: dict[str, Any]
    report: Report
    known: Callable[[bool], dict[str, Any]]
    left: float | None = None

    @property
    def url(self) -> str:
        """The store's checkpoint."""
        return str(self.argument["open"]["url"])

    @property
    def collects(self) -> bool:
        """Whether it collects after it has compacted."""
        return bool(self.argument["collect"])

    @property
    def merges(self) -> bool:
        """Whether it merges, if that is worth it."""
        return bool(self.argument.get("compact") or self.argument.get("at_once"))

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for it."""
        return bool(self.argument.get("awaited"))


@dataclass
class _Waiting:
    job: Job
    asked: float


class Turns:
    """The jobs that wait. Not thread-safe.

    1. A store has at most one compaction and one collection waiting. Asking again replaces them, and they keep their
       turns. So stores take turns, however often one of them asks.
    2. Who asked first goes first. A collection counts as asked for a minute later, so that compactions go before it,
       but not for ever.
    3. A collection compacts, too: it takes the store's waiting compaction with it.
    4. What somebody waits for waits apart from all that, one job a handle, and goes first; but of so many turns in a
       row one is another's.
    """

    def __init__(self) -> None:
        self._compactions: OrderedDict[Hashable, _Waiting] = OrderedDict()
        self._collections: OrderedDict[Hashable, _Waiting] = OrderedDict()
        self._awaited: OrderedDict[tuple[Hashable, Report], Job] = OrderedDict()
        self._in_a_row = 0

    def __len__(self) -> int:
        return len(self._compactions) + len(self._collections) + len(self._awaited)

    def is_awaited(self, store: Hashable) -> bool:
        """Whether somebody waits for a job of the store."""
        return any(other == store for other, _ in self._awaited)

    def add(self, store: Hashable, job: Job, now: float) -> bool:
        """Lets a job wait; False where it took the place of one that was waiting."""
        if job.is_awaited:
            is_new = (store, job.report) not in self._awaited
            self._awaited[store, job.report] = job
            return is_new
        for waiting, collects in ((self._compactions, False), (self._collections, True)):
            if store in waiting:
                waiting[store].job = replace(job, argument={**job.argument, "collect": collects})
        waiting = self._collections if job.collects else self._compactions
        if store in waiting:
            return False
        waiting[store] = _Waiting(job, now)
        return True

    def put_back(self, store: Hashable, job: Job, now: float) -> None:
        """Lets a job that was begun in vain wait before all others, unless the store has asked again."""
        if job.is_awaited:
            self._awaited.setdefault((store, job.report), job)
            self._awaited.move_to_end((store, job.report), last=False)
            return
        waiting = self._collections if job.collects else self._compactions
        if store not in waiting:
            waiting[store] = _Waiting(job, now)
        waiting.move_to_end(store, last=False)

    def leave(self, store: Hashable, report: Report, now: float) -> None:
        """Says that the handle that hears `report` was closed: its jobs are dropped if their turn does not come
        soon, and at once where somebody waited for them."""
        self._awaited.pop((store, report), None)
        for waiting in (self._compactions, self._collections):
            found = waiting.get(store)
            if found is not None and found.job.report == report:
                found.job = replace(found.job, left=now)

    def next(self, now: float, may_go: Callable[[Hashable, Job], bool]) -> tuple[Hashable, Job] | None:
        """The job whose turn it is, which waits no longer; None where there is none.

        Args:
            may_go: whether a job of that store may be begun now.
        """
        if self._in_a_row >= AWAITED_IN_A_ROW and (other := self._next_other(now, may_go)) is not None:
            self._in_a_row = 0
            return other
        for (store, report), job in self._awaited.items():
            if may_go(store, job):
                del self._awaited[store, report]
                self._in_a_row += 1
                return store, job
        return self._next_other(now, may_go)

    def _next_other(self, now: float, may_go: Callable[[Hashable, Job], bool]) -> tuple[Hashable, Job] | None:
        compaction = self._first(self._compactions, now, may_go)
        collection = self._first(self._collections, now, may_go)
        if compaction is not None and (
            collection is None
            or self._compactions[compaction].asked <= self._collections[collection].asked + COLLECTION_WAITS_S
        ):
            return compaction, self._compactions.pop(compaction).job
        if collection is None:
            return None
        self._compactions.pop(collection, None)
        return collection, self._collections.pop(collection).job

    @staticmethod
    def _first(
        waiting: OrderedDict[Hashable, _Waiting], now: float, may_go: Callable[[Hashable, Job], bool]
    ) -> Hashable | None:
        for store, found in list(waiting.items()):
            left = found.job.left
            if left is not None and now - left > LEFT_S:
                del waiting[store]
            elif may_go(store, found.job):
                return store
        return None
