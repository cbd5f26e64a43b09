"""Merging: streams a chain of references into one run sorted by (cf, key), in bounded memory.

Unsorted sections are folded in chunks into sorted runs that are spilled to local disk. Sorted runs are merged step by
step: batches of the sources that reach least far are read until enough is in memory, the smallest of the sources' last
keys there bounds the step, and the rows up to it are taken from every source, newest first, sorted stably and folded.

A merge has as many sources as batches of them fit into memory. Where there are more runs, just as many of them are
merged before the others as make the rest fit, those of the fewest bytes first: most rows are spilled once.
"""

from __future__ import annotations

import bisect
import heapq
import io
import itertools
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import LaminaError
from lamina.format.entries import APPEND, BATCH_ROWS, DELETE, PUT, SCHEMA, has_appends

CHUNK_BYTES = 12 << 20
"""Unsorted entries that are sorted at once; sorting takes a few times as much."""

HELD_BYTES = 4 << 20
"""Runs that together stay below this are kept in memory: merging a few small increments needs no disk."""

SPILL_BYTES = 48 << 10
"""Size of a batch in a spilled run, unless a single entry is larger: one per source is in memory while merging."""

SOURCES_BYTES = 32 << 20
"""What the batches of all sources of a merge, one of each, take together."""

STEP_BYTES = 8 << 20
"""What is read beyond them for one step: a step costs something for each source, however few rows it takes."""

RELEASE_STEPS = 8
"""Steps of a merge after which the allocator is asked to give unused memory back."""

_WRITE_BYTES = 1 << 20

