"""Small JSON files of `_lamina`: one object with a format and a checksum, whole and never changed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from lamina.checkpoint.reading import damaged, decoded, member, parsed_object, read_if_there
from lamina.errors import FileError
from lamina.format.manifest import to_bytes
from lamina.storage import Storage


def sealed_bytes(values: Mapping[str, Any]) -> bytes:
    """The file with these members, and its checksum."""
    content = {name: value for name, value in values.items() if name != "crc32"}
    return to_bytes({**content, "crc32": zlib.crc32(to_bytes(content))})


def read_sealed(state: Storage, path: str, most_bytes: int, newest: int) -> dict[str, Any] | None:
    """The members of a file; None where it is not there.

    Args:
        most_bytes: no whole file is larger.
        newest: the greatest format that this release reads.
    Raises:
        LaminaError: `file.damaged`, `file.version`, `storage.*`.
    """
    data = read_if_there(state, path, most_bytes)
    if data is None:
        return None
    where = state.location(path)
    values = parsed_object(where, decoded(where, data))
    version = member(where, values, "format", int)
    if version > newest:
        raise FileError(
            "file.version", f"{where}: has format {version}, this release reads up to {newest}; upgrade lamina"
        )
    if data != sealed_bytes(values):
        damaged(where, "does not fit its checksum")
    return values
