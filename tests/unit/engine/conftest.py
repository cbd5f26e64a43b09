"""Fixtures: an engine process that ends with its test, and a checkpoint to open stores in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.engine_client import Engine

Starter = Callable[..., Engine]


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[Starter]:
    """Starts engines whose processes are gone when the test is over, whatever it did to them."""
    engines: list[Engine] = []

    def start(directory: Path | None = None, **options: Any) -> Engine:
        engine = Engine(directory or tmp_path / f"lamina-{len(engines)}", **options)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.end()


@pytest.fixture
def engine(start_engine: Starter) -> Engine:
    """A running engine."""
    return start_engine()


def nothing(collects: bool) -> dict[str, Any]:
    """What an engine says that knows nothing of a store."""
    return {"waiting": [], "footprints": [], "broken": []}
