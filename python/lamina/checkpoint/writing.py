"""What writing the logs of a checkpoint has in common: JSON as Spark writes it, and a check before a file counts.

A file is read back before it is published: so the readers' refusal of an unknown version holds for writers too, and an
entry that its file cannot hold (an offset with a line end, ids of state in a version that has none) is a ValueError of
the caller, never a log that says something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from lamina.errors import FileError

_Entry = TypeVar("_Entry")


def json_text(value: Any) -> str:
    """JSON without spaces, members in their order, characters beyond ASCII as they are.

    Raises:
        ValueError: where there is a number that JSON has not.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_back(path: str, entry: _Entry, data: bytes, parse: Callable[[bytes], _Entry]) -> bytes:
    """`data`, if `parse` makes `entry` of it.

    Raises:
        ValueError: where it makes something else.
        FileError: `file.version` where the readers refuse it.
    """
    try:
        found = parse(data)
    except FileError as error:
        if error.kind != "file.damaged":
            raise
        raise ValueError(f"{path} cannot hold this entry: {error.message}") from error
    if found != entry:
        raise ValueError(f"{path} cannot hold this entry: of {entry} would be read {found}")
    return data
