"""What needs Delta Lake, in a fresh environment: the tutorial as it is written, and an example."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import goldens
import manual
import rmqstore
from versions.environments import ROOT, fresh_environment, run_command

pytestmark = pytest.mark.versions

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python of an environment that is made as the tutorial says."""
    install = re.search(r"^\$ pip install '\.\[(.+)\]' (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert install is not None
    return fresh_environment("tutorial", f"{ROOT}[{install[1]}]", install[2])


def test_the_tutorial_runs_as_it_is_written(python: Path, tmp_path: Path) -> None:
    goldens.unpack("live", tmp_path / ".demo")
    lines = [each.code for each in manual.snippets(PAGE) if each.language == "python"]
    assert len(lines) == 5
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join([*lines, "print('the end')\n"]), encoding="utf-8")
    printed = run_command(python, script, folder=tmp_path, PYSPARK_PYTHON=str(python))
    assert printed.rstrip().endswith("the end")


def test_a_batch_of_bodies_that_is_repeated_is_in_a_delta_table_once(
    python: Path, tmp_path: Path
) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    bodies = [f'{{"orderId": {number}}}'.encode() for number in range(20)]
    with rmqstore.create(root) as writer:
        writer.append(pa.table({"topic": ["Orders"] * 20, "body": [*bodies[1:], b"bad"]}))
    script = ROOT / "examples" / "18_bodies_to_table.py"
    for _ in range(2):
        printed = run_command(python, script, root, "Orders", lake, PYSPARK_PYTHON=str(python))
        assert "19 orders, 1 bad bodies, 0 queues with gaps or doubles" in printed
        # As if Spark had crashed after the batch was written, and before it was noted.
        shutil.rmtree(lake / "_checkpoint" / "commits")
