"""Runs the notebook of the manual: ``python docs/_ext/tour.py`` writes into it what it shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
_SECONDS = 600  # a cell


def run(notebook: Any, folder: Path) -> None:  # noqa: ANN401 - without a type of its own
    """Run all cells in a folder, and keep what they show, but for what Spark and Java log."""
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=_SECONDS, kernel_name="python3", record_timing=False, resources=resources
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}  # whatever version ran it


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    read = nbformat.read(NOTEBOOK, as_version=4)
    run(read, ROOT / "examples")
    nbformat.write(read, NOTEBOOK)
