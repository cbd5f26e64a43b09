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


class _Lane:
    """Jobs of one kind that wait, one a store: checkpoints take turns, and of one whoever asked first goes first."""

    def __init__(self) -> None:
        self._checkpoints: OrderedDict[str, OrderedDict[Hashable, _Waiting]] = OrderedDict()
        self._urls: dict[Hashable, str] = {}

    def __len__(self) -> int:
        return len(self._urls)

    def get(self, store: Hashable) -> _Waiting | None:
        """The job of a store."""
        url = self._urls.get(store)
        return None if url is None else self._checkpoints[url][store]

    def add(self, store: Hashable, waiting: _Waiting) -> None:
        """Lets a job wait behind others of its checkpoint; the store has none."""
        url = self._urls[store] = waiting.job.url
        self._checkpoints.setdefault(url, OrderedDict())[store] = waiting

    def to_front(self, store: Hashable) -> None:
        """Has the job of a store go before all others."""
        url = self._urls[store]
        self._checkpoints[url].move_to_end(store, last=False)
        self._checkpoints.move_to_end(url, last=False)

    def drop(self, store: Hashable) -> _Waiting | None:
        """Takes out the job of a store, which is not its checkpoint's turn."""
        url = self._urls.pop(store, None)
        if url is None:
            return None
        waiting = self._checkpoints[url].pop(store)
        if not self._checkpoints[url]:
            del self._checkpoints[url]
        return waiting

    def pop(self, store: Hashable) -> Job:
        """Takes out the job of a store, whose turn it is; then it is another checkpoint's."""
        url = self._urls[store]
        waiting = self.drop(store)
        assert waiting is not None
        if url in self._checkpoints:
            self._checkpoints.move_to_end(url)
        return waiting.job

    def first(self, now: float, may_go: MayGo, is_full: IsFull) -> Hashable | None:
        """The store whose turn it is; those are dropped that were left too long ago."""
        for url, stores in list(self._checkpoints.items()):
            if is_full(url):
                continue
            left = []
            found = None
            for store, waiting in stores.items():
                if waiting.job.left is not None and now - waiting.job.left > LEFT_S:
                    left.append(store)
                elif may_go(store, waiting.job):
                    found = store
                    break
            for store in left:
                self.drop(store)
            if found is not None:
                return found
        return None


class Turns:
    """The jobs that wait. Not thread-safe.

    1. A store has at most one compaction and one collection waiting. Asking again replaces them, and they keep their
       turns. So stores take turns, however often one of them asks.
    2. Checkpoints take turns, and of one whoever asked first goes first: a query of few stores does not wait for all of
       one that has thousands. A collection counts as asked for a minute later, so that compactions go before it, but
       not for ever.
    3. A collection compacts, too: it takes the store's waiting compaction with it.
    4. What somebody waits for waits apart from all that, one job a handle, and goes first; but of so many turns in a
       row one is another's.
    """

    def __init__(self) -> None:
        self._compactions = _Lane()
        self._collections = _Lane()
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
        for lane, collects in ((self._compactions, False), (self._collections, True)):
            if (waiting := lane.get(store)) is not None:
                waiting.job = replace(job, argument={**job.argument, "collect": collects})
        lane = self._collections if job.collects else self._compactions
        if lane.get(store) is not None:
            return False
        lane.add(store, _Waiting(job, now))
        return True

    def put_back(self, store: Hashable, job: Job, now: float) -> None:
        """Lets a job that was begun in vain wait before all others, unless the store has asked again."""
        if job.is_awaited:
            self._awaited.setdefault((store, job.report), job)
            self._awaited.move_to_end((store, job.report), last=False)
            return
        lane = self._collections if job.collects else self._compactions
        if lane.get(store) is None:
            lane.add(store, _Waiting(job, now))
        lane.to_front(store)

    def leave(self, store: Hashable, report: Report, now: float) -> None:
        """Says that the handle that hears `report` was closed: its jobs are dropped if their turn does not come
        soon, and at once where somebody waited for them."""
        self._awaited.pop((store, report), None)
        for lane in (self._compactions, self._collections):
            found = lane.get(store)
            if found is not None and found.job.report == report:
                found.job = replace(found.job, left=now)

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

    def _next_other(self, now: float, may_go: MayGo, is_full: IsFull) -> tuple[Hashable, Job] | None:
        compaction = self._compactions.first(now, may_go, is_full)
        collection = self._collections.first(now, may_go, is_full)
        if collection is None:
            return None if compaction is None else (compaction, self._compactions.pop(compaction))
        if compaction is not None and self._asked(compaction, self._compactions) <= (
            self._asked(collection, self._collections) + COLLECTION_WAITS_S
        ):
            return compaction, self._compactions.pop(compaction)
        self._compactions.drop(collection)
        return collection, self._collections.pop(collection)

    @staticmethod
    def _asked(store: Hashable, lane: _Lane) -> float:
        waiting = lane.get(store)
        assert waiting is not None
        return waiting.asked
