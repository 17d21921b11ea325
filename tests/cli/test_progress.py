"""Progress on stderr: the right total, all of it done in the end, and on terminals only."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

import command_line

Run = Callable[..., tuple[Result, str]]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command and returns what a terminal shows of its progress."""

    def run(*arguments: object) -> tuple[Result, str]:
        terminal = io.StringIO()
        console = Console(file=terminal, force_terminal=True, width=120, color_system=None)
        monkeypatch.setattr("rmqstore.cli.common.err_console", console)
        result = command_line.run(*arguments)
        assert result.exit_code in (0, 1), result.output
        lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()))
        return result, next((line for line in reversed(lines) if "%" in line), "")

    return run


@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        (["dump"], "100 % 410/410 messages"),
        (["dump", "--tags", "none"], "100 % 410/410 messages"),
        (["dump", "-t", "LiveTx"], "100 % 6/6 messages"),
        (["dump", "-t", "LivePlain", "--last", "2"], "100 % 8/8 messages"),
        (["dump", "--scan", "commitlog", "--tags", "none"], "100 % 232.9 kB/232.9 kB"),
        (["verify"], "100 % 232.9 kB/232.9 kB"),
        (["stat", "-t", "LivePlain"], "100 % 4/4 queues"),
        (["query", "-k", "key-1", "-t", "LivePlain"], "100 % "),
        (["dump", "-b", "2100-01-01"], "100 % 0/0 messages"),
        (["dump", "-n", "10"], "100 % 10/10 messages"),
        (["dump", "--scan", "commitlog", "-n", "10"], "100 % 10/10 messages"),
        (["dump", "-t", "LiveTx", "-n", "10"], "100 % 6/6 messages"),
    ],
    ids=str,
)
def test_in_the_end_all_is_done(
    live: Path, on_terminal: Run, arguments: list[str], done: str
) -> None:
    _, last = on_terminal(arguments[0], live, *arguments[1:])
    assert done in " ".join(last.split())


def test_verbs_that_write_show_their_progress(live: Path, on_terminal: Run, tmp_path: Path) -> None:
    rows, store = tmp_path / "rows.parquet", tmp_path / "s"
    assert "100 % 410/410 messages" in on_terminal("export", live, rows)[1]
    assert "100 % 410/410 messages" in on_terminal("import", store, rows)[1]
    assert re.search(r"100 % (\S+ kB)/\1", on_terminal("rebuild", store)[1])
    assert re.search(r"100 % (\S+ \w+)/\1", on_terminal("copy", store, tmp_path / "copy")[1])
    assert re.search(
        r"100 % (\S+ kB)/\1",
        on_terminal("report", live, "-o", tmp_path / "page.html")[1],
    )


def test_progress_is_on_terminals_only_and_not_when_quiet(
    live: Path, on_terminal: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb, quietly, plainly in (
        ("dump", [], []), ("stat", [], []), ("query", ["-k", "key-1"], ["-k", "key-1"]),
        ("verify", [], []), ("export", ["1.csv"], ["2.csv"]), ("copy", ["one"], ["two"]),
    ):  # fmt: skip
        assert on_terminal(verb, live, *quietly, "--quiet")[1] == ""
        assert "%" not in command_line.success(verb, live, *plainly).stderr
