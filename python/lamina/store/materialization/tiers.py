"""Which references of a version are worth a merge.

Tiers are lazy. Nothing is merged while a version consists of at most log2(version) files. When there are more, the
newest few are merged, three or more and so many that no more than log2(version) are left, up to the first that is
followed by an older one at least as large as all of them together: sizes keep growing from new to old, a large old
segment is left alone until as much has been written after it, and an entry of equal increments is rewritten less often
than log2(versions) times. A merge is asked for by a commit that stands on the version, so its own increment and that of
the next commit come on top: versions consist of at most 2 + log2(version) files. A merge of more files than that which
`_LONG` versions wrote begins up to `_AHEAD` files sooner, since versions may pass before it is done. A large version
consists of up to `_FEW` files before any are merged: a preload of a few batches stays as it was written, and what
follows it is not merged again with every commit. Where older files leave room for few newer ones, these are rewritten
more often: once room for one file more would have saved as many bytes of rewriting as the next two older ones have, the
two are merged with them, and so are those behind them that are then smaller than all newer ones together. All
references are merged when most of their rows are dead, which costs no more than what was written since the last time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from lamina.format.manifest import CommitManifest, Reference
from lamina.store.versions.chain import mergeable

_LEAST_MERGED = 3
"""Merging only two would come up again with the next commit but one."""

_LONG = 32
_AHEAD = 3

_FEW = 9
_LARGE_BYTES = 16 << 20
_LARGE_ROWS = 1 << 18
"""A version of more bytes or rows is large."""


def pick(references: Sequence[Reference], live_rows: int) -> Sequence[Reference]:
    """The newest references that are worth a merge; empty where none are."""
    references = mergeable(references)
    if len(references) > 1 and are_mostly_dead(references, live_rows):
        return references
    if len(references) < 2:
        return ()
    lengths = [*accumulate(reference.length for reference in references)]
    count = _newest(references, lengths, _LEAST_MERGED)
    most = _most_files(references, references[:count])
    if len(references) <= most:
        return ()
    # where more versions pass each merge than it merges files, those merged alone would be more and more
    count = _newest(references, lengths, max(count, len(references) - most + 1))
    while count < len(references):
        older = sum(reference.length for reference in references[count : count + 2])
        if lengths[count - 1] * _rewrites_saved(references, count, lengths[count - 1]) <= older:
            break
        count = _newest(references, lengths, count + 2)
    return references[:count]


def _newest(references: Sequence[Reference], lengths: Sequence[int], least: int) -> int:
    """How many of the newest references there are, `least` or more, up to the first that is followed by an older one at
    least as large as all of them.

    Args:
        lengths: of the newest reference, the newest two, and so on.
    """
    for count in range(least, len(references)):
        if lengths[count - 1] <= references[count].length:
            return count
    return len(references)


def _rewrites_saved(references: Sequence[Reference], count: int, length: int) -> int:
    """How many rewrites less the increments in the newest `count` references needed with room for one file more.

    Args:
        length: of these references together.
    """
    # a version that changed nothing has no increment
    versions = references[0].end - references[count].end
    increments = min(versions, length // max(references[0].length, 1))
    return _rewrites(increments, count - 1) - _rewrites(increments, count)


def _rewrites(increments: int, files: int) -> int:
    """How often so many increments are rewritten at least that are merged by twos into so many files.

    With at most n rewrites of each, `files` files hold C(files + n, n) of what is merged at a time (Bentley and Saxe,
    Decomposable searching problems I, 1980). Two increments come with each merge, and more where some pass it.
    """
    times = 0
    while 2 * math.comb(files + times, times) < increments:
        times += 1
    return times


def are_mostly_dead(references: Sequence[Reference], live_rows: int, times: int = 2) -> bool:
    """Whether most rows are dead, of so many times the live ones, so that merging all writes no more than was written
    since the last time.

    Rows that append to lists are not dead, however often their keys come: so what is newer than the oldest reference
    must be as large as it, unless the oldest alone has too many rows.
    """
    oldest, newer = references[-1], references[:-1]
    most = times * max(live_rows, 1)
    if oldest.start == 0 and oldest.rows > most:
        return True
    rows = sum(reference.rows for reference in references)
    return rows > most and sum(reference.length for reference in newer) >= oldest.length


def live_rows(manifest: CommitManifest) -> int:
    """How many rows the version has."""
    return sum(count.rows for count in manifest.counts.values())


def _most_files(references: Sequence[Reference], chosen: Sequence[Reference]) -> int:
    """How many files the version of these references may consist of before `chosen` are merged."""
    # of the fewest that are merged together the oldest may be large: to begin early would be to merge it more often
    long = len(chosen) > _LEAST_MERGED and chosen[0].end - chosen[-1].start >= _LONG
    ahead = _AHEAD if long else 0
    few = max(references[0].end.bit_length() - 1 - ahead, _LEAST_MERGED - 1)
    large = sum(one.rows for one in references) > _LARGE_ROWS or sum(one.length for one in references) > _LARGE_BYTES
    return max(few, _FEW) if large else few
