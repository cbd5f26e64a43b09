"""lamina: incremental, verifiable, movable state for Spark Structured Streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lamina._version import __version__
from lamina.errors import LaminaError

if TYPE_CHECKING:
    from lamina.spark import configure
    from lamina.store.direct.open import open_store

__all__ = ["LaminaError", "__version__", "configure", "open_store"]

# Imported when first used: `configure` must work without pyarrow, and the engine needs neither.
_MODULES = {"configure": "lamina.spark", "open_store": "lamina.store.direct.open"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lamina' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)
