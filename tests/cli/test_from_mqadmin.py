"""The page for those who know other tools: every command in its tables runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import manual
from command_line import success
from goldens import Golden
from rmqstore.cli.verbs import VERBS

PAGE = manual.ROOT / "docs" / "from-mqadmin.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`rmqstore " in line
]


def test_each_row_names_what_it_stands_for_and_one_command() -> None:
    assert len(ROWS) >= 40
    for known, command, _ in ROWS:
        assert known
        assert re.fullmatch("`rmqstore [^`]+`", command), command
    verbs = {command.split()[1] for _, command, _ in ROWS}
    assert verbs <= set(VERBS)


def test_every_command_of_the_tables_runs(
    golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual.make_places(golden_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    for _, command, _ in ROWS:
        _, *words = shlex.split(manual.placed(command.strip("`"), tmp_path))
        done = success(*words)
        is_quiet = words[:2] in (["view", "traces"], ["view", "epochs"])
        assert bool(done.output.strip()) or is_quiet, command
