"""Java's DataInputStream and DataOutputStream, as Spark writes state schemas with them.

Numbers are big-endian, text is `writeUTF`: two bytes of length and "modified UTF-8" (the character 0 in two bytes,
characters beyond the basic plane as two surrogates of three bytes each). `writeUTF` ends at 65,535 bytes, so that long
texts are split into chunks.
"""

from __future__ import annotations

import struct

from lamina.checkpoint.reading import damaged

_UTF_MOST = 65_535
"""The most bytes of one text, and the most UTF-16 units of a chunk, which Spark counts instead of bytes."""


class JavaReader:
    """What java.io.DataInputStream reads, from bytes; whatever goes beyond the end means a damaged file."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data
        self._at = 0

    def utf(self) -> str:
        return _joined_surrogates(self.path, self._utf_units())

    def chunked(self) -> str:
        # a chunk may end between the two surrogates of one character
        return _joined_surrogates(self.path, "".join(self._utf_units() for _ in range(self.count())))

    def number(self) -> int:
        return int(struct.unpack(">h", self._take(2))[0])

    def count(self) -> int:
        value = int(struct.unpack(">i", self._take(4))[0])
        if value < 0:
            damaged(self.path, f"has a count of {value}")
        return value

    def end(self) -> None:
        if self._at != len(self._data):
            damaged(self.path, f"has {len(self._data) - self._at} bytes behind its end")

    def _utf_units(self) -> str:
        raw = self._take(struct.unpack(">H", self._take(2))[0])
        try:
            return raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            damaged(self.path, f"not Java's modified UTF-8: {error}")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            damaged(self.path, "ends too early")
        self._at += count
        return taken


def _joined_surrogates(path: str, units: str) -> str:
    try:
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        damaged(path, f"not Java's modified UTF-8: {error}")


def utf(path: str, text: str) -> bytes:
    """What `writeUTF` writes. Raises ValueError, naming `path`, where it would fail."""
    raw = _units(text).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(raw) > _UTF_MOST:
        raise ValueError(f"{path} cannot hold a text of {len(raw)} bytes; Java writes {_UTF_MOST} at most")
    return struct.pack(">H", len(raw)) + raw


def chunked(path: str, text: str) -> bytes:
    """A text in as many chunks as Spark makes of it. Raises ValueError, naming `path`, where Spark would fail."""
    units = _units(text)
    chunks = [units[start : start + _UTF_MOST] for start in range(0, len(units), _UTF_MOST)]
    return count(len(chunks)) + b"".join(utf(path, chunk) for chunk in chunks)


def count(value: int) -> bytes:
    """A number of things, as `writeInt`."""
    return struct.pack(">i", value)


def number(value: int) -> bytes:
    """A small number, as `writeShort`."""
    return struct.pack(">h", value)


def _units(text: str) -> str:
    """The UTF-16 units of `text`, each as one character: what Java counts and writes."""
    raw = text.encode("utf-16-be", "surrogatepass")
    return "".join(map(chr, struct.unpack(f">{len(raw) // 2}H", raw)))
