"""What versions need, read from their manifests: several at once where a read is a request to another machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from lamina.store.files.store_files import StoreFiles

READS = 32
"""Manifests of a remote storage that are read at once for one store. Of each only the names of files are kept."""


def footprint(files: StoreFiles, attempt: str) -> list[str]:
    """The files in the store's directory that the version of an attempt needs, its own first.

    Raises:
        LaminaError: `file.*`.
    """
    return files.open_commit(attempt).footprint()


def footprints(files: StoreFiles, attempts: Sequence[str]) -> Generator[Callable[[], list[str]], None, None]:
    """For each attempt, in the order given, a call that gives its footprint, or raises as `footprint`."""
    if not files.storage.remote or len(attempts) < 2:
        # a local read takes less time than handing it to a thread
        for attempt in attempts:
            yield partial(footprint, files, attempt)
        return
    pool = ThreadPoolExecutor(min(READS, len(attempts)), thread_name_prefix="lamina-collection")
    try:
        reads: deque[Future[list[str]]] = deque()
        for attempt in attempts:
            reads.append(pool.submit(footprint, files, attempt))
            if len(reads) == READS:
                yield reads.popleft().result
        while reads:
            yield reads.popleft().result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
