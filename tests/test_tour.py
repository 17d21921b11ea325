"""The notebook runs from its first cell to its last, and shows what was committed with it."""

from __future__ import annotations

import sys
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from goldens import Golden

pytest.importorskip("ipykernel")
nbformat = pytest.importorskip("nbformat")
tour = pytest.importorskip("tour")

MOST_BYTES = 200_000  # with its plots, as much as a commit takes of a file


@pytest.fixture(scope="module")
def committed() -> Any:
    return nbformat.read(tour.NOTEBOOK, as_version=4)


def outputs(cell: Any) -> list[Any]:
    return cell.get("outputs", [])


def test_what_was_committed_is_small_and_without_an_error(committed: Any) -> None:
    assert tour.NOTEBOOK.stat().st_size < MOST_BYTES
    assert (tour.ROOT / "examples" / "tour.ipynb").resolve() == tour.NOTEBOOK
    every = [output for cell in committed.cells for output in outputs(cell)]
    assert {output.output_type for output in every} == {"display_data", "execute_result"}
    assert sum("image/png" in output.data for output in every) == 5


@pytest.mark.spark
@pytest.mark.usefixtures("java")
def test_the_notebook_shows_what_was_committed(
    committed: Any, golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden_store("live")
    monkeypatch.setenv("RMQSTORE_STORE", str(root))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    notebook = deepcopy(committed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Jupyter
        tour.run(notebook, tmp_path)
    for cell, before in zip(notebook.cells, committed.cells, strict=True):
        now, then = outputs(cell), outputs(before)
        assert [{*each.data} for each in now] == [{*each.data} for each in then], cell.source
        for output, expected in zip(now, then, strict=True):
            text = output.data["text/plain"].replace(str(root), "../.demo/live")
            assert text == expected.data["text/plain"], cell.source
