"""Fixtures: the command line as a function, and a query with its state in lamina."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lamina.cli.main import run
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


@pytest.fixture(params=[1, 2], ids=["format v1", "format v2"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> QueryOnDisk:
    """A query that has not run yet."""
    return QueryOnDisk(tmp_path / "checkpoint", request.param)
