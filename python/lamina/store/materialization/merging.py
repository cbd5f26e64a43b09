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
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lamina.format.entries import BATCH_ROWS
from lamina.store.materialization.folding import combined, fold, sort
from lamina.store.materialization.spilling import SpillFile, cut

CHUNK_BYTES = 12 << 20
"""Unsorted entries that are sorted at once; sorting takes a few times as much."""

HELD_BYTES = 4 << 20
"""Runs that together stay below this are kept in memory: merging a few small increments needs no disk."""

SOURCES_BYTES = 32 << 20
"""What the batches of all sources of a merge, one of each, take together."""

STEP_BYTES = 8 << 20
"""What is read beyond them for one step: a step costs something for each source, however few rows it takes."""

RELEASE_STEPS = 8
"""Steps of a merge after which the allocator is asked to give unused memory back."""

_INPUT_BYTES = 1 << 20
"""What a batch of a sorted input is taken for; there are few such inputs."""


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

        def parts() -> Iterator[pa.RecordBatch]:
            nonlocal size, largest
            for batch in batches:
                for part in cut(batch):
                    size += part.nbytes
                    largest = max(largest, part.nbytes)
                    yield part

        run = self._spilled.append(parts())
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
            yield combined(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield combined(gathered)
