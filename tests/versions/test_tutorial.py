"""The tutorial as a reader follows it, in a fresh environment with Delta Lake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import goldens
import manual
from versions.environments import FOLDER, ROOT, run_command

pytestmark = pytest.mark.versions

PAGE = ROOT / "docs" / "tutorial.md"


def test_the_tutorial_runs_as_it_is_written(tmp_path: Path) -> None:
    install = re.search(r"^\$ pip install '\.\[(.+)\]' (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert install is not None
    folder = FOLDER / "tutorial"
    python = folder / "bin" / "python"
    run_command("python3", "-m", "venv", "--clear", folder)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_command(*pip, f"{ROOT}[{install[1]}]", install[2])
    goldens.unpack("live", tmp_path / ".demo")
    lines = [each.code for each in manual.snippets(PAGE) if each.language == "python"]
    assert len(lines) == 5
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join([*lines, "print('the end')\n"]), encoding="utf-8")
    printed = run_command(python, script, folder=tmp_path, PYSPARK_PYTHON=str(python))
    assert printed.rstrip().endswith("the end")
