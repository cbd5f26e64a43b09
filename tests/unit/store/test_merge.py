"""Merging: the run that a chain folds to is the chain's state, for any chain, in bounded memory."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.format.entries import APPEND, DELETE, PUT, SCHEMA
from lamina.store.materialization import merging as merge
from lamina.store.materialization import spilling
from lamina.store.materialization.folding import fold, sort
from lamina.store.materialization.merging import Merger
from lamina.store.tables.local_disk import LocalDiskFull
from lamina.testing.expect import fails_with

Entry = tuple[int, int, bytes, bytes]
Position = tuple[int, bytes]


def batch(entries: Sequence[Entry]) -> pa.RecordBatch:
    kinds = (pa.uint16(), pa.uint8(), pa.binary(), pa.binary())
    return pa.RecordBatch.from_arrays(
        [pa.array([entry[index] for entry in entries], kind) for index, kind in enumerate(kinds)], schema=SCHEMA
    )


def rows(batches: Sequence[pa.RecordBatch]) -> list[Entry]:
    return [row for one in batches for row in zip(*(column.to_pylist() for column in one.columns), strict=True)]


def apply(state: dict[Position, bytes], entries: Sequence[Entry]) -> None:
    for family, op, key, value in entries:
        if op == PUT:
            state[family, key] = value
        elif op == DELETE:
            state.pop((family, key), None)
        else:
            state[family, key] = state.get((family, key), b"") + value


KEYS = st.sampled_from([b"", b"a", b"a\x00", b"a\xff", b"b", b"\xff", b"\xff\xff"])
CHANGES = st.dictionaries(
    st.tuples(st.integers(0, 2), KEYS), st.tuples(st.sampled_from([PUT, DELETE, APPEND]), st.binary(max_size=3))
)


def increment(changes: dict[Position, tuple[int, bytes]]) -> list[Entry]:
    return [(family, op, key, b"" if op == DELETE else value) for (family, key), (op, value) in changes.items()]


@settings(max_examples=200, deadline=None)
@given(chain=st.lists(st.tuples(st.booleans(), CHANGES), min_size=1, max_size=6), base=CHANGES, data=st.data())
def test_a_merged_chain_does_to_any_base_what_the_chain_does(
    chain: list[tuple[bool, dict[Position, tuple[int, bytes]]]],
    base: dict[Position, tuple[int, bytes]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    oldest_first = [(is_run, increment(changes)) for is_run, changes in chain]
    newest_first = [
        (is_run, [sort([batch(entries)])] if is_run and entries else [batch(entries)])
        for is_run, entries in reversed(oldest_first)
    ]
    start: dict[Position, bytes] = {}
    apply(start, increment(base))
    directory = tmp_path_factory.mktemp("merge")
    for whole in (False, True):
        merged = rows(list(Merger(str(directory)).merged(newest_first, whole=whole)))
        assert [(family, key) for family, _, key, _ in merged] == sorted({(f, k) for f, _, k, _ in merged})
        state = {} if whole else dict(start)
        expected = dict(state)
        apply(state, merged)
        for _, entries in oldest_first:
            apply(expected, entries)
        assert state == expected
        if whole:
            assert all(op == PUT for _, op, _, _ in merged)


def test_deletes_are_dropped_only_where_nothing_is_older() -> None:
    entries = batch([(0, DELETE, b"a", b""), (0, PUT, b"b", b"1")])
    assert rows([fold(entries, whole=False)]) == [(0, DELETE, b"a", b""), (0, PUT, b"b", b"1")]
    assert rows([fold(entries, whole=True)]) == [(0, PUT, b"b", b"1")]


def test_appends_are_folded_onto_the_put_below_them_oldest_first() -> None:
    newest_first = [batch([(0, APPEND, b"a", b"3")]), batch([(0, APPEND, b"a", b"2")]), batch([(0, PUT, b"a", b"1")])]
    assert rows([fold(sort(newest_first), whole=False)]) == [(0, PUT, b"a", b"123")]
    assert rows([fold(sort(newest_first[:2]), whole=False)]) == [(0, APPEND, b"a", b"23")]


def test_an_append_after_a_delete_is_a_put_of_its_own() -> None:
    newest_first = [batch([(0, APPEND, b"a", b"2")]), batch([(0, DELETE, b"a", b"")]), batch([(0, PUT, b"a", b"1")])]
    assert rows([fold(sort(newest_first), whole=False)]) == [(0, PUT, b"a", b"2")]


@pytest.mark.parametrize("held", [0, 5_000, merge.HELD_BYTES])
def test_a_merge_of_more_chunks_than_fit_at_once_spills_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(merge, "HELD_BYTES", held)
    monkeypatch.setattr(merge, "CHUNK_BYTES", 2_000)
    monkeypatch.setattr(merge, "SOURCES_BYTES", 1_000)
    monkeypatch.setattr(merge, "STEP_BYTES", 500)
    monkeypatch.setattr(spilling, "SPILL_BYTES", 200)
    expected: dict[Position, bytes] = {}
    chain = []
    for number in range(60):
        entries = [
            (number % 2, (PUT, APPEND, DELETE)[(number + key) % 3], b"%03d" % (key * 7 % 100), b"%d" % number)
            for key in range(30)
        ]
        entries = [(family, op, key, b"" if op == DELETE else value) for family, op, key, value in entries]
        apply(expected, entries)
        chain.append((False, [batch(entries)]))
    read: list[int] = []
    merged = rows(list(Merger(str(tmp_path)).merged(reversed(chain), whole=True, read=read.append)))
    assert {(family, key): value for family, _, key, value in merged} == expected
    assert sum(read) == 60 * 30
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("held", [0, 5_000, merge.HELD_BYTES])
def test_values_larger_than_a_chunk_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(merge, "HELD_BYTES", held)
    monkeypatch.setattr(merge, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(spilling, "SPILL_BYTES", 100)
    chain = [(False, [batch([(0, PUT, b"%d" % key, b"%d" % number * 5_000) for key in range(3)])]) for number in (2, 1)]
    merged = rows(list(Merger(str(tmp_path)).merged(chain, whole=True)))
    assert merged == [(0, PUT, b"%d" % key, b"2" * 5_000) for key in range(3)]


def unsorted(batches: int, rows: int = 1000) -> Iterator[pa.RecordBatch]:
    """Rows of 96 bytes that no codec makes smaller."""
    random = Random(7)
    for _ in range(batches):
        keys, values = [random.randbytes(20) for _ in range(rows)], [random.randbytes(76) for _ in range(rows)]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([0] * rows, pa.uint16()),
                pa.array([PUT] * rows, pa.uint8()),
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
            ],
            schema=SCHEMA,
        )


@pytest.fixture
def small_scale(monkeypatch: pytest.MonkeyPatch) -> int:
    """10 GB at one 128th: as many chunks, and as many of them fit into one merge; the number of chunks."""
    scale = 128
    chunks = -(-(10 * 10**9) // merge.CHUNK_BYTES)
    sources = merge.SOURCES_BYTES // spilling.SPILL_BYTES
    monkeypatch.setattr(merge, "CHUNK_BYTES", merge.CHUNK_BYTES // scale)
    monkeypatch.setattr(merge, "STEP_BYTES", 1 << 20)
    monkeypatch.setattr(merge, "HELD_BYTES", 0)
    monkeypatch.setattr(spilling, "SPILL_BYTES", 12 << 10)
    monkeypatch.setattr(merge, "SOURCES_BYTES", sources * (12 << 10))
    return chunks


def test_ten_gigabytes_in_one_store_are_spilled_little_more_than_once(tmp_path: Path, small_scale: int) -> None:
    """Each phase says that it goes on, at least once a step."""
    size = 0
    reported = [0]

    def inputs() -> Iterator[pa.RecordBatch]:
        nonlocal size
        for one in unsorted(small_scale):
            size += one.nbytes
            yield one

    merger = Merger(str(tmp_path), lambda: reported.append(merger.spilled_bytes))
    output = rows_written = 0
    quiet = 0
    for one in merger.merged([(False, inputs())], whole=True):
        output += one.nbytes
        rows_written += one.num_rows
        assert len(reported) > quiet, "a piece of the output without a word"
        quiet = len(reported)
    assert rows_written == 1000 * small_scale
    assert merger.spilled_bytes + output <= 2.2 * size
    steps = [after - before for before, after in itertools.pairwise(reported)]
    assert max(steps) <= 2 * merge.STEP_BYTES, "no long silence while runs are spilled or merged"


def test_a_merge_whose_disk_is_full_fails_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no memory instead: the chunks do not fit there."""

    def full(descriptor: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(merge, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(merge, "HELD_BYTES", 0)
    monkeypatch.setattr(os, "pwrite", full)
    with fails_with("storage.failed") as caught:
        list(Merger(str(tmp_path)).merged([(False, unsorted(30))], whole=True))
    assert str(tmp_path) in caught.error.message
    assert "No space left" in caught.error.message
    assert isinstance(caught.error, LocalDiskFull), "what else is on the disk is as good as before"


def spilled(sizes: Sequence[int], largest: int = 10) -> list[merge._Run]:
    return [merge._Run(iter([]), largest, size) for size in sizes]


@settings(max_examples=300, deadline=None)
@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=200), fit=st.integers(2, 20))
def test_runs_that_do_not_fit_at_once_are_merged_in_as_few_rounds_as_there_can_be(sizes: list[int], fit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "SOURCES_BYTES", fit * 10)
        runs = spilled(sizes)
        rounds = [0] * len(runs)
        while (found := merge.first_merged(runs)) is not None:
            start, end = found
            assert 2 <= end - start <= fit
            runs[start:end] = spilled([sum(run.size for run in runs[start:end])])
            rounds[start:end] = [max(rounds[start:end]) + 1]
        assert len(runs) <= fit
        assert sum(run.size for run in runs) == sum(sizes)


