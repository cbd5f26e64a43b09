"""Compares what a stream wrote with what the same query gave as batch: row for row, without Spark.

Both sides are read as Parquet and sorted by all columns. Equal means: the same columns, the same number of rows, and
every value the same, nulls included. A row that the stream wrote twice, lost or changed shows as a difference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lamina.demo.feed import END

_SHOWN = 3


@dataclass(frozen=True)
class Comparison:
    """The outcome for one query; `differences` says in sentences what is not equal, nothing where all is."""

    rows: int
    differences: tuple[str, ...]

    @property
    def identical(self) -> bool:
        return not self.differences


def compare(results: Path, expected: Path, marker: str) -> Comparison:
    """Compares the batches below `results` with the rows in `expected`.

    Args:
        results: the directory that a stream wrote a directory per batch to.
        expected: the directory that the batch query wrote.
        marker: the column in which the record that ends the feed shows; that record is left out on both sides.
    """
    batches = sorted(results.glob("batch=*"))
    unfinished = [batch.name for batch in batches if not (batch / "_SUCCESS").is_file()]
    if unfinished:
        return Comparison(0, (f"{results} has unfinished output: {', '.join(unfinished)}",))
    streamed, batch = _rows(batches, marker), _rows([expected], marker)
    if streamed.column_names != batch.column_names:
        return Comparison(0, (f"columns {streamed.column_names}, but as batch {batch.column_names}",))
    streamed, batch = _sorted(streamed), _sorted(batch)
    if streamed.num_rows == batch.num_rows and all(
        left.equals(right) for left, right in zip(streamed.itercolumns(), batch.itercolumns(), strict=True)
    ):
        return Comparison(batch.num_rows, ())
    return Comparison(batch.num_rows, tuple(_differences(streamed, batch)))


def _rows(directories: list[Path], marker: str) -> pa.Table:
    files = [str(file) for directory in directories for file in sorted(directory.glob("*.parquet"))]
    rows = ds.dataset(files, format="parquet").to_table()
    return rows.filter(pc.fill_null(pc.not_equal(rows[marker], END), True))


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names]))


def _differences(streamed: pa.Table, batch: pa.Table) -> list[str]:
    left, right = _counted(streamed), _counted(batch)
    found = []
    for what, rows in (("not in the batch result", left - right), ("missing in the stream's result", right - left)):
        if rows:
            shown = "; ".join(str(row) for row in list(rows)[:_SHOWN])
            found.append(f"{sum(rows.values()):,} rows {what}, as {shown}")
    return found or ["the values are the same, but not their types"]


def _counted(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in rows.itercolumns()), strict=True))
