"""Uploads of log objects: tried again where they fail, and once more beside themselves where they are slow.

1. All attempts of an upload write the same bytes under the same name. A publication is whole or not at all, so
   whichever is there first is the object, and one that comes late changes nothing. No attempt can win for one commit
   and lose for another.
2. A second attempt begins beside the first one (hedging) when that takes longer than most uploads of late, and a third
   when the second one is slow, too. Together they are less than one upload in twenty.
3. An attempt that takes too long counts as failed, and another one begins; if it ends well all the same, that counts.
   Its time counts from when it was asked for: what hangs may have all threads. One that has none when its upload is
   over is not made.
4. An upload is durable with its first attempt that says so. It has failed when so many attempts have failed, with the
   error of the last one; at once where one has written what may not last; and when its time is over, also while it
   waits for its turn: what its commits refer to may be collected some time after that.
5. At most so many uploads are in flight; others wait in their order.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.storage import NotDurable
from lamina.store.files.latencies import SLOW_PERCENT, Latencies

log = logging.getLogger(__name__)

_COUNTED = (
    "uploads",
    "commits",
    "bytes",
    "early_bytes",
    "attempts",
    "again",
    "failed",
    "hedges",
    "hedges_won",
    "upload_ms",
    "upload_p50_ms",
    "upload_p99_ms",
    "queued_ms",
    "queue_depth",
)
"""What became of uploads: `early_bytes` are those of commits whose object was whole before the last of their batch
came, `again` attempts after a failed one, and `queued_ms` how long uploads waited for their turn; `queue_depth` adds up
how many others waited when one began. `upload_p50_ms` and `upload_p99_ms` add up, over all uploads, what those of late
had taken when each was over: divided by `uploads` they are percentiles, also of several processes together. An object
that is there after all attempts have failed counts as failed, and with its early bytes."""

_SUMMARY = (
    "uploads",
    "bytes",
    "early_bytes",
    "again",
    "failed",
    "hedges",
    "hedges_won",
    "queued",
    "p50_ms",
    "p99_ms",
)

_PERCENTS = (SLOW_PERCENT, 92.0)
"""Of the uploads of late: when the first attempt takes longer than so many of them a second one begins, and a third one
when the second does. What was slow counts as slow whichever attempt ended it: so 4.5 % are, and 8 % of these."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True)
class Retries:
    """How an upload is tried.

    Args:
        attempts: that may fail, each with those beside it.
        timeout_s: of one attempt.
        hedges: whether a slow one has others beside it.
    """

    attempts: int
    timeout_s: float
    hedges: bool

    @property
    def longest_s(self) -> float:
        """What an upload takes at most, with the pauses between its attempts."""
        return self.attempts * self.timeout_s + (self.attempts - 1) * _LONGEST_PAUSE_S


