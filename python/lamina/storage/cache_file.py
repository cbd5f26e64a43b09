"""One file of the local cache: an object's bytes, with a checksum for each block of them and of whose they are.

    offset          size     field
    0               n        the object
    n               4 * b    CRC-32 of each block of 256 KiB, u32
    n + 4 * b       32       SHA-256 of the object's URL
    n + 4 * b + 32  8        n, u64
    …               4        CRC-32 of all behind the object up to here, u32
    …               8        magic "LMNCACH1"

Integers are little-endian. The cache is one machine's own, so this layout is no interface.
"""

from __future__ import annotations

import array
import hashlib
import os
import struct
import sys
import zlib
from typing import IO, Any

import pyarrow as pa

_BLOCK_BYTES = 256 << 10
_MAGIC = b"LMNCACH1"
_FOOTER = struct.Struct("<32sQI8s")


def file_size(size: int) -> int:
    """The size of the file for an object of `size` bytes."""
    return size + 4 * (-(-size // _BLOCK_BYTES)) + _FOOTER.size


class Damaged(Exception):
    """The file is not what was written."""


class CacheFileWriter:
    """Writes an object piece by piece into `file`."""

    def __init__(self, file: IO[bytes], url: str) -> None:
        self._file = file
        self._url = url
        self._checksums = array.array("I")
        self._checksum = 0
        self._in_block = 0
        self.size = 0

    def write(self, data: Any) -> None:
        """Adds a piece of the object."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.size += view.nbytes
        while view.nbytes:
            part = view[: _BLOCK_BYTES - self._in_block]
            self._checksum = zlib.crc32(part, self._checksum)
            self._in_block += part.nbytes
            view = view[part.nbytes :]
            if self._in_block == _BLOCK_BYTES:
                self._end_block()

    def finish(self) -> int:
        """Writes what follows the object; gives the size of the file."""
        if self._in_block:
            self._end_block()
        table = _little_endian(self._checksums).tobytes() + hashlib.sha256(self._url.encode()).digest()
        table += struct.pack("<Q", self.size)
        self._file.write(table + struct.pack("<I", zlib.crc32(table)) + _MAGIC)
        self._file.flush()
        return self.size + len(table) + 12

    def _end_block(self) -> None:
        self._checksums.append(self._checksum)
        self._checksum = self._in_block = 0


class CacheFile:
    """Reads the object of `url` from the file that `descriptor` is open for.

    Raises:
        Damaged: as all of its methods.
    """

    def __init__(self, descriptor: int, url: str) -> None:
        self._descriptor = descriptor
        found = os.fstat(descriptor).st_size
        footer = os.pread(descriptor, _FOOTER.size, max(0, found - _FOOTER.size))
        if len(footer) != _FOOTER.size:
            raise Damaged("it is too short")
        owner, self.size, checksum, magic = _FOOTER.unpack(footer)
        blocks = -(-self.size // _BLOCK_BYTES)
        if magic != _MAGIC or file_size(self.size) != found:
            raise Damaged("its end is not what was written")
        table = os.pread(descriptor, 4 * blocks, self.size) + footer[:40]
        if zlib.crc32(table) != checksum or owner != hashlib.sha256(url.encode()).digest():
            raise Damaged("its checksums are not what was written")
        self._checksums = _little_endian(array.array("I", table[: 4 * blocks]))

    def read(self, offset: int, length: int) -> pa.Buffer:
        """At most `length` bytes of the object from `offset`, all of whose blocks are verified."""
        end = min(offset + length, self.size)
        if end <= offset:
            return pa.py_buffer(b"")
        first, last = offset // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)
        start = first * _BLOCK_BYTES
        data = _pread(self._descriptor, start, min(last * _BLOCK_BYTES, self.size) - start)
        for number in range(first, last):
            block = data[number * _BLOCK_BYTES - start : (number + 1) * _BLOCK_BYTES - start]
            if zlib.crc32(block) != self._checksums[number]:
                raise Damaged(f"block {number} does not fit its checksum")
        return pa.py_buffer(data[offset - start : end - start])


def _pread(descriptor: int, offset: int, length: int) -> memoryview:
    data = memoryview(bytearray(length))
    done = 0
    while done < length:
        count = os.preadv(descriptor, [data[done:]], offset + done)
        if count == 0:
            raise Damaged("it ends before its object does")
        done += count
    return data


def _little_endian(numbers: array.array[int]) -> array.array[int]:
    if sys.byteorder == "big":
        numbers = array.array("I", numbers)
        numbers.byteswap()
    return numbers
