"""Entries: the Arrow schema of a section, its checks, and Arrow IPC in both directions.

Encoding and decoding release the interpreter lock: pyarrow compresses the buffers of a batch in parallel, and messages
of one stream may be decoded by several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import UNREADABLE, LaminaError

PUT = 1
DELETE = 2
APPEND = 3

COLUMNS = ("cf", "op", "key", "value")
SCHEMA = pa.schema(
    [
        pa.field("cf", pa.uint16(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
_SCHEMA_MESSAGE = SCHEMA.serialize()
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

MAX_FAMILY_ID = 65_535
"""The largest id of a column family that the column `cf` holds."""

MAX_ROW_BYTES = (1 << 27) - 16
"""Of a key, and of a value: what a table of the JVM holds (`Rows.MaxLength`)."""

MAX_BATCH_BYTES = 64 << 20
"""Most key bytes, and most value bytes, of one record batch, unless a single entry is larger."""

BATCH_ROWS = 32_768
"""Rows of a record batch as written: small enough that decoding overlaps with reading and sending."""


_PARALLEL_BYTES = 256 << 10
"""Smaller batches are compressed and decompressed by the calling thread: handing their buffers to others costs more
than it saves."""

_IN_THIS_THREAD = pa.ipc.IpcReadOptions(use_threads=False)

_TINY_BYTES = 4 << 10
"""A section whose first batch is smaller is compressed by lz4 in place of zstd: that costs it 60 µs, a fifth of what a
small commit costs at all, and lz4 costs 6 µs and a fifth more bytes."""

_PLAIN_BYTES = 512
"""A section of a single smaller batch is not compressed: it would not be smaller then, and costs a tenth."""

_JOINED_BYTES = 64 << 10
"""The twenty pieces in which a smaller batch is written are handed on as one."""


@dataclass(frozen=True)
class Compression:
    """How the bodies of record batches are compressed: codec `zstd`, `lz4` or `uncompressed`."""

    codec: str = "zstd"
    level: int = 1

    def write_options(self, batch_bytes: int) -> Any:
        """Options of a stream whose first batch has so many bytes."""
        if self.codec == "uncompressed":
            return pa.ipc.IpcWriteOptions()
        zstd = self.codec == "zstd" and batch_bytes >= _TINY_BYTES
        codec = pa.Codec("zstd", compression_level=self.level) if zstd else pa.Codec("lz4")
        return pa.ipc.IpcWriteOptions(compression=codec, use_threads=batch_bytes >= _PARALLEL_BYTES)


class _Chunks:
    """A file object that collects what is written to it, so that a stream can be taken out piece by piece."""

    closed = False

    def __init__(self) -> None:
        self._chunks: list[Any] = []

    def write(self, data: Any) -> int:
        self._chunks.append(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self, *, joined: bool) -> list[Any]:
        chunks, self._chunks = self._chunks, []
        return [b"".join(chunks)] if joined else chunks


@dataclass
class Written:
    """What `encode` has written so far: rows, and bytes of the columns before compression."""

    rows: int = 0
    raw_bytes: int = 0


def encode(batches: Iterable[pa.RecordBatch], compression: Compression, written: Written) -> Iterator[list[Any]]:
    """The Arrow IPC stream of `batches`, as lists of buffers; `written` is kept up to date."""
    remaining = iter(batches)
    first = next(remaining, None)
    first_bytes = 0 if first is None else first.nbytes
    if first is not None and first_bytes < _PLAIN_BYTES:
        second = next(remaining, None)
        if second is None:
            yield [_plain(as_entries(first), written)]
            return
        remaining = chain([second], remaining)
    options = compression.write_options(first_bytes)
    sink = _Chunks()
    writer = pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), SCHEMA, options=options)
    for batch in remaining if first is None else chain([first], remaining):
        entries = as_entries(batch)
        for part in bounded_batches(entries):
            writer.write_batch(part)
            written.rows += part.num_rows
            written.raw_bytes += part.get_total_buffer_size() if part is entries else part.nbytes
            yield sink.take(joined=part.nbytes < _JOINED_BYTES)
    writer.close()
    yield sink.take(joined=True)


def _plain(entries: pa.RecordBatch, written: Written) -> bytes:
    """The stream of a single batch, not compressed."""
    written.rows, written.raw_bytes = entries.num_rows, entries.nbytes
    return b"".join([_SCHEMA_MESSAGE, entries.serialize() if entries.num_rows else b"", _END_OF_STREAM])


def as_entries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with exactly the columns of `SCHEMA`; further columns are left out.

    Raises:
        LaminaError: `engine.protocol` where a column is absent, has another type, or has nulls.
    """
    if batch.schema.equals(SCHEMA) and not any(column.null_count for column in batch.columns):
        return batch
    columns = []
    for field in SCHEMA:
        index = batch.schema.get_field_index(field.name)
        if index < 0 or batch.schema.field(index).type != field.type:
            raise LaminaError.from_kind("engine.protocol", f"entries have no column {field.name!r} of {field.type}")
        column = batch.column(index)
        if column.null_count:
            raise LaminaError.from_kind("engine.protocol", f"column {field.name!r} of entries has nulls")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def bounded_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most `BATCH_ROWS` rows and `MAX_BATCH_BYTES` of keys and of values each."""
    pending = [batch]
    while pending:
        part = pending.pop()
        rows = part.num_rows
        if rows > 2 * BATCH_ROWS:
            pending.append(part.slice(BATCH_ROWS))
            pending.append(part.slice(0, BATCH_ROWS))
        elif rows > 1 and max(_data_bytes(part.column(2)), _data_bytes(part.column(3))) > MAX_BATCH_BYTES:
            pending.append(part.slice(rows // 2))
            pending.append(part.slice(0, rows // 2))
        elif rows:
            yield part


def _data_bytes(column: pa.Array) -> int:
    """Bytes of the values of a binary column, without its offsets."""
    return int(column.nbytes)


def messages(section: pa.NativeFile, length: int, path: str) -> tuple[pa.Schema, Iterator[Any]]:
    """The schema and the undecoded record batches of a section, which are read as they are asked for.

    Args:
        section: stands at the beginning of the section.
        length: of the section, in bytes.
    Raises:
        LaminaError: `file.damaged` where the bytes are no Arrow stream of entries, also from the iterator;
            `storage.failed` where they cannot be read now.
    """
    start = section.tell()
    try:
        reader = pa.ipc.MessageReader.open_stream(section)
        schema = pa.ipc.read_schema(reader.read_next_message())
    except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
        raise _no_entries(path, error) from error
    for field in SCHEMA:
        index = schema.get_field_index(field.name)
        if index < 0 or schema.field(index).type != field.type:
            raise _no_entries(path, f"no column {field.name!r} of {field.type}")

    def batches() -> Iterator[Any]:
        while True:
            try:
                message = reader.read_next_message()
            except StopIteration:
                break
            except MemoryError:
                raise
            except (pa.ArrowException, OSError, EOFError) as error:
                if getattr(error, "errno", None) not in (None, *UNREADABLE):
                    raise LaminaError.from_kind("storage.failed", f"could not read {path}: {error}") from error
                raise _no_entries(path, error) from error
            yield message
        if section.tell() != start + length:
            raise _no_entries(path, f"it ends after {section.tell() - start} of {length} bytes")

    return schema, batches()


def decode(message: Any, schema: pa.Schema, path: str) -> pa.RecordBatch:
    """The entries of one record batch message; unknown columns are ignored.

    Raises:
        LaminaError: `file.version` for an op that this release does not know, `file.damaged` for broken entries.
    """
    try:
        batch = _decoded(message, schema)
    except (pa.ArrowException, OSError) as error:
        raise _no_entries(path, error) from error
    columns = [batch.column(batch.schema.get_field_index(name)) for name in COLUMNS]
    if any(column.null_count for column in columns):
        raise _no_entries(path, "nulls")
    if batch.num_rows:
        ops = pc.min_max(columns[1]).as_py()
        if ops["min"] < PUT or ops["max"] > APPEND:
            raise LaminaError.from_kind(
                "file.version", f"{path} has entries of an op that this release does not know; use a newer lamina"
            )
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _decoded(message: Any, schema: pa.Schema) -> pa.RecordBatch:
    if message.body.size >= _PARALLEL_BYTES or not schema.equals(SCHEMA):
        return pa.ipc.read_record_batch(message, schema)
    # only a stream's reader can be told to do it all in this thread
    stream = pa.py_buffer(b"".join([_SCHEMA_MESSAGE, message.serialize()]))
    return pa.ipc.open_stream(stream, options=_IN_THIS_THREAD).read_next_batch()


def has_appends(batch: pa.RecordBatch) -> bool:
    """Whether some of these entries append to a value."""
    return bool(batch.num_rows) and pc.max(batch.column(1)).as_py() == APPEND


def _no_entries(path: str, reason: object) -> LaminaError:
    return LaminaError.from_kind("file.damaged", f"{path} is damaged: a section is no stream of entries ({reason})")
