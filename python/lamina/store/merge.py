"""Merging: streams a chain of references into one run sorted by (cf, key), in bounded memory.

Unsorted sections are folded in chunks into sorted runs that are spilled to local disk. Sorted runs are merged step by
step: the smallest of the sources' last keys in memory bounds a step, the rows up to it are taken from every source,
newest first, sorted stably and folded. Each step uses up at least one batch, and all of it is vectorized.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lamina.format.entries import APPEND, BATCH_ROWS, DELETE, PUT, SCHEMA, has_appends

CHUNK_BYTES = 12 << 20
"""Unsorted entries that are sorted at once; sorting takes a few times as much."""

HELD_BYTES = 4 << 20
"""Runs that together stay below this are kept in memory: merging a few small increments needs no disk."""

SPILL_ROWS = 8_192
SPILL_BYTES = 256 << 10
"""Size of a batch in a spilled run: one per source is in memory while merging."""

RELEASE_STEPS = 8
"""Steps of a merge after which the allocator is asked to give unused memory back."""

MAX_SOURCES = 48
"""Sources merged at once; more are merged in rounds."""


def fold(entries: pa.RecordBatch, *, whole: bool) -> pa.RecordBatch:
    """Each key once, sorted by (cf, key).

    Args:
        entries: sorted by (cf, key); of equal keys the newest comes first.
        whole: nothing is older: deletes are dropped, and an append is a put.
    """
    if has_appends(entries):
        folded = _fold_appends(entries)
    else:
        heads = _heads(entries)
        folded = entries if pc.all(heads).as_py() else entries.filter(heads)
    if not whole or not folded.num_rows:
        return folded
    live = folded.filter(pc.not_equal(folded.column(1), pa.scalar(DELETE, pa.uint8())))
    puts = pa.repeat(pa.scalar(PUT, pa.uint8()), live.num_rows)
    return pa.RecordBatch.from_arrays([live.column(0), puts, live.column(2), live.column(3)], schema=SCHEMA)


def _heads(entries: pa.RecordBatch) -> pa.Array:
    """Whether a row is the first of its key."""
    rows = entries.num_rows
    if rows == 0:
        return pa.array([], pa.bool_())
    changed = pc.not_equal(entries.column(2).slice(1), entries.column(2).slice(0, rows - 1))
    families = entries.column(0)
    if families[0] != families[rows - 1]:
        changed = pc.or_(changed, pc.not_equal(families.slice(1), families.slice(0, rows - 1)))
    return pa.concat_arrays([pa.array([True]), changed])


def _fold_appends(entries: pa.RecordBatch) -> pa.RecordBatch:
    """Folds where there are appends: the newest put or delete, and the appends after it behind it, oldest first."""
    heads = _heads(entries)
    group = pc.cumulative_sum(pc.cast(heads, pa.int64()))
    deciding = pc.cast(pc.not_equal(entries.column(1), pa.scalar(APPEND, pa.uint8())), pa.int64())
    # puts and deletes of all keys before a row; a row counts while its own key has had none
    before = pc.subtract(pc.cumulative_sum(deciding), deciding)
    at_head = pc.take(pc.filter(before, heads), pc.subtract(group, 1))
    counts = pc.equal(before, at_head)
    kept = entries.filter(counts)
    rows = kept.num_rows
    backwards = kept.take(pa.array(range(rows - 1, -1, -1), pa.int64()))
    # oldest first now: the first row of a key decides, and the values of all its rows are joined in this order
    first = _heads(backwards)
    starts = pc.indices_nonzero(first)
    offsets = pa.concat_arrays([pc.cast(starts, pa.int32()), pa.array([rows], pa.int32())])
    values = pc.binary_join(pa.ListArray.from_arrays(offsets, backwards.column(3)), pa.scalar(b"", pa.binary()))
    alone = pc.equal(pc.subtract(offsets.slice(1), offsets.slice(0, len(starts))), 1)
    ops = pc.filter(backwards.column(1), first)
    revived = pc.and_(pc.equal(ops, pa.scalar(DELETE, pa.uint8())), pc.invert(alone))
    ops = pc.if_else(revived, pa.scalar(PUT, pa.uint8()), ops)
    folded = pa.RecordBatch.from_arrays(
        [pc.filter(backwards.column(0), first), ops, pc.filter(backwards.column(2), first), values], schema=SCHEMA
    )
    return folded.take(pa.array(range(folded.num_rows - 1, -1, -1), pa.int64()))


def sort(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The entries of `batches` by (cf, key); of equal keys those of earlier batches first."""
    entries = _combined(batches)
    families = pc.min_max(entries.column(0)).as_py()
    if families["min"] == families["max"]:
        order = pc.array_sort_indices(entries.column(2))
    else:
        order = pc.sort_indices(
            pa.table([entries.column(0), entries.column(2)], names=["cf", "key"]),
            sort_keys=[("cf", "ascending"), ("key", "ascending")],
        )
    return entries.take(order)


