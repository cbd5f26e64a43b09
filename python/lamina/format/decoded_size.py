"""How large a record batch of an Arrow IPC stream is once it is decoded, from the message and before it is decoded.

The header of a message is a flatbuffer: it lists the batch's buffers and says whether they are compressed. A compressed
buffer begins with its length as decoded, 8 bytes, or with -1 where it is stored as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_RECORD_BATCH = 3
_HEADER_TYPE, _HEADER = 1, 2
_BUFFERS, _COMPRESSION = 2, 3
"""Places of fields in the tables Message and RecordBatch of Arrow's Message.fbs."""

_BUFFER = struct.Struct("<qq")
_STORED = -1


def decoded_bytes(message: Any) -> int:
    """Bytes of the buffers of a record batch once they are decoded; of one that is broken, those of its body.

    Args:
        message: a `pyarrow.ipc.Message`.
    """
    body = memoryview(message.body)
    try:
        return sum(_sizes(memoryview(message.metadata), body))
    except (struct.error, IndexError):
        # decoding it says what is wrong
        return len(body)


def _sizes(metadata: memoryview, body: memoryview) -> Iterator[int]:
    root = _offset(metadata, 0)
    kind = _field(metadata, root, _HEADER_TYPE)
    header = _field(metadata, root, _HEADER)
    if kind is None or header is None or metadata[kind] != _RECORD_BATCH:
        yield len(body)
        return
    batch = _offset(metadata, header)
    buffers = _field(metadata, batch, _BUFFERS)
    if buffers is None:
        return
    compressed = _field(metadata, batch, _COMPRESSION) is not None
    start = _offset(metadata, buffers)
    for index in range(_unsigned(metadata, start)):
        offset, length = _BUFFER.unpack_from(metadata, start + 4 + index * _BUFFER.size)
        if not compressed or not length:
            yield length
            continue
        (decoded,) = struct.unpack_from("<q", body, offset)
        yield length - 8 if decoded == _STORED else max(decoded, 0)


def _unsigned(data: memoryview, at: int) -> int:
    (value,) = struct.unpack_from("<I", data, at)
    return int(value)


def _offset(data: memoryview, at: int) -> int:
    """Where the table or vector lies to which the offset at `at` leads."""
    return at + _unsigned(data, at)


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table lies; None where the table does not have it."""
    (back,) = struct.unpack_from("<i", data, table)
    places = table - int(back)
    (size,) = struct.unpack_from("<H", data, places)
    at = 4 + 2 * number
    if at + 2 > size:
        return None
    (relative,) = struct.unpack_from("<H", data, places + at)
    return table + int(relative) if relative else None
