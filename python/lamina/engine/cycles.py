"""How often Python looks for cycles of objects in the engine's processes."""

from __future__ import annotations

import gc

_ALLOCATIONS = 5_000
"""So many objects more than have gone before the young ones are looked at: a commit makes some hundred, which go when
nobody refers to them any more. With Python's 700 looking takes an eighth of a small commit's time."""


def collect_seldom() -> None:
    """To be called when a process has started: what was imported stays for ever, and is not looked at again."""
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)
