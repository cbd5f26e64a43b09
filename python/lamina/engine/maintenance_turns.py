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


MayGo = Callable[[Hashable, Job], bool]
"""Whether a job of a store may be begun now."""

IsFull = Callable[[str], bool]
"""Whether a checkpoint, by its URL, is on a storage that gets no more workers now."""


class _Checkpoint:
    """The jobs that wait of one checkpoint and that nobody waits for: whoever asked first goes first, and compactions
    go before collections, but not for ever."""

    def __init__(self) -> None:
        self._compactions: OrderedDict[Hashable, _Waiting] = OrderedDict()
        self._collections: OrderedDict[Hashable, _Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._compactions) + len(self._collections)

    def add(self, store: Hashable, job: Job, now: float) -> bool:
        """See `Turns.add`."""
        for waiting, collects in ((self._compactions, False), (self._collections, True)):
            if store in waiting:
                waiting[store].job = _in_place_of(waiting[store].job, job, collects)
        waiting = self._collections if job.collects else self._compactions
        if store in waiting:
            return False
        waiting[store] = _Waiting(job, now)
        return True

    def put_back(self, store: Hashable, job: Job, now: float) -> None:
        """See `Turns.put_back`."""
        waiting = self._collections if job.collects else self._compactions
        if store not in waiting:
            waiting[store] = _Waiting(job, now)
        waiting.move_to_end(store, last=False)

    def leave(self, store: Hashable, report: Report, now: float) -> None:
        """See `Turns.leave`."""
        for waiting in (self._compactions, self._collections):
            found = waiting.get(store)
            if found is not None and found.job.report == report:
                found.job = replace(found.job, left=now)

    def next(self, now: float, may_go: MayGo) -> tuple[Hashable, Job] | None:
        """The job whose turn it is, which waits no longer."""
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
    def _first(waiting: OrderedDict[Hashable, _Waiting], now: float, may_go: MayGo) -> Hashable | None:
        """The first store that may go; those before it go out that were left too long ago."""
        left = []
        found = None
        for store, one in waiting.items():
            if one.job.left is not None and now - one.job.left > LEFT_S:
                left.append(store)
            elif may_go(store, one.job):
                found = store
                break
        for store in left:
            del waiting[store]
        return found


def _in_place_of(waiting: Job, job: Job, collects: bool) -> Job:
    """`job`, which merges what the one that waits was to merge, too: who asked for that does not ask again."""
    merges = {name: bool(job.argument.get(name) or waiting.argument.get(name)) for name in ("compact", "at_once")}
    return replace(job, argument={**job.argument, **merges, "collect": collects})


class Turns:
    """The jobs that wait. Not thread-safe.

    1. A store has at most one compaction and one collection waiting. Asking again replaces them, and they keep their
       turns, and the merge that was asked for. So stores take turns, however often one of them asks.
    2. Checkpoints take turns: a query of few stores does not wait for all of one that has thousands. Of one whoever
       asked first goes first. A collection counts as asked for a minute later, so that compactions go before it, but
       not for ever.
    3. A collection compacts, too: it takes the store's waiting compaction with it.
    4. What somebody waits for waits apart from all that, one job a handle, and goes first; but of so many turns in a
       row one is another's.
    """

    def __init__(self) -> None:
        self._checkpoints: OrderedDict[str, _Checkpoint] = OrderedDict()
        self._awaited: OrderedDict[tuple[Hashable, Report], Job] = OrderedDict()
        self._in_a_row = 0

    def __len__(self) -> int:
        return sum(map(len, self._checkpoints.values())) + len(self._awaited)

    def is_awaited(self, store: Hashable) -> bool:
        """Whether somebody waits for a job of the store."""
        return any(other == store for other, _ in self._awaited)

    def add(self, store: Hashable, job: Job, now: float) -> bool:
        """Lets a job wait; False where it took the place of one that was waiting."""
        if job.is_awaited:
            is_new = (store, job.report) not in self._awaited
            self._awaited[store, job.report] = job
            return is_new
        return self._checkpoint(job).add(store, job, now)

    def pop_awaited(self) -> list[tuple[Hashable, Job]]:
        """The jobs that somebody waits for, and their stores; they wait no longer."""
        found = [(store, job) for (store, _), job in self._awaited.items()]
        self._awaited.clear()
        return found

    def put_back(self, store: Hashable, job: Job, now: float) -> None:
        """Lets a job that was begun in vain wait before all others, unless the store has asked again."""
        if job.is_awaited:
            self._awaited.setdefault((store, job.report), job)
            self._awaited.move_to_end((store, job.report), last=False)
            return
        self._checkpoint(job).put_back(store, job, now)
        self._checkpoints.move_to_end(job.url, last=False)

    def leave(self, store: Hashable, report: Report, now: float) -> None:
        """Says that the handle that hears `report` was closed: its jobs are dropped if their turn does not come
        soon, and at once where somebody waited for them."""
        self._awaited.pop((store, report), None)
        for checkpoint in self._checkpoints.values():
            checkpoint.leave(store, report, now)

    def next(self, now: float, may_go: MayGo, is_full: IsFull = lambda _: False) -> tuple[Hashable, Job] | None:
        """The job whose turn it is, which waits no longer; None where there is none."""
        if self._in_a_row >= AWAITED_IN_A_ROW and (other := self._next_other(now, may_go, is_full)) is not None:
            self._in_a_row = 0
            return other
        for (store, report), job in self._awaited.items():
            if not is_full(job.url) and may_go(store, job):
                del self._awaited[store, report]
                self._in_a_row += 1
                return store, job
        return self._next_other(now, may_go, is_full)

    def _checkpoint(self, job: Job) -> _Checkpoint:
        return self._checkpoints.setdefault(job.url, _Checkpoint())

    def _next_other(self, now: float, may_go: MayGo, is_full: IsFull) -> tuple[Hashable, Job] | None:
        for url, checkpoint in list(self._checkpoints.items()):
            found = None if is_full(url) else checkpoint.next(now, may_go)
            if not checkpoint:
                del self._checkpoints[url]
            elif found is not None:
                self._checkpoints.move_to_end(url)
            if found is not None:
                return found
        return None