_INPUT_BYTES = 1 << 20
"""What a batch of a sorted input is taken for; there are few such inputs."""


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
    """A sorted run on its way through a merge: `batches` are in memory of it, none at its end."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._unread = batches
        self._loaded: deque[pa.RecordBatch] = deque()
        self.load()

    @property
    def loaded(self) -> bool:
        """Whether something of it is in memory."""
        return bool(self._loaded)

    def load(self) -> int:
        """Reads one more batch; its bytes, 0 at the end."""
        batch = next((batch for batch in self._unread if batch.num_rows), None)
        if batch is None:
            return 0
        self._loaded.append(batch)
        return max(1, int(batch.nbytes))

    def last(self) -> tuple[int, bytes]:
        """The last position in memory."""
        batch = self._loaded[-1]
        return _position(batch, batch.num_rows - 1)

    def take(self, bound: tuple[int, bytes]) -> list[pa.RecordBatch]:
        """The rows up to `bound` inclusive."""
        taken = []
        while self._loaded:
            batch = self._loaded[0]
            end = bisect.bisect_right(_Positions(batch), bound)
            if end < batch.num_rows:
                if end:
                    taken.append(batch.slice(0, end))
                    self._loaded[0] = batch.slice(end)
                return taken
            taken.append(self._loaded.popleft())
        self.load()
        return taken


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
    sources = [source for source in map(_Source, runs) if source.loaded]
    for step in itertools.count(1):
        if not sources:
            return
        if step % RELEASE_STEPS == 0:
            _release()
        bound = _bound(sources)
        parts = [part for source in sources for part in source.take(bound)]
        yield fold(parts[0] if len(parts) == 1 else sort(parts), whole=whole)
        del parts
        sources = [source for source in sources if source.loaded]


def _bound(sources: Sequence[_Source]) -> tuple[int, bytes]:
    """How far all sources are in memory, after the ones that reach least far were read on."""
    heap = [(source.last(), number) for number, source in enumerate(sources)]
    heapq.heapify(heap)
    read = 0
    while read < STEP_BYTES:
        _, number = heap[0]
        more = sources[number].load()
        if not more:
            break
        read += more
        heapq.heapreplace(heap, (sources[number].last(), number))
    return heap[0][0]


def _release() -> None:
    """Gives memory back that the allocator keeps for later: its caches would be larger than all that is in use."""
    pa.default_memory_pool().release_unused()


@dataclass(frozen=True)
class _Run:
    """A sorted run that waits for its merge.

    Args:
        largest: bytes of the largest of its batches.
        size: bytes of all of them; what has not been read yet counts as larger than all that was spilled.
    """

    batches: Iterator[pa.RecordBatch]
    largest: int
    size: int


_UNREAD_BYTES = 1 << 50


class Merger:
    """Merges references into one run, with runs spilled to `directory`.

    Args:
        worked: called after each piece of work, however long the merge: nobody is to take it for hanging.
    """

    def __init__(self, directory: str, worked: Callable[[], None] = lambda: None) -> None:
        self._directory = directory
        self._worked = worked
        self._held = 0
        self._spilled: SpillFile | None = None

    @property
    def spilled_bytes(self) -> int:
        """What was written to `directory`."""
        return self._spilled.size if self._spilled is not None else 0

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
        runs: list[_Run] = []
        chunk: list[pa.RecordBatch] = []
        size = 0
        for is_sorted, batches in inputs:
            if is_sorted:
                self._flush(chunk, runs)
                size = 0
                runs.append(_Run(_counted(batches, read), _INPUT_BYTES, _UNREAD_BYTES))
                continue
            for batch in _counted(batches, read):
                chunk.append(batch)
                size += batch.nbytes
                if size >= CHUNK_BYTES:
                    self._flush(chunk, runs)
                    size = 0
        self._flush(chunk, runs)
        while (first := first_merged(runs)) is not None:
            start, end = first
            runs[start:end] = [self._spill(self._steps(runs[start:end], whole=False))]
        return coalesced(self._steps(runs, whole=whole))

    def _steps(self, runs: Sequence[_Run], *, whole: bool) -> Iterator[pa.RecordBatch]:
        for batch in merge([run.batches for run in runs], whole=whole):
            self._worked()
            yield batch

    def _flush(self, chunk: list[pa.RecordBatch], runs: list[_Run]) -> None:
        if chunk:
            entries = sort(chunk)
            chunk.clear()
            entries = fold(entries, whole=False)
            if self._held + entries.nbytes <= HELD_BYTES:
                self._held += entries.nbytes
                runs.append(_Run(iter([entries]), 0, int(entries.nbytes)))
            else:
                runs.append(self._spill(iter([entries])))
                del entries
                _release()
            self._worked()

    def _spill(self, batches: Iterator[pa.RecordBatch]) -> _Run:
        if self._spilled is None:
            self._spilled = SpillFile(self._directory)
        size = largest = 0

        def cut() -> Iterator[pa.RecordBatch]:
            nonlocal size, largest
            for batch in batches:
                for part in _cut(batch):
                    size += part.nbytes
                    largest = max(largest, part.nbytes)
                    yield part

        run = self._spilled.append(cut())
        return _Run(run, largest, size)


def first_merged(runs: Sequence[_Run]) -> tuple[int, int] | None:
    """Which neighbouring runs to merge before the others: from, inclusive, to, exclusive; None where all fit at once.

    No more than is needed so that the rest fits, and the fewest bytes of that; where one merge cannot do it, as many as
    fit. At least two runs are merged at once, however large their batches are.
    """
    memory = [0, *itertools.accumulate(run.largest for run in runs)]
    sizes = [0, *itertools.accumulate(run.size for run in runs)]
    excess = memory[-1] - SOURCES_BYTES
    if excess <= 0 or len(runs) <= 2:
        return None
    # what is merged holds one batch afterwards instead of one of each
    wanted = excess + max(run.largest for run in runs)
    best: tuple[bool, float, int, int] | None = None
    for start in range(len(runs) - 1):
        most = bisect.bisect_right(memory, memory[start] + SOURCES_BYTES) - 1
        enough = max(bisect.bisect_left(memory, memory[start] + wanted), start + 2)
        end = min(enough, max(most, start + 2), len(runs))
        size = sizes[end] - sizes[start]
        found = (end < enough, size if end == enough else size / (end - start - 1), start, end)
        if best is None or found < best:
            best = found
    assert best is not None
    return best[2:]


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most `SPILL_BYTES`, or of one row, however unlike its rows are."""
    pending = [batch]
    while pending:
        part = pending.pop()
        if part.num_rows > 1 and part.nbytes > SPILL_BYTES:
            rows = max(1, part.num_rows // -(-part.nbytes // SPILL_BYTES))
            pending.append(part.slice(rows))
            pending.append(part.slice(0, rows))
        elif part.num_rows:
            yield part


class SpillFile:
    """One local file for all runs of a merge, however many; it has no name, so that it goes with its process."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.descriptor, name = tempfile.mkstemp(dir=directory)
        weakref.finalize(self, os.close, self.descriptor)
        os.unlink(name)

    @property
    def size(self) -> int:
        """Bytes written."""
        return os.fstat(self.descriptor).st_size

    def append(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes a run behind those before it; gives its batches, which are read as they are asked for."""
        start = self.size
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("lz4"))
        sink = pa.PythonFile(io.BufferedWriter(_At(self, start), _WRITE_BYTES), mode="w")
        with sink, pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return self._run(start)

    def _run(self, start: int) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(pa.PythonFile(_At(self, start), mode="r")) as reader:
            yield from reader


class _At(io.RawIOBase):
    """A position of its own in a file that others read and write, too."""

    def __init__(self, spilled: SpillFile, position: int) -> None:
        self._spilled = spilled
        self._position = position

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._spilled.descriptor, [buffer], self._position)
        self._position += count
        return count

    def write(self, data: Any) -> int:
        try:
            count = os.pwrite(self._spilled.descriptor, data, self._position)
        except OSError as error:
            raise LaminaError.from_kind(
                "storage.failed",
                f"a merge could not write to {self._spilled.directory}, its temporary directory: {error}; it needs "
                "about as much room there as what it merges",
            ) from error
        self._position += count
        return count


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
