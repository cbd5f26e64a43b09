"""Finds and loads the main job's source, `flight_delays.py`: beside this module in a wheel, else in `examples/`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_NAME = "flight_delays"


def source() -> Path:
    """The path of the job's source.

    Raises:
        FileNotFoundError: neither the wheel nor the source tree has it.
    """
    here = Path(__file__).resolve().parent
    for path in (here / f"{_NAME}.py", here.parents[2] / "examples" / f"{_NAME}.py"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{_NAME}.py is neither in {here} nor in the examples directory of the source tree")


def load() -> ModuleType:
    """The job as a module; needs pyspark."""
    spec = importlib.util.spec_from_file_location(_NAME, source())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module
