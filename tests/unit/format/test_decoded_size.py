"""How large a batch will be, as its message says before it is decoded."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from lamina.format.decoded_size import decoded_bytes
from lamina.format.entries import SCHEMA

ROWS = {
    "repetitive": [b"the same value again and again" * 10] * 1000,
    "random": [os.urandom(300) for _ in range(1000)],
    "one": [b"v"],
    "empty values": [b""] * 1000,
    "none": [],
    "a huge value": [bytes(20 << 20)],
}


def message(values: list[bytes], codec: str | None) -> pa.ipc.Message:
    rows = len(values)
    columns = [
        pa.array([0] * rows, pa.uint16()),
        pa.array([1] * rows, pa.uint8()),
        pa.array([b"%d" % row for row in range(rows)], pa.binary()),
        pa.array(values, pa.binary()),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    return messages.read_next_message()


@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
@pytest.mark.parametrize("values", ROWS.values(), ids=ROWS)
def test_a_message_says_how_large_its_batch_will_be(values: list[bytes], codec: str | None) -> None:
    undecoded = message(values, codec)
    batch = pa.ipc.read_record_batch(undecoded, SCHEMA)
    buffers = sum(buffer.size for column in batch.columns for buffer in column.buffers() if buffer is not None)
    assert decoded_bytes(undecoded) == buffers
    assert decoded_bytes(undecoded) >= batch.nbytes


def test_another_message_is_as_large_as_its_body() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA):
        pass
    schema = pa.ipc.MessageReader.open_stream(sink.getvalue()).read_next_message()
    assert decoded_bytes(schema) == 0
