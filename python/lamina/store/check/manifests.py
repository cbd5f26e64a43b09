"""Manifests of many versions of one store, several at once where a read is a request to another machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from lamina.errors import LaminaError
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.versions.resolution import is_empty

_AT_ONCE = 8
"""For one store; as many stores are checked at once."""


def manifests(files: StoreFiles, attempts: Iterable[str | None]) -> dict[str, Callable[[], Opened]]:
    """For each attempt that has a file a call that gives its manifest, or raises as `StoreFiles.open_commit`; of an
    attempt that nobody knows there is none."""
    known = dict.fromkeys(attempt for attempt in attempts if attempt is not None and _has_file(attempt))
    if not files.storage.remote or len(known) < 2:
        return {attempt: partial(files.open_commit, attempt) for attempt in known}
    with ThreadPoolExecutor(min(_AT_ONCE, len(known)), thread_name_prefix="lamina-check") as threads:
        reads = {attempt: threads.submit(files.open_commit, attempt) for attempt in known}
    return {attempt: read.result for attempt, read in reads.items()}


def _has_file(attempt: str) -> bool:
    try:
        return not is_empty(attempt)
    except LaminaError:
        return False
