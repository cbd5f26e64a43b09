"""A database of RocksDB in a local directory, opened for one job and closed.

Its keys are the id of a column family, two bytes with the high one first, and the key. So the order of RocksDB is the
order of sorted entries. Nothing is written but by ingesting sorted files: there is nothing in a memtable, and no log.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format.entries import APPEND, BATCH_ROWS, DELETE, PUT, SCHEMA
from lamina.storage import trusted
from lamina.store.tables.local_disk import ADVICE_NO_SPACE, LocalDiskFull
from lamina.store.tables.options import FEWEST_MERGED, TableOptions, check

FAMILY = struct.Struct(">H")
"""What comes before a key."""

BATCH_BYTES = 1 << 20
"""About what a batch of entries holds."""

OPEN_BYTES = 16 << 20
"""What an open database has in memory at most: its cache, and blocks that are read or written."""

DEFAULT = TableOptions()

_MOST_AT_ONCE = 64
"""Values that are looked up at once."""

_MOST_IN_A_ROW = 16
"""Small tables next to each other, before they are joined."""

_JOINED_AT_ONCE = 5
"""Times the size of a table: what is joined in one merge at most, more than so many small tables have together."""

_LOOK_S = 0.005
_IDLE_LOOKS = 400
"""Two seconds: a merge that is pending begins within milliseconds."""


@dataclass(frozen=True)
class LiveTable:
    """A table that the database consists of: its file's name, and its entries, deletes among them."""

    name: str
    rows: int