def test_equal_runs_are_merged_as_often_as_a_tree_is_high() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "SOURCES_BYTES", 10 * 10)
        for count in (10, 11, 19, 100, 101, 1000):
            runs = spilled([1] * count)
            written = 0
            while (found := merge.first_merged(runs)) is not None:
                start, end = found
                total = sum(run.size for run in runs[start:end])
                written += total
                runs[start:end] = spilled([total])
            rounds = next(height for height in range(9) if 10 ** (height + 1) >= count)
            assert written <= rounds * count
            assert (written == 0) == (count <= 10)


def test_no_more_is_merged_before_the_others_than_makes_them_fit() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "SOURCES_BYTES", 10 * 10)
        assert merge.first_merged(spilled([5] * 4 + [1] * 3 + [5] * 5)) == (4, 7)
        assert merge.first_merged(spilled([5] * 10)) is None


def test_runs_of_large_values_are_merged_by_what_they_take_in_memory() -> None:
    """Two at a time, however large they are."""
    huge = merge.SOURCES_BYTES
    assert merge.first_merged(spilled([1, 1, 1], huge)) == (0, 2)
    assert merge.first_merged(spilled([1, 1], huge)) is None


def test_memory_stays_below_its_bound_however_large_the_inputs_are(tmp_path: Path) -> None:
    """A process of its own merges two million rows of 96 bytes, unsorted, over a sorted run of a million."""
    program = f"""
        import re
        from pathlib import Path
        import pyarrow as pa
        from lamina.store.materialization.merging import Merger
        from lamina.format.entries import SCHEMA

        def batches(count, step):
            for first in range(0, count, 32768):
                numbers = range(first, min(count, first + 32768))
                keys = [(number * step % count).to_bytes(40, "big") for number in numbers]
                values = [number.to_bytes(56, "little") for number in numbers]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([0] * len(keys), pa.uint16()), pa.array([1] * len(keys), pa.uint8()),
                     pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=SCHEMA)

        count = 1_000_000
        inputs = [(False, batches(count, 7)), (False, batches(count, 13)), (True, batches(count, 1))]
        rows = sum(batch.num_rows for batch in Merger({str(tmp_path)!r}).merged(inputs, whole=True))
        # not getrusage: its peak counts the process that started this one
        peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
        print(rows, int(peak[1]) // 1024)
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={"PYTHONPATH": str(Path(merge.__file__).parents[3]), "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    found, mebibytes = map(int, answer.stdout.split())
    assert found == 1_000_000
    assert mebibytes <= 256
