"""How commands end that somebody stops: at a question, by Ctrl-C, or by closed streams."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from command_line import run
from goldens import Golden

COMMAND = [sys.executable, "-m", "rmqstore"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, click.Abort])
def test_ctrl_c_has_its_own_code(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """A question of click makes an Abort of it."""

    def interrupt(*_arguments: object, **_others: object) -> None:
        raise kind

    monkeypatch.setattr("rmqstore.cli.verify.verify_store", interrupt)
    done = run("verify", golden_store("one"))
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("closed", "code"), [("<&-", 0), (">&-", 141), ("2>&-", 0), ("<&- 2>&-", 0)]
)
@pytest.mark.parametrize("words", ["dump", "stat", "topics", "rebuild --dry-run"])
def test_streams_that_a_shell_closed(
    golden_store: Golden, words: str, closed: str, code: int
) -> None:
    verb, *options = words.split()
    command = " ".join([*COMMAND, verb, str(golden_store("one")), *options, closed])
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr
