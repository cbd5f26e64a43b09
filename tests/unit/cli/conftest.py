"""Fixtures: the command line as a function, and a query with its state in lamina."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lamina.cli.main import run
from lamina.cli.targets import Targets
from lamina.storage import Listed, Storage
from lamina.testing import FaultyBackend
from tests.unit.cli.query_on_disk import QueryOnDisk


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Lamina = Callable[..., Outcome]


@pytest.fixture
def lamina(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lamina:
    """Runs `lamina` with arguments, on a terminal of 140 columns without colours."""
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


class Both(FaultyBackend):
    """Lists a store only when another one is listed at the same time."""

    def __init__(self, state: Storage) -> None:
        super().__init__(state._backend)
        self._barrier = threading.Barrier(2)
        self._listed: set[str] = set()

    def list(self, directory: str) -> Sequence[Listed]:
        if directory in ("0/0", "0/1") and directory not in self._listed:
            self._listed.add(directory)
            self._barrier.wait(timeout=10)
        return super().list(directory)


def needing_both(found: Targets) -> Targets:
    """The same stores, of which one alone cannot be worked on."""
    return replace(found, state=Storage(found.state.url, backend=Both(found.state)))


@pytest.fixture(params=[1, 2], ids=["format v1", "format v2"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> QueryOnDisk:
    """A query that has not run yet."""
    return QueryOnDisk(tmp_path / "checkpoint", request.param)