def _combined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(len(SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class _Source:
    """A sorted run on its way through a merge: `batch` is what is in memory of it, None at its end."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        self.advance()

    def advance(self) -> None:
        self.batch = next((batch for batch in self._batches if batch.num_rows), None)

    def last(self) -> tuple[int, bytes]:
        assert self.batch is not None
        return _position(self.batch, self.batch.num_rows - 1)

    def take(self, bound: tuple[int, bytes]) -> pa.RecordBatch | None:
        """The rows up to `bound` inclusive."""
        batch = self.batch
        assert batch is not None
        end = bisect.bisect_right(_Positions(batch), bound)
        if end == batch.num_rows:
            self.advance()
            return batch
        self.batch = batch.slice(end)
        return batch.slice(0, end) if end else None


class _Positions(Sequence[tuple[int, bytes]]):
    """The positions of a batch, for bisection."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __getitem__(self, index: Any) -> Any:
        return _position(self._batch, index)


def _position(batch: pa.RecordBatch, row: int) -> tuple[int, bytes]:
    return batch.column(0)[row].as_py(), batch.column(2)[row].as_py()


def merge(runs: Sequence[Iterator[pa.RecordBatch]], *, whole: bool) -> Iterator[pa.RecordBatch]:
    """Sorted runs, newest first, as one: each key once."""
    sources = [source for source in map(_Source, runs) if source.batch is not None]
    for step in itertools.count(1):
        if not sources:
            return
        if step % RELEASE_STEPS == 0:
            _release()
        bound = min(source.last() for source in sources)
        parts = [part for part in (source.take(bound) for source in sources) if part is not None]
        yield fold(parts[0] if len(parts) == 1 else sort(parts), whole=whole)
        sources = [source for source in sources if source.batch is not None]


def _release() -> None:
    """Gives memory back that the allocator keeps for later: its caches would be larger than all that is in use."""
    pa.default_memory_pool().release_unused()


class Merger:
    """Merges references into one run, with runs spilled to `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._spilled = 0
        self._held = 0

    def merged(
        self,
        inputs: Iterable[tuple[bool, Iterable[pa.RecordBatch]]],
        *,
        whole: bool,
        read: Callable[[int], None] = lambda rows: None,
    ) -> Iterator[pa.RecordBatch]:
        """The run that `inputs` fold to.

        Args:
            inputs: newest first: whether the input is sorted with each key once, and its entries. Each is iterated
                once; unsorted ones before the next input is asked for.
            whole: nothing is older than the last input.
            read: called with the number of rows read.
        """
        runs: list[Iterator[pa.RecordBatch]] = []
        chunk: list[pa.RecordBatch] = []
        size = 0
        for is_sorted, batches in inputs:
            if is_sorted:
                self._flush(chunk, runs)
                size = 0
                runs.append(_counted(batches, read))
                continue
            for batch in _counted(batches, read):
                chunk.append(batch)
                size += batch.nbytes
                if size >= CHUNK_BYTES:
                    self._flush(chunk, runs)
                    size = 0
        self._flush(chunk, runs)
        while len(runs) > MAX_SOURCES:
            runs[:MAX_SOURCES] = [self._spill(merge(runs[:MAX_SOURCES], whole=False))]
        return coalesced(merge(runs, whole=whole))

    def _flush(self, chunk: list[pa.RecordBatch], runs: list[Iterator[pa.RecordBatch]]) -> None:
        if chunk:
            entries = sort(chunk)
            chunk.clear()
            entries = fold(entries, whole=False)
            if self._held + entries.nbytes <= HELD_BYTES:
                self._held += entries.nbytes
                runs.append(iter([entries]))
            else:
                runs.append(self._spill(iter([entries])))
                del entries
                _release()

    def _spill(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        path = os.path.join(self._directory, f"run-{self._spilled}")
        self._spilled += 1
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("lz4"))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, SCHEMA, options=options) as writer:
            for batch in batches:
                rows = max(1, min(SPILL_ROWS, SPILL_BYTES * batch.num_rows // max(1, batch.nbytes)))
                for offset in range(0, batch.num_rows, rows):
                    writer.write_batch(batch.slice(offset, rows))
        return _unspilled(path)


def _unspilled(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path, "rb") as file, pa.ipc.open_stream(file) as reader:
        os.unlink(path)
        yield from reader


def _counted(batches: Iterable[pa.RecordBatch], read: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        read(batch.num_rows)
        yield batch


def coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are neither tiny nor, unless they came so, large."""
    gathered: list[pa.RecordBatch] = []
    rows = 0
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= CHUNK_BYTES // 2:
            yield _combined(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _combined(gathered)
