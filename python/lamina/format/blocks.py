"""Checksums of a section: one for each block of its bytes, and one over them all (docs/spec/files.md).

A reader verifies a block when it has come, so that it needs neither the rest of the section nor a second read. Blocks
have a size of their own, not that of record batches: how many checksums there are follows from the length of the
section, however small the batches are, and what must be in memory at once is bounded, however large they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

CHECKSUM_BYTES = 16
BLOCK_BYTES = 1 << 20
"""Size of a block as written; the last one of a section may be smaller."""

MAX_BLOCK_BYTES = 16 << 20
"""No block is larger, so that verifying one takes no more memory."""


def half_sha256(*chunks: Any) -> bytes:
    """The first 16 bytes of SHA-256."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()[:CHECKSUM_BYTES]


class BlockHasher:
    """The checksums of bytes that come in chunks."""

    def __init__(self, block_bytes: int | None = None) -> None:
        self.block_bytes = block_bytes or BLOCK_BYTES
        self._checksums: list[bytes] = []
        self._digest = hashlib.sha256()
        self._in_block = 0

    def update(self, chunk: Any) -> None:
        """Adds a chunk."""
        view = memoryview(chunk).cast("B")
        while view.nbytes:
            if self._in_block == self.block_bytes:
                self._end_block()
            part = view[: self.block_bytes - self._in_block]
            self._digest.update(part)
            self._in_block += part.nbytes
            view = view[part.nbytes :]

    def finish(self) -> tuple[str, bytes]:
        """The checksum of all, in hexadecimal, and those of the blocks; of a single block there is only the first."""
        self._end_block()
        if len(self._checksums) == 1:
            return self._checksums[0].hex(), b""
        blocks = b"".join(self._checksums)
        return half_sha256(blocks).hex(), blocks

    def _end_block(self) -> None:
        self._checksums.append(self._digest.digest()[:CHECKSUM_BYTES])
        self._digest = hashlib.sha256()
        self._in_block = 0


def check(length: int, sha256: str, block_bytes: int, blocks: bytes) -> None:
    """Raises ValueError where the checksums of blocks are not those of a section of this length and checksum."""
    if not blocks:
        if length > MAX_BLOCK_BYTES:
            raise ValueError(f"a section of {length} bytes has no checksums of its blocks")
        return
    count = -(-length // block_bytes) if 0 < block_bytes <= MAX_BLOCK_BYTES else 0
    if count < 2 or len(blocks) != count * CHECKSUM_BYTES or half_sha256(blocks).hex() != sha256:
        raise ValueError("the checksums of the blocks of a section do not fit its own")


def ranges(length: int, sha256: str, block_bytes: int, blocks: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Where each block begins and ends, from the beginning of the section, and its checksum."""
    if not blocks:
        yield 0, length, bytes.fromhex(sha256)
        return
    for number, start in enumerate(range(0, length, block_bytes)):
        checksum = blocks[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]
        yield start, min(start + block_bytes, length), checksum
