"""The comparison of a stream's result with the batch result finds every kind of difference."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lamina.demo.compare import Comparison, compare
from lamina.demo.feed import END

ROWS = [{"origin": "EWR", "n": 1}, {"origin": "JFK", "n": None}, {"origin": "LGA", "n": 3}]
SCHEMA = pa.schema([("origin", pa.string()), ("n", pa.int64())])


def compared(tmp_path: Path, *batches: list[dict[str, object]], done: bool = True) -> Comparison:
    for number, rows in enumerate(batches):
        directory = tmp_path / "results" / f"batch={number:05d}"
        directory.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), directory / "part-0.parquet")
        if done:
            (directory / "_SUCCESS").touch()
    (tmp_path / "expected").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS, SCHEMA), tmp_path / "expected" / "part-0.parquet")
    return compare(tmp_path / "results", tmp_path / "expected", "origin")


def test_the_same_rows_in_other_batches_and_order_are_identical(tmp_path: Path) -> None:
    outcome = compared(tmp_path, [ROWS[2], ROWS[1]], [], [ROWS[0]])
    assert outcome.identical
    assert outcome.rows == 3


def test_the_end_record_is_left_out(tmp_path: Path) -> None:
    assert compared(tmp_path, ROWS, [{"origin": END, "n": 1}]) == Comparison(3, ())


def test_a_row_that_was_written_twice_is_a_difference(tmp_path: Path) -> None:
    outcome = compared(tmp_path, ROWS, [ROWS[0]])
    assert not outcome.identical
    assert outcome.differences == ("1 rows not in the batch result, as ('EWR', 1)",)


def test_a_lost_row_is_a_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, ROWS[1:]).differences == ("1 rows missing in the stream's result, as ('EWR', 1)",)


def test_a_null_that_became_a_value_is_a_difference(tmp_path: Path) -> None:
    assert len(compared(tmp_path, [ROWS[0], {"origin": "JFK", "n": 0}, ROWS[2]]).differences) == 2


def test_a_row_in_which_the_column_of_the_end_record_is_null_counts(tmp_path: Path) -> None:
    outcome = compared(tmp_path, ROWS, [{"origin": None, "n": 1}])
    assert outcome.differences == ("1 rows not in the batch result, as (None, 1)",)


def test_output_of_a_batch_that_did_not_finish_is_a_difference(tmp_path: Path) -> None:
    assert not compared(tmp_path, ROWS, done=False).identical
