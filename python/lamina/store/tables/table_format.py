"""The end of a table of RocksDB: which version of its format it has."""

from __future__ import annotations

import os
import struct

from lamina.errors import LaminaError

_END = struct.Struct("<IQ")
"""The version of the format, and what says that it is a block based table."""

_MAGIC = 0x88E241B785F4CFF7

_NEWEST = 6
"""The last version that each RocksDB which reads tables here knows."""


def require_known_format(path: str, name: str) -> None:
    """Refuses a table that a later lamina wrote: RocksDB would call it damaged, and name the links to it.

    Args:
        path: where it is.
        name: which it is called by.
    Raises:
        LaminaError: `file.version`.
    """
    with open(path, "rb") as table:
        if os.fstat(table.fileno()).st_size < _END.size:
            return
        table.seek(-_END.size, os.SEEK_END)
        version, magic = _END.unpack(table.read(_END.size))
    if magic == _MAGIC and version > _NEWEST:
        raise LaminaError.from_kind(
            "file.version",
            f"{name} is a table of RocksDB in version {version} of its format, and this release reads versions to "
            f"{_NEWEST}; use a newer lamina",
        )
