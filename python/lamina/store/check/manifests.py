"""Manifests of many versions of one store, several at once where a read is a request to another machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lamina.errors import LaminaError
from lamina.storage import in_flight
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.versions.resolution import is_empty

AT_ONCE = 8
"""For one store; as many stores are checked at once."""


def manifests(
    files: StoreFiles, attempts: Iterable[str | None], kept: Callable[[Opened], Opened] = lambda opened: opened
) -> dict[str, Callable[[], Opened]]:
    """For each attempt that has a file a call that gives its manifest, or raises as `StoreFiles.open_commit`; of an
    attempt that nobody knows there is none.

    Args:
        kept: what of each is kept in memory.
    """
    known = dict.fromkeys(attempt for attempt in attempts if attempt is not None and _has_file(attempt))

    def opened(attempt: str) -> Opened:
        return kept(files.open_commit(attempt))

    return dict(zip(known, list(in_flight(files.storage, opened, known, AT_ONCE)), strict=True))


def _has_file(attempt: str) -> bool:
    try:
        return not is_empty(attempt)
    except LaminaError:
        return False