class Uploads:
    """The uploads of this process into one storage. Thread-safe.

    Args:
        in_flight: so many at once.
    """

    def __init__(self, retries: Retries, in_flight: int, clock: Clock) -> None:
        self._retries = retries
        self._clock = clock
        self._waits = ThreadPoolExecutor(in_flight, thread_name_prefix="lamina-log")
        # an attempt that hangs keeps its thread, and none of those that others need
        requests = retries.attempts + len(_PERCENTS)
        self._attempts = ThreadPoolExecutor(in_flight * requests, thread_name_prefix="lamina-log-attempt")
        self._pause = threading.Event()
        self._lock = threading.Lock()
        self._queued = 0
        self._latencies = Latencies()
        self._usual_s = math.inf
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._told = dict.fromkeys(_COUNTED, 0)

    def submit(self, work: Callable[[], None]) -> None:
        """Has a call made when one of the places is free, or raises and has none made."""
        asked = self._clock.monotonic()
        left: list[None] = []

        def leave() -> bool:
            """Whether it was not left before, and so who asks decides: who has no thread may have queued it all the
            same."""
            with self._lock:
                if not left:
                    left.append(None)
                    self._queued -= 1
                    return True
                return False

        def begin() -> None:
            if not leave():
                return
            self._count("queued_ms", round(1000 * (self._clock.monotonic() - asked)))
            self._count("queue_depth", self._queued)
            work()

        with self._lock:
            self._queued += 1
        try:
            self._waits.submit(begin)
        except BaseException:
            if leave():
                raise

    def upload(
        self,
        what: str,
        size: int,
        publish: Callable[[], object],
        *,
        commits: int = 1,
        ends: float | None = None,
    ) -> None:
        """Returns when an attempt has published the object of `size` bytes; `what` is how it is named to people.

        Args:
            commits: that are in it.
            ends: when it counts as failed, whatever goes on, in seconds of the clock; by default when all attempts have
                had their time.
        Raises:
            LaminaError: of the last attempt; `storage.failed` where none ended in time.
        """
        started = self._clock.monotonic()
        ends = started + self._retries.longest_s if ends is None else ends
        running: dict[Future[object], float] = {}
        late: set[Future[object]] = set()
        hedges: set[Future[object]] = set()
        begun = failed = 0
        error: BaseException | None = None
        has_threads = True

        def begin() -> Future[object]:
            refused = threading.Event()
            try:
                # who has no thread may have queued it all the same
                future = self._attempts.submit(lambda: None if refused.is_set() else publish())
            except BaseException:
                refused.set()
                raise
            self._count("attempts")
            running[future] = self._clock.monotonic()
            return future

        try:
            while True:
                now = self._clock.monotonic()
                if now >= ends:
                    self._count("failed")
                    raise _failure(what, begun, error or TimeoutError("its time was over"))
                if not running:
                    begun += 1
                    if begun > 1:
                        self._count("again")
                    try:
                        begin()
                    except RuntimeError as refused:
                        # the system has no further thread
                        error, failed = refused, failed + 1
                hedge_at = math.inf
                if running and has_threads and (not hedges or not failed):
                    hedge_at = max(running.values()) + self._hedge_after_s(len(hedges))
                deadlines = [ends, hedge_at, *(began + self._retries.timeout_s for began in running.values())]
                done: set[Future[object]] = set()
                if running:
                    done, _ = wait([*running, *late], max(0.0, min(deadlines) - now), FIRST_COMPLETED)
                for future in done:
                    found = future.exception()
                    if found is None:
                        self._over(size, commits, started, future in hedges)
                        return
                    if isinstance(found.__cause__, NotDurable):
                        self._count("failed")
                        raise found
                    if future in late:
                        # it has been counted
                        late.discard(future)
                        continue
                    del running[future]
                    error = found
                    failed += 1
                now = self._clock.monotonic()
                for future, began in list(running.items()):
                    if now - began >= self._retries.timeout_s:
                        del running[future]
                        late.add(future)
                        failed += 1
                        error = TimeoutError(f"an attempt took longer than {self._retries.timeout_s:g} s")
                if running:
                    if now >= hedge_at and not done:
                        try:
                            hedges.add(begin())
                        except RuntimeError:
                            has_threads = False
                        else:
                            self._count("hedges")
                    continue
                if begun >= self._retries.attempts:
                    self._count("failed")
                    raise _failure(what, failed, error)
                self._pause.wait(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (begun - 1)))
        finally:
            # those that have no thread yet would keep the next uploads from theirs
            for one in (*running, *late):
                one.cancel()

    def usual_s(self) -> float:
        """How long an upload took of late by the median, in seconds; for ever while few are known."""
        return self._usual_s

    def ask(self, call: Callable[[], bool]) -> bool:
        """What `call` gives; False where it takes longer than an attempt may."""
        try:
            return self._attempts.submit(call).result(self._retries.timeout_s)
        except futures.TimeoutError:
            # another class than Python's own up to 3.10
            return False

    def count_early(self, size: int) -> None:
        """So many bytes of durable commits were in objects that were whole before the last of their batch came."""
        self._count("early_bytes", size)

    def stats(self) -> dict[str, float]:
        """Counts, how many uploads wait for their turn, and the median and the 99th percentile of what uploads took of
        late, in milliseconds."""
        p50, p99 = self._latencies.percentiles(50, 99)
        with self._lock:
            found: dict[str, float] = {"queued": self._queued, **self._counts}
        return {**found, "p50_ms": 1000 * p50, "p99_ms": 1000 * p99}

    def summary(self) -> dict[str, int]:
        """Of the above what a log object carries for people, in whole milliseconds."""
        found = self.stats()
        return {name: round(found[name]) for name in _SUMMARY}

    def pop_figures(self) -> dict[str, int]:
        """The counts since the last call."""
        with self._lock:
            found = {name: count - self._told[name] for name, count in self._counts.items()}
            self._told = dict(self._counts)
        return found

    def close(self) -> None:
        """Takes no more; does not wait for what hangs."""
        self._pause.set()
        self._waits.shutdown(wait=True)
        self._attempts.shutdown(wait=False, cancel_futures=True)

    def _hedge_after_s(self, hedges: int) -> float:
        """After how long another attempt begins beside the newest one, where so many did; never where none does."""
        if not self._retries.hedges or hedges == len(_PERCENTS):
            return math.inf
        return self._latencies.slow_s(_PERCENTS[hedges])

    def _over(self, size: int, commits: int, started: float, hedge_won: bool) -> None:
        took = self._clock.monotonic() - started
        self._latencies.add(took)
        p50, p99 = self._latencies.percentiles(50, 99)
        if self._latencies.are_known:
            self._usual_s = p50
        with self._lock:
            self._counts["uploads"] += 1
            self._counts["commits"] += commits
            self._counts["bytes"] += size
            self._counts["upload_ms"] += round(1000 * took)
            self._counts["upload_p50_ms"] += round(1000 * p50)
            self._counts["upload_p99_ms"] += round(1000 * p99)
            self._counts["hedges_won"] += hedge_won

    def _count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name] += by


def _failure(what: str, failed: int, error: BaseException | None) -> LaminaError:
    if isinstance(error, LaminaError):
        return LaminaError.from_kind(error.kind, f"{error.message} (after {failed} attempts)")
    return LaminaError.from_kind("storage.failed", f"{what} was not written in {failed} attempts: {error}")
