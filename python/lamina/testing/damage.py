"""Changes of the bytes of a file, each of which whoever reads it has to notice."""

from __future__ import annotations

from collections.abc import Iterator


def mutants(data: bytes, flips: tuple[int, ...] = (0x01, 0xFF)) -> Iterator[tuple[str, bytes]]:
    """What was done, and `data` after it: each byte flipped in each of these ways, each truncation, a byte added."""
    for position in range(len(data)):
        for flip in flips:
            yield f"byte {position}", data[:position] + bytes([data[position] ^ flip]) + data[position + 1 :]
        yield f"first {position} bytes", data[:position]
    yield "one byte more", data + b"\0"
