"""Where local copies lie, and the S3 of a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3_server import S3Server


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def server(module_server: S3Server) -> Iterator[S3Server]:
    """The module's `module_server` with nothing left over from the test before."""
    module_server.proxy.forget()
    module_server.proxy.troubles.clear()
    yield module_server
    assert all(trouble.times == 0 for trouble in module_server.proxy.troubles), "a trouble was never met"
