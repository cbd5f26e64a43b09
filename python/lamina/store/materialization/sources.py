"""What merges read. Of a storage of which each read is a request, small parts are read ahead, side by side."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa

from lamina.format.manifest import FILE, ColumnFamily, Reference
from lamina.storage.in_flight import in_flight
from lamina.store.files.store_files import StoreFiles
from lamina.store.memory.budget import Share

_AHEAD = 16
_SMALL_BYTES = 256 << 10
"""Parts that are under way at once, and of how many bytes at most; larger ones are read piece by piece."""


def read_sources(
    files: StoreFiles,
    references: Sequence[Reference],
    families: Sequence[ColumnFamily],
    share: Share,
    at_once: int = _AHEAD,
) -> Generator[tuple[bool, Iterator[pa.RecordBatch]]]:
    """For each reference, in this order, whether it is sorted with each key once, and its verified entries.

    Who stops early closes it, and the share.

    Args:
        share: what is read ahead is taken from it; where that is not to be had, nothing is.
        at_once: how many are under way.
    """
    small = [one for one in references if _is_small(one)] if files.storage.remote else []
    # where it is a part of a file, that may be read whole
    room = sum(sorted(max(files.reading_bytes(one), _SMALL_BYTES + one.length) for one in small)[-at_once:])
    if len(small) < 2 or not share.try_take(room):
        small, room = [], 0
    reads = in_flight(files.storage, files.read, small, at_once)
    try:
        for one in references:
            read = next(reads) if small and _is_small(one) else None
            yield one.is_sorted, files.entries(one, families, read)
    finally:
        reads.close()
    share.give(room)


def _is_small(reference: Reference) -> bool:
    """Whether it is read whole as soon as its turn comes."""
    return not reference.is_sorted and reference.kind != FILE and reference.length <= _SMALL_BYTES
