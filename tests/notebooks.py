"""Runs the notebooks of `examples/`; `python -m tests.notebooks` keeps what they give, but not what the JVM logs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PATHS = sorted(EXAMPLES.glob("*.ipynb"))


def executed(path: Path, folder: Path) -> Any:
    """The notebook at `path`, run by a fresh kernel in `folder`."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> None:
    """Writes each notebook anew."""
    for path in PATHS:
        with tempfile.TemporaryDirectory(prefix="lamina-notebook-") as folder:
            nbformat.write(executed(path, Path(folder)), path)
        print(path.name)


if __name__ == "__main__":
    main()
