"""What a job publishes of its tables: a few at once, as many as there is memory for, and young until a list names them.

A collector takes a table that nothing refers to for old by its time of publication. So of many tables those that are
there first are stamped while the last ones are on their way.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from lamina.components import Clock
from lamina.format.blocks import CHECKSUM_BYTES
from lamina.storage import all_of
from lamina.store.files.store_files import StoreFiles
from lamina.store.materialization.materializer import fresh_ms, is_fresh, is_in_time, is_young
from lamina.store.memory.budget import Share

_PIECE_BYTES = 4 << 20
_AT_ONCE = 4
_STAMPED_AT_ONCE = 8

_MOST_BYTES = 80 << 20
"""What an upload has in memory at most: a part of a large object, the same as it is sent, and pieces of the next."""


def upload_bytes(size: int) -> int:
    """What the upload of a table to a remote storage has in memory."""
    return min(2 * size, _MOST_BYTES)


def publish_table(files: StoreFiles, local: str, path: str, worked: Callable[[], None]) -> tuple[int, str]:
    """Publishes a local file under a name of the store's directory; gives its size and checksum."""
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        with open(local, "rb") as source:
            while piece := source.read(_PIECE_BYTES):
                digest.update(piece)
                worked()
                yield piece

    return files.publish(path, pieces()), digest.digest()[:CHECKSUM_BYTES].hex()


def stamp(files: StoreFiles, names: Sequence[str], worked: Callable[[], None]) -> bool:
    """Stamps files of the store's directory, on a remote storage several at once; whether the storage could."""

    def stamped(name: str) -> bool:
        done = files.stamp(name)
        worked()
        return done

    return all(all_of(files.storage, stamped, names, _STAMPED_AT_ONCE))


class TableUploads:
    """The uploads of one job.

    Args:
        share: what they have in memory is taken from it where the storage is remote.
        min_age_ms: after which a collector deletes what nothing refers to.
        worked: called when something went on; from any thread.
    """

    def __init__(
        self, files: StoreFiles, share: Share, clock: Clock, min_age_ms: int, worked: Callable[[], None]
    ) -> None:
        self._files = files
        self._share = share
        self._clock = clock
        self._min_age_ms = min_age_ms
        self._worked = worked
        self._times: dict[str, int] = {}
        self._stamps = True

    @property
    def published_ms(self) -> int:
        """When the first of them was published: before its publication ended, never after; now if there are none."""
        return min(self._times.values(), default=self._clock.now_ms())

    def publish(self, tables: Mapping[str, str]) -> Mapping[str, tuple[int, str]]:
        """Publishes tables, each under a name of the store's directory; gives their sizes and checksums.

        Args:
            tables: local files, by that name.
        Raises:
            LaminaError: `storage.*`.
        """
        waiting = deque(tables.items())
        running: dict[Future[tuple[int, str]], tuple[str, int]] = {}
        published: dict[str, tuple[int, str]] = {}
        longest_s = max(1.0, fresh_ms(self._min_age_ms) / 1000)
        threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="lamina-tables")
        try:
            while waiting or running:
                while waiting and len(running) < _AT_ONCE:
                    path, local = waiting[0]
                    needed = upload_bytes(os.path.getsize(local)) if self._files.storage.remote else 0
                    if needed and running and not self._share.try_take(needed):
                        break
                    if needed and not running:
                        self._share.take(needed)
                    waiting.popleft()
                    self._times[path] = self._clock.now_ms()
                    upload = threads.submit(publish_table, self._files, local, path, self._worked)
                    running[upload] = path, needed
                for done in wait(running, longest_s, FIRST_COMPLETED).done:
                    path, held = running.pop(done)
                    self._share.give(held)
                    published[path] = done.result()
                self._keep_young([*published])
        finally:
            threads.shutdown(cancel_futures=True)
        return published

    def _keep_young(self, published: Sequence[str]) -> None:
        """As `kept_young` of each, but that one that is too old for a stamp is left so: then the list is made anew."""
        times, min_age_ms, now = self._times, self._min_age_ms, self._clock.now_ms()
        old = [
            path
            for path in published
            if not is_fresh(times[path], min_age_ms, now) and is_young(times[path], min_age_ms, now)
        ]
        if old and self._stamps:
            self._stamps = stamp(self._files, old, self._worked)
            ended = self._clock.now_ms()
            if self._stamps:
                times.update((path, now) for path in old if is_in_time(times[path], min_age_ms, ended))
