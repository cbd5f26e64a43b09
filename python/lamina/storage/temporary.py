"""Names under which a publication writes before it renames; one that stays behind was cut off by a crash."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from lamina.components import RandomIds

_TEMPORARY = re.compile(r"\.(?P<target>.+)\.[0-9]+-[0-9]+\.tmp", re.DOTALL)


def random_numbers() -> Iterator[int]:
    """Numbers for `temporary_name` where a name that is taken is written to all the same: they begin anywhere.

    In two containers processes have the same ids, and would count the same.
    """
    return itertools.count(int(RandomIds().hex128()[:12], 16))


def temporary_name(target: str, process: int, number: int) -> str:
    """The name that `process` writes before it becomes `target`."""
    return f".{target}.{process}-{number}.tmp"


def is_temporary(name: str) -> bool:
    """Whether `name` was made by `temporary_name`."""
    return _TEMPORARY.fullmatch(name) is not None
