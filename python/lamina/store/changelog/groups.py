"""Groups: commits of many stores that become durable together, as one log object.

    reserve ──▶ RESERVED ──fill──▶ FILLED ──its group is durable, or failed──▶ told
                    └──────drop──▶ gone

1. A commit reserves a place before its manifest is written, since its id names the place. So a place belongs to one
   attempt from then on, whether or not it is filled.
2. A group takes no more places once it is sealed. It is published when all that were reserved until then are filled
   or dropped, and has then exactly the filled ones.
3. A group is sealed when it is as large as it may be, when one of its commits has waited for as long as it may, when a
   task waits and nothing has come for as long as is worth it, when as many stores have committed in this round as in
   the one before, or when somebody asks for it. A round ends when a store commits that has committed in it: a batch,
   as far as one can know here. Where only the batch waits, each further commit says that it goes on, and the group
   waits on, within bounds.
4. Each filled place is told once what became of its group: after the object was there, or after it failed.
5. Groups of one checkpoint are published independently of one another: a later one may be durable earlier.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format.log_object import PartId, Whole
from lamina.format.manifest import StoreIdentity

log = logging.getLogger(__name__)

_GAPS = 4
_LEAST_GAPS_S = 0.02
"""So many times the longest gap between two commits of a batch is waited for a further one, and at least this."""


def never() -> float:
    """A time that is not known to end, in seconds."""
    return math.inf


Told = Callable[[LaminaError | None], None]
"""What a filled place is told: None where its commit is durable."""


@dataclass(frozen=True)
class Sealed:
    """A group that is to be published.

    Args:
        log: id of its log object.
        commits: in the order of their numbers.
        began: when the first one had its place, in seconds of the clock.
    """

    log: str
    commits: Sequence[Whole]
    began: float


@dataclass(frozen=True)
class Policy:
    """When a group is sealed.

    Args:
        persist_delay_s: a commit for which a task waits waits no longer for others.
        batch_delay_s: one for which only the batch waits, at its end, waits so long for a further one.
        longest_s: and no longer than this in all.
        max_bytes: a group of more takes no others.
        max_parts: nor one of so many.
    """

    persist_delay_s: float
    batch_delay_s: float
    longest_s: float
    max_bytes: int
    max_parts: int = 10_000


class Place:
    """A place in a group, which its holder fills or drops."""

    def __init__(self, groups: Groups, group: _Group, number: int) -> None:
        self._groups = groups
        self._group = group
        self.id = PartId(group.log, number)

    def fill(
        self,
        chunks: Sequence[Any],
        store: StoreIdentity,
        attempt: str,
        after: int,
        to: int,
        told: Told,
        *,
        patient: bool = False,
    ) -> None:
        """Gives the commit; `told` is called once, on any thread, also before this returns.

        Args:
            patient: only the batch waits for it, at its end.
        """
        self._groups.fill(self._group, Whole(self.id.number, chunks, store, attempt, after, to), told, patient)

    def drop(self) -> None:
        """Gives the place up. Nothing happens where it is filled."""
        self._groups.drop(self._group, self.id.number)


@dataclass
class _Group:
    log: str
    began: float
    open_places: set[int] = field(default_factory=set)
    filled: dict[int, tuple[Whole, Told]] = field(default_factory=dict)
    places: int = 0
    bytes: int = 0
    task_first: float = math.inf
    task_due: float = math.inf
    """Since when a task waits, and when it has waited for as long as it may."""
    batch_due: float = math.inf
    """When nothing has come for as long as may be, where only the batch waits."""
    first: float = math.inf
    last: float = math.inf
    longest_gap: float = 0.0
    """Of the commits for which only the batch waits: when they came, and the longest time between two."""
    version: int = 0
    """To which its commits are, all of one batch."""
    sealed: bool = False
    early: bool = False
    """Whether a further commit of its batch came after it was whole."""
    durable: bool = False

    @property
    def due(self) -> float:
        """When it is sealed, whatever comes; never where nothing waits in it."""
        return min(self.task_due, self.batch_due)

    def has_task(self, now: float, policy: Policy, pause_s: float = math.inf) -> None:
        """A task waits for one of its commits from now on. Others may come until the first of them has waited for as
        long as it may, and none for longer than `pause_s`."""
        self.task_first = min(self.task_first, now)
        self.task_due = min(self.task_first + policy.persist_delay_s, now + pause_s)

    def waits_on(self, now: float, policy: Policy, *, is_most: bool) -> None:
        """After a commit for which only the batch waits; `is_most`: at least half of those that came in the round
        before have come. Then no more than a few times the longest gap is worth waiting: fewer stores may change."""
        self.longest_gap = max(self.longest_gap, now - self.last)
        self.first, self.last = min(self.first, now), now
        delay = policy.batch_delay_s
        if is_most and len(self.filled) > 1:
            delay = min(delay, max(_LEAST_GAPS_S, _GAPS * self.longest_gap))
        self.batch_due = min(now + delay, self.first + policy.longest_s)


class Groups:
    """The groups of one checkpoint in this process. Thread-safe.

    Args:
        publish: makes a group durable; called without a lock, by whatever `submit` runs it on.
        submit: has a call made soon, on another thread or on this one, or raises and has none made.
        early: is told of bytes of durable commits, once, that their group was whole before the last commit of their
            batch had come.
        pause_s: gives how long a further commit is worth waiting for while a task waits: no longer than an upload
            takes, which would cost more than an object of its own.
    """

    def __init__(
        self,
        policy: Policy,
        publish: Callable[[Sealed], None],
        submit: Callable[[Callable[[], None]], None],
        clock: Clock,
        ids: Ids,
        early: Callable[[int], None] = lambda _: None,
        pause_s: Callable[[], float] = never,
    ) -> None:
        self._policy = policy
        self._publish = publish
        self._submit = submit
        self._clock = clock
        self._ids = ids
        self._early = early
        self._pause_s = pause_s
        self._ahead: list[_Group] = []
        """Groups that became whole, of which no commit to their version or a later one has come since."""
        self._round: set[StoreIdentity] = set()
        self._round_before = 0
        self._lock = threading.Lock()
        self._open: _Group | None = None
        self._sealed: list[_Group] = []
        self._publishing: dict[str, int] = {}
        """How many commits the groups have that are being published, by their log objects."""
        self._over = threading.Condition(self._lock)
        self._ends = False
        self._lost = 0
        """Commits whose group has failed since the process is about to end."""
        self._closed = False
        self.on_due: Callable[[], None] = lambda: None
        """Called, without the lock, when a group is due at a time of which `tick` has not told."""

    @property
    def max_bytes(self) -> int:
        """A larger commit has no place here."""
        return self._policy.max_bytes

    def reserve(self) -> Place:
        """A place in the open group.

        Raises:
            LaminaError: `store.closed`.
        """
        with self._lock:
            if self._closed:
                raise LaminaError.from_kind("store.closed", "the log of the checkpoint is closed")
            if self._open is None:
                self._open = _Group(self._ids.hex128(), self._clock.monotonic())
            group = self._open
            number = group.places
            group.places += 1
            group.open_places.add(number)
            if group.places >= self._policy.max_parts:
                self._seal(group)
            return Place(self, group, number)

    def fill(self, group: _Group, commit: Whole, told: Told, patient: bool) -> None:
        """See `Place.fill`."""
        with self._lock:
            if commit.number not in group.open_places:
                raise ValueError(f"place {commit.number} of {group.log} is not open")
            group.open_places.discard(commit.number)
            group.filled[commit.number] = (commit, told)
            group.bytes += sum(map(len, commit.chunks))
            group.version = max(group.version, commit.to)
            early = self._known_early(commit.to)
            due, before = self._clock.monotonic(), group.due
            is_last = self._counted(commit.store)
            if patient:
                group.waits_on(due, self._policy, is_most=2 * len(self._round) >= self._round_before > 0)
            else:
                group.has_task(due, self._policy, self._pause_s())
            is_sooner = group.due < before
            is_full = group.bytes >= self._policy.max_bytes
            if not group.sealed and (is_full or is_last or self._ends):
                self._seal(group)
            elif is_last and self._open is not None and self._open.filled:
                # a place of an older group was filled last: nothing more comes into this one either
                self._seal(self._open)
            is_sooner = is_sooner and not group.sealed
        if early:
            self._early(early)
        if is_sooner:
            self.on_due()
        self._go_on()

    def drop(self, group: _Group, number: int) -> None:
        """See `Place.drop`."""
        with self._lock:
            group.open_places.discard(number)
            if group is self._open and not group.filled and not group.open_places:
                # the next one counts its time anew
                self._open = None
        self._go_on()

    def hurry(self, log: str) -> None:
        """Has the group of this log object wait as if a task did: somebody waits for it after all, who may keep others
        from coming. Not for none at all, since who asks may do so again for each store."""
        with self._lock:
            group = self._open
            if group is None or group.log != log or group.task_due < math.inf:
                return
            before = group.due
            group.has_task(self._clock.monotonic(), self._policy)
            is_sooner = group.due < before
        if is_sooner:
            self.on_due()

    def seal(self, log: str | None = None) -> None:
        """Seals the group of this log object, or the open one, if it is open and anything waits in it: somebody waits
        for its outcome who keeps others from coming."""
        with self._lock:
            group = self._open
            if group is not None and group.filled and log in (None, group.log):
                self._seal(group)
        self._go_on()

    def tick(self) -> float | None:
        """Seals what has waited for as long as it may; in how many seconds to look again, None where nothing waits."""
        with self._lock:
            group = self._open
            left = None
            if group is not None and group.due < math.inf:
                left = group.due - self._clock.monotonic()
                if left <= 0:
                    self._seal(group)
                    left = None
        self._go_on()
        return left

    def end(self) -> None:
        """The process ends soon: publishes what waits, and from now on each commit as it comes."""
        with self._lock:
            self._ends = True
        self.seal()

    def left(self, timeout_s: float) -> int:
        """Waits until no commit waits for its object, after `end`, at most so long; how many have none then."""
        with self._over:
            self._over.wait_for(lambda: not self._waiting(), timeout_s)
            return self._waiting() + self._lost

    def _waiting(self) -> int:
        return sum(self._held().values()) + sum(self._publishing.values())

    def close(self) -> None:
        """Publishes what waits; takes nothing more."""
        with self._lock:
            self._closed = True
            if self._open is not None:
                self._seal(self._open)
        self._go_on()

    def stats(self) -> dict[str, int]:
        """Commits that wait in open and in sealed groups."""
        with self._lock:
            return self._held()

    def _held(self) -> dict[str, int]:
        return {
            "open": 0 if self._open is None else len(self._open.filled),
            "sealed": sum(len(group.filled) for group in self._sealed),
        }

    def _counted(self, store: StoreIdentity) -> bool:
        """Whether the commit of a store is the last one of its round, as far as the round before tells."""
        if store in self._round:
            self._round_before = len(self._round)
            self._round = set()
        self._round.add(store)
        return len(self._round) == self._round_before

    def _known_early(self, version: int) -> int:
        """After a commit to this version: bytes that are durable, and early as it shows."""
        early = [one for one in self._ahead if one.version == version]
        self._ahead = [one for one in self._ahead if one.version > version]
        for one in early:
            one.early = True
        return sum(one.bytes for one in early if one.durable)

    def _seal(self, group: _Group) -> None:
        group.sealed = True
        self._open = None
        self._sealed.append(group)

    def _go_on(self) -> None:
        """Publishes the sealed groups of which every place is filled or dropped."""
        with self._lock:
            ready = [group for group in self._sealed if group.filled and not group.open_places]
            self._sealed = [group for group in self._sealed if group.open_places]
            self._publishing.update((group.log, len(group.filled)) for group in ready)
            self._ahead += ready
        for group in ready:
            try:
                self._submit(partial(self._published, group))
            except Exception as error:
                # no more threads, or closed meanwhile
                self._told(group, LaminaError.from_exception(error))

    def _published(self, group: _Group) -> None:
        error: LaminaError | None = None
        try:
            commits = [group.filled[number][0] for number in sorted(group.filled)]
            self._publish(Sealed(group.log, commits, group.began))
        except BaseException as found:
            error = LaminaError.from_exception(found)
        self._told(group, error)

    def _told(self, group: _Group, error: LaminaError | None) -> None:
        with self._lock:
            group.durable = error is None
            early = group.bytes if group.durable and group.early else 0
        if early:
            self._early(early)
        for _, told in group.filled.values():
            try:
                told(error)
            except Exception:
                log.exception("who waited for a log object could not be told")
        with self._over:
            if self._publishing.pop(group.log, None) and self._ends and error is not None:
                self._lost += len(group.filled)
            # the group is known until the next commit tells whether it was early, and its bytes no longer
            group.filled.clear()
            self._over.notify_all()
