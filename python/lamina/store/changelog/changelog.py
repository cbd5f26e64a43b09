"""The changelog of a checkpoint in this process: groups of commits, and their uploads as log objects."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lamina._version import __version__
from lamina.components import Clock, Ids
from lamina.errors import LaminaError, SettingsError
from lamina.format import log_object
from lamina.settings import PREFIX, Settings
from lamina.storage import NotDurable
from lamina.store.changelog.groups import Groups, Policy, Sealed, never
from lamina.store.changelog.uploads import Retries, Uploads
from lamina.store.files.log_places import LogPlace
from lamina.store.model import judged_ms

log = logging.getLogger(__name__)

_PERSIST_DELAY_S = 0.01
"""What a task waits at most where that is not set."""

_MOST_DELAYS = 20
"""A log object for which no task waits takes commits for so many of the delays at most."""


def retries_of(settings: Settings) -> Retries:
    """How uploads are tried."""
    return Retries(
        settings.changelog_upload_attempts,
        settings.changelog_upload_timeout_ms / 1000,
        settings.changelog_hedging_enabled,
    )


def longest_s(settings: Settings) -> float:
    """How long a log object may take from its first commit on: then it has failed."""
    return retries_of(settings).longest_s + max(_persist_delay_s(settings), _longest_open_s(settings))


def _persist_delay_s(settings: Settings) -> float:
    delay_ms = settings.changelog_persist_delay_ms
    return _PERSIST_DELAY_S if delay_ms is None else delay_ms / 1000


def _longest_open_s(settings: Settings) -> float:
    return _MOST_DELAYS * settings.changelog_batch_delay_ms / 1000


def check_times(settings: Settings) -> None:
    """Raises `settings.invalid` where a log object may come after what its commits refer to was collected, or after the
    barrier gave it up."""
    longest_ms = round(1000 * longest_s(settings))
    short = []
    # of that half, a part is for a commit's arrival, and one for listings that are some seconds old
    if longest_ms > judged_ms(settings.retention_min_age_ms) * 3 // 8:
        short.append(
            f"{PREFIX}retention.minAgeMs, {settings.retention_min_age_ms} ms, to three times as much, since what its "
            "commits refer to may be collected before"
        )
    if settings.durability_level == "executor" and settings.changelog_barrier_timeout_ms <= longest_ms:
        short.append(
            f"{PREFIX}changelog.barrierTimeoutMs, {settings.changelog_barrier_timeout_ms} ms, to more than that, since "
            "its batch would fail before"
        )
    if short:
        raise SettingsError(
            "settings.invalid",
            f"a log object may take {longest_ms} ms by {PREFIX}changelog.upload.attempts, "
            f"{PREFIX}changelog.upload.timeoutMs, {PREFIX}changelog.persistDelayMs and {_MOST_DELAYS} times "
            f"{PREFIX}changelog.batchDelayMs: lower them, or raise {'; and '.join(short)}",
        )


class Changelog:
    """What the stores of one checkpoint commit into. Thread-safe.

    Args:
        place: where its log objects are written.
        checkpoint: its uuid.
        uploads: by default some as the settings say.
        written: is told the id, place, last bytes and size of each object that is durable, before its commits are.
        figures: gives what else of this process an object says.
    """

    def __init__(
        self,
        place: LogPlace,
        checkpoint: str,
        settings: Settings,
        clock: Clock,
        ids: Ids,
        uploads: Uploads | None = None,
        written: Callable[[str, LogPlace, bytes, int], None] = lambda *_: None,
        figures: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._place = place
        self._storage = place.storage
        self._checkpoint = checkpoint
        self._written = written
        self._clock = clock
        self._uploads = uploads or Uploads(retries_of(settings), settings.changelog_uploads_in_flight, clock)
        self._longest_s = longest_s(settings)
        # an entry of Spark's commit log may name an object as soon as it is there
        self._is_looked_for = settings.durability_level == "executor"
        self._figures = figures
        policy = Policy(
            _persist_delay_s(settings),
            settings.changelog_batch_delay_ms / 1000,
            _longest_open_s(settings),
            settings.changelog_max_object_bytes,
        )
        is_set = settings.changelog_persist_delay_ms is not None
        pause_s = never if is_set else self._uploads.usual_s
        self.groups = Groups(
            policy, self._publish, self._uploads.submit, clock, ids, self._uploads.count_early, pause_s
        )

    def _publish(self, group: Sealed) -> None:
        path, now, ends = self._place.path(group.log), self._clock.now_ms(), group.began + self._longest_s
        process = {"uploads": self._uploads.summary(), **self._figures()}
        writer = f"lamina {__version__}"
        chunks = [*log_object.chunks(group.log, self._checkpoint, now, writer, group.commits, process)]
        size = sum(map(len, chunks))
        end = b"".join(chunks[-2:])
        if self._storage.remote:
            # each attempt would join them otherwise
            chunks = [b"".join(chunks)]
        unsafe = threading.Event()
        try:
            self._uploads.upload(
                self._storage.location(path),
                size,
                lambda: self._attempt(path, ends, chunks, unsafe),
                commits=len(group.commits),
                ends=ends,
            )
        except LaminaError as error:
            if isinstance(error.__cause__, NotDurable):
                # whoever looks for it must not take it for durable
                self._uploads.ask(lambda: self._deleted(path))
                raise
            # a storage may fail after it did what it was asked for: nobody else writes that name; of one that flushes
            # a name says nothing, since the flush may hang
            if (
                unsafe.is_set()
                or self._storage.flushes
                or error.kind != "storage.failed"
                or not self._uploads.ask(lambda: self._is_there(path, size))
            ):
                raise
        self._written(group.log, self._place, end, size)

    def _attempt(self, path: str, ends: float, chunks: Sequence[Any], unsafe: threading.Event) -> None:
        try:
            self._storage.publish(path, self._until(ends, chunks))
        except LaminaError as error:
            if not self._is_looked_for or not isinstance(error.__cause__, NotDurable):
                raise
            # not deleted but written again: gone for certain would be worse than there and not flushed
            log.warning("%s is there, and may not last: %s", self._storage.location(path), error)
            unsafe.set()
            raise LaminaError.from_kind(error.kind, error.message) from None

    def _until(self, ends: float, chunks: Sequence[Any]) -> Iterator[Any]:
        """`chunks`, which do not end after that time: an attempt that hung until then does not publish any more."""
        yield from chunks
        if self._clock.monotonic() >= ends:
            raise LaminaError.from_kind("storage.failed", "the attempt hung until its time was over")

    def _is_there(self, path: str, size: int) -> bool:
        try:
            return self._storage.size(path) == size
        except LaminaError:
            return False

    def _deleted(self, path: str) -> bool:
        try:
            self._storage.delete_many([path])
        except LaminaError as error:
            log.warning("%s may be taken for durable, and is not: %s", self._storage.location(path), error)
            return False
        return True

    def stats(self) -> dict[str, float]:
        """Commits that wait, and what became of uploads."""
        return {**self.groups.stats(), **self._uploads.stats()}

    def pop_figures(self) -> dict[str, int]:
        """Counts of uploads since the last call, and of the commits in them."""
        return self._uploads.pop_figures()

    def close(self) -> None:
        """Publishes what waits, and takes nothing more."""
        self.groups.close()
        self._uploads.close()
