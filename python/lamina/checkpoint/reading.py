"""What reading the logs of a checkpoint has in common: listings, versions, JSON and the errors that name a file.

What is wrong with a file is a `FileError` that names it: `file.missing`, `file.damaged` (not what Spark writes), or
`file.version` (written by a Spark that this release does not know).
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from lamina.errors import FileError, LaminaError
from lamina.storage import Storage

_VERSION = re.compile(r"v([1-9][0-9]*)")
_LINE_END = re.compile(r"\r\n|\n|\r")
_MISSING = object()


def batches(storage: Storage, directory: str) -> list[int]:
    """The batch ids that a log has an entry for, ascending; none where there is no such directory.

    Spark's own rule: an entry is a file whose whole name is a number. Temporary, hidden and checksum files are not.
    """
    names = (entry.name for entry in storage.list(directory))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def read_if_there(storage: Storage, path: str, most: int | None = None) -> bytes | None:
    """The whole file; None where there is none.

    Args:
        most: no whole file is larger; of one that is the last bytes come. It spares a request for the size.
    """
    try:
        return bytes(storage.read(path) if most is None else storage.read_tail(path, most)[0])
    except LaminaError as error:
        if error.kind != "file.missing":
            raise
        return None


def damaged(path: str, why: str) -> NoReturn:
    raise FileError("file.damaged", f"{path}: {why}")


def decoded(path: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        damaged(path, f"not UTF-8 text: {error}")


def text_lines(path: str, data: bytes) -> list[str]:
    """The lines, ended as Java ends them: JSON may hold characters that only Python takes for line ends."""
    lines = _LINE_END.split(decoded(path, data))
    return lines if lines[-1] else lines[:-1]


def checked_version(path: str, text: str, newest: int) -> int:
    """The number in a version line (`v1`); `newest` is the greatest that this release reads."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        damaged(path, f"should begin with a version such as v1, found {text[:40]!r}")
    version = int(match[1])
    if version > newest:
        raise FileError(
            "file.version",
            f"{path}: has version v{version}, this release of lamina reads up to v{newest}; upgrade lamina",
        )
    return version


def parsed_object(path: str, text: str) -> dict[str, Any]:
    """The JSON object in `text`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        damaged(path, f"not JSON: {error}")
    if not isinstance(value, dict):
        damaged(path, f"should hold a JSON object, found {type(value).__name__}")
    return value


def member(path: str, values: dict[str, Any], name: str, kind: type, default: Any = _MISSING) -> Any:
    """The member `name` of a JSON object, of the type `kind`; `default` where Spark may leave it out."""
    value = values.get(name)
    if value is None:
        if default is _MISSING:
            damaged(path, f"has no {name!r}")
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        damaged(path, f"{name!r} should be {kind.__name__}, found {value!r}")
    return value


def text_map(path: str, values: dict[str, Any], name: str) -> dict[str, str]:
    """The member `name`, a map of text to text, empty where it is left out."""
    found = member(path, values, name, dict, {})
    if not all(isinstance(value, str) for value in found.values()):
        damaged(path, f"{name!r} should map text to text")
    return dict(found)
