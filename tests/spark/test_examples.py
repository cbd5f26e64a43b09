"""The notebooks of `examples/` run as they are, and still give what is stored in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def told(notebook: Any) -> list[str]:
    """What its cells printed and gave, without what the JVM says of itself."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in outputs
        if output.get("name") != "stderr"
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_gives_what_is_stored_in_it(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    assert told(stored)
    again = nbformat.read(path, as_version=4)
    NotebookClient(again, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert told(again) == told(stored)
