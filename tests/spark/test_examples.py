"""The notebooks of `examples/` run as they are, and give what is stored in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks import PATHS, executed


def given(notebook: Any) -> list[Any]:
    """What each cell printed and gave."""
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def test_there_is_a_notebook() -> None:
    assert PATHS


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_is_stored_in_it(path: Path, tmp_path: Path) -> None:
    stored = given(nbformat.read(path, as_version=4))
    assert sum(map(len, stored)) > 3
    assert given(executed(path, tmp_path)) == stored
