"""Which references of a version are worth a merge.

Tiers are lazy. Nothing is merged while a version consists of at most log2(version) files. When there are more, the
newest few are merged, three or more and so many that no more than log2(version) are left, up to the first that is
followed by an older one at least as large as all of them together: sizes keep growing from new to old, a large old
segment is left alone until as much has been written after it, and an entry is rewritten less often than log2(versions)
times. A merge is asked for by a commit that stands on the version, so its own increment and that of the next commit
come on top: versions consist of at most 2 + log2(version) files. A merge of more files than that which `_LONG` versions
wrote begins up to `_AHEAD` files sooner, since versions may pass before it is done. A large version consists of up to
`_FEW` files before any are merged: a preload of a few batches stays as it was written, and what follows it is not
merged again with every commit. All references are merged when most of their rows are dead, which costs no more than
what was written since the last time.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    if len(references) > 1 and _mostly_dead(references, max(live_rows, 1)):
        return references
    if len(references) < 2:
        return ()
    most = _most_files(references, _newest(references))
    # where more versions pass each merge than it merges files, those merged alone would be more and more
    return _newest(references, len(references) - most + 1) if len(references) > most else ()


def _newest(references: Sequence[Reference], least: int = _LEAST_MERGED) -> Sequence[Reference]:
    """The newest references, at least so many and `_LEAST_MERGED`, up to the first that is followed by an older one at
    least as large as all of them."""
    least = min(max(least, _LEAST_MERGED), len(references))
    merged = 0
    for count, reference in enumerate(references, start=1):
        merged += reference.length
        older = references[count].length if count < len(references) else 0
        if count >= least and merged <= older:
            break
    return references[:count]


def _mostly_dead(references: Sequence[Reference], live_rows: int) -> bool:
    """Whether most rows are dead, so that merging all writes no more than was written since the last time.

    Rows that append to lists are not dead, however often their keys come: so what is newer than the oldest reference
    must be as large as it, unless the oldest alone has too many rows.
    """
    oldest, newer = references[-1], references[:-1]
    if oldest.start == 0 and oldest.rows > 2 * live_rows:
        return True
    rows = sum(reference.rows for reference in references)
    return rows > 2 * live_rows and sum(reference.length for reference in newer) >= oldest.length


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