class Database:
    """A database in `directory`, which is made where there is none.

    Raises:
        SettingsError: `settings.invalid` about a function that makes options.
        LaminaError: `engine.dependency` where there is no rocksdict, `file.damaged` and `storage.failed` naming the
            directory; so do all methods.
    """

    def __init__(self, directory: str, options: TableOptions = DEFAULT, *, read_only: bool = False) -> None:
        self._rocksdict = _rocksdict()
        self._directory = directory
        # tables that RocksDB makes no larger are not small
        self._table_bytes = check(options)
        self._has_own_options = options.factory is None
        self._options = options.options(create=not os.path.exists(os.path.join(directory, "CURRENT")))
        access = self._rocksdict.AccessType
        with _Told(directory):
            self._db = self._rocksdict.Rdict(
                directory,
                self._options,
                # else those with which the database was written last would count
                column_families={"default": self._options},
                access_type=access.read_only() if read_only else access.read_write(),
            )

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with _Told(self._directory):
                self._db.close()
        except LaminaError:
            # what went wrong first is told
            if kind is None:
                raise

    def ingest(self, run: Iterator[pa.RecordBatch]) -> int:
        """Puts a run on top of what is there; gives how many entries it had.

        Args:
            run: sorted by (column family, key), each key once. An append joins the value below it.
        """
        rows = 0
        paths: list[str] = []
        writer: Any = None
        with _Told(self._directory):
            for batch in run:
                for key, value in self._resolved(batch):
                    if writer is None:
                        writer = self._new_writer(paths)
                    if value is None:
                        del writer[key]
                    else:
                        writer[key] = value
                rows += batch.num_rows
                if writer is not None and writer.file_size() >= self._table_bytes:
                    writer.finish()
                    writer = None
            if writer is not None:
                writer.finish()
            if paths:
                options = self._rocksdict.IngestExternalFileOptions()
                options.set_move_files(True)
                self._db.ingest_external_file(paths, options)
        return rows

    def _new_writer(self, paths: list[str]) -> Any:
        # within the directory, so that ingesting moves it
        paths.append(os.path.join(self._directory, f"ingested-{len(paths)}.tmp"))
        writer = self._rocksdict.SstFileWriter(self._options)
        writer.open(paths[-1])
        return writer

    def _resolved(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values of a batch of a run; None for a delete."""
        families, ops, keys, values = (column.to_pylist() for column in batch.columns)
        full = [FAMILY.pack(family) + key for family, key in zip(families, keys, strict=True)]
        appended = [key for key, op in zip(full, ops, strict=True) if op == APPEND]
        below = self._below(appended)
        for key, op, value in zip(full, ops, values, strict=True):
            if op == APPEND:
                yield key, (next(below) or b"") + value
            else:
                yield key, None if op == DELETE else value

    def _below(self, keys: list[bytes]) -> Iterator[bytes | None]:
        """The values of keys, of which a list may have any size: so many at once that they are not large together."""
        first, count = 0, 1
        while first < len(keys):
            values = self._db.get(keys[first : first + count])
            yield from values
            first += count
            small = sum(len(value) for value in values if value is not None) < BATCH_BYTES
            count = min(2 * count, _MOST_AT_ONCE) if small else max(1, count // 4)

    def settle(self, worked: Callable[[], None]) -> None:
        """Returns when RocksDB merges no tables any more; `worked` is called again and again until then.

        It may say for ever that a merge is pending, and begin none: then nothing is waited for.
        """
        waiting, idle_looks = threading.Event(), 0
        with _Told(self._directory):
            if self._has_own_options and self._newest_are_large():
                self._db.set_options({"level0_file_num_compaction_trigger": str(FEWEST_MERGED)})
            while idle_looks < _IDLE_LOOKS:
                running = self._db.property_int_value("rocksdb.num-running-compactions")
                if not running and not self._db.property_int_value("rocksdb.compaction-pending"):
                    return
                idle_looks = 0 if running else idle_looks + 1
                self._check_merges()
                worked()
                waiting.wait(_LOOK_S)

    @property
    def merges_failed(self) -> bool:
        """Whether RocksDB has given up a merge since the database was opened."""
        return bool(self._db.property_int_value("rocksdb.background-errors"))

    def _check_merges(self) -> None:
        if self.merges_failed:
            message = f"RocksDB could not merge the tables in {self._directory}; is the local disk full, or damaged?"
            # it does not say which, and has given back what it had written: there was less room than all tables take
            tables = sum(int(table["size"]) for table in self._db.live_files())
            if shutil.disk_usage(self._directory).free < max(tables, self._table_bytes):
                raise LocalDiskFull("storage.failed", message + ADVICE_NO_SPACE)
            trusted.distrust(self._directory)
            raise LaminaError.from_kind("storage.failed", message)

    def _newest_are_large(self) -> bool:
        """Whether the newest tables, of which each may have any key, are as large as what is below them."""
        tables = self._db.live_files()
        newest = sum(int(table["size"]) for table in tables if table["level"] == 0)
        return newest > 0 and 2 * newest >= sum(int(table["size"]) for table in tables)

    def join(self, worked: Callable[[], None]) -> None:
        """Joins some small tables that lie next to each other, if there are; `worked` is called meanwhile.

        RocksDB puts a run whose keys overlap no table's where it never merges any: keys that only ascend, such as
        times, would leave a table for each run, and each is open wherever the store is. What has become small since
        tables are to be larger is joined bit by bit, by one job after the other.
        """
        with _Told(self._directory):
            few = next(_small_neighbours(self._db.live_files(), self._table_bytes), None)
            if few is None:
                return
            options = self._rocksdict.CompactOptions()
            options.set_bottommost_level_compaction(self._rocksdict.BottommostLevelCompaction.force())
            with ThreadPoolExecutor(1, thread_name_prefix="lamina-join") as thread:
                try:
                    merge = thread.submit(self._db.compact_range, few[0]["start_key"], few[-1]["end_key"], options)
                except RuntimeError:
                    # no further thread: the next job joins them
                    return
                while not wait([merge], _LOOK_S).done:
                    worked()
                merge.result()
            # it says nothing of an error itself
            self._check_merges()

    def merged(self) -> dict[str, int]:
        """What was merged since the database was opened, by the names of metrics; empty where nothing is counted."""
        text = self._options.get_statistics()
        if not text:
            return {}

        def figure(name: str, what: str) -> int:
            found = re.search(rf"^{re.escape(name)} .*\b{what} : ([0-9]+)", text, re.MULTILINE)
            return int(found[1]) if found else 0

        return {
            "totalBytesReadByCompaction": figure("rocksdb.compact.read.bytes", "COUNT"),
            "totalBytesWrittenByCompaction": figure("rocksdb.compact.write.bytes", "COUNT"),
            "totalCompactionLatencyMs": figure("rocksdb.compaction.times.micros", "SUM") // 1000,
        }

    def live(self) -> list[LiveTable]:
        """The tables, by name."""
        with _Told(self._directory):
            found = self._db.live_files()
        return sorted(
            (LiveTable(one["name"].lstrip("/"), int(one["num_entries"])) for one in found), key=lambda one: one.name
        )

    def entries(self) -> Iterator[pa.RecordBatch]:
        """All entries, as puts, sorted by (column family, key)."""
        with _Told(self._directory):
            position = self._db.iter()
            position.seek_to_first()
            while position.valid():
                keys: list[bytes] = []
                values: list[bytes] = []
                size = 0
                while position.valid() and len(keys) < BATCH_ROWS and size < BATCH_BYTES:
                    key, value = position.key(), position.value()
                    keys.append(key)
                    values.append(value)
                    size += len(key) + len(value)
                    position.next()
                yield _entries(keys, values)
            # an iterator that meets a damaged block says that it is at the end
            position.status()


def _small_neighbours(tables: Sequence[Mapping[str, Any]], table_bytes: int) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Tables that are to be joined: more than `_MOST_IN_A_ROW` by the order of their keys, each smaller than a quarter
    of a table and than the others together, so that an entry is merged as often only as its table doubles."""
    neighbours: list[Mapping[str, Any]] = []
    for table in sorted(tables, key=lambda one: one["start_key"]):
        is_small = 4 * table["size"] < table_bytes
        together = sum(one["size"] for one in neighbours) + table["size"]
        if not is_small or together > _JOINED_AT_ONCE * table_bytes:
            yield from _joinable(neighbours)
            neighbours = []
        if is_small:
            neighbours.append(table)
    yield from _joinable(neighbours)


def _joinable(tables: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    if len(tables) <= _MOST_IN_A_ROW:
        return
    largest = max(range(len(tables)), key=lambda one: tables[one]["size"])
    if 2 * tables[largest]["size"] <= sum(table["size"] for table in tables):
        yield tables
    else:
        yield from _joinable(tables[:largest])
        yield from _joinable(tables[largest + 1 :])


def _entries(keys: list[bytes], values: list[bytes]) -> pa.RecordBatch:
    families = pa.array([FAMILY.unpack_from(key)[0] for key in keys], pa.uint16())
    puts = pa.repeat(pa.scalar(PUT, pa.uint8()), len(keys))
    own = pa.array([key[FAMILY.size :] for key in keys], pa.binary())
    return pa.RecordBatch.from_arrays([families, puts, own, pa.array(values, pa.binary())], schema=SCHEMA)


def require() -> None:
    """Raises `engine.dependency` where there is no rocksdict."""
    _rocksdict()


def lacking() -> str | None:
    """Why tables cannot be opened here, and what to do; None where they can."""
    try:
        require()
    except LaminaError as error:
        return error.message
    return None


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise LaminaError.from_kind(
            "engine.dependency",
            f"the state stands on tables of RocksDB, and {sys.executable} on {platform.node()} has no rocksdict "
            f"({error}); install it with pip install 'rocksdict>=0.3.29,<0.4' for the Python of engine.python on "
            "each executor",
        ) from error
    return rocksdict


class _Told:
    """Says of an error of RocksDB, which has no class of its own, what it means."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not Exception:
            return
        text = str(value)
        if any(os.strerror(full) in text for full in (errno.ENOSPC, errno.EDQUOT)):
            message = f"RocksDB failed in {self._directory}: {text}{ADVICE_NO_SPACE}"
            raise LocalDiskFull("storage.failed", message) from value
        # of a bad sector it is another error
        trusted.distrust(self._directory)
        if text.startswith("Corruption"):
            raise LaminaError.from_kind(
                "file.damaged", f"the database in {self._directory} is damaged: {text}"
            ) from value
        raise LaminaError.from_kind("storage.failed", f"RocksDB failed in {self._directory}: {text}") from value
