"""Keeps pandas out of the engine's processes, which have no use for it.

pyarrow imports it, where it is installed, with the first Python value that becomes an Arrow scalar: 50 MB of memory and
0.2 s of processor time for each process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _WithoutPandas:
    """A finder that says that pandas is not installed, which pyarrow is prepared for."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("the engine of lamina works without pandas", name=name)
        return None


def without_pandas() -> None:
    """From now on pandas counts as not installed in this process; to be called before pyarrow is used."""
    sys.meta_path.insert(0, _WithoutPandas())
