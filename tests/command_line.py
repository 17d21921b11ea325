"""Verbs of the command line, run in this process, and the rows that they print."""

from __future__ import annotations

import json
import re
from typing import Any

import click
from click.testing import CliRunner, Result

from rmqstore.cli import main

_ADVICE = re.compile(r"^  \S.*?[:.] (rmqstore (\w+) .*)$", re.MULTILINE)


def run(*words: object, stdin: str | None = None) -> Result:
    """Return what a verb prints and how it ends, given the words that a user types."""
    return CliRunner().invoke(main, [*map(str, words)], input=stdin)


def advised_commands(*store: object) -> dict[str, str]:
    """Return the commands that verify prints of a store, with their verbs."""
    return dict(_ADVICE.findall(run("verify", *store).stderr))


def success(*words: object, stdin: str | None = None) -> Result:
    shown = run(*words, stdin=stdin)
    assert shown.exit_code == 0, shown.output
    return shown


def rows_of(shown: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.stdout.splitlines()]


def rows(*words: object) -> list[dict[str, Any]]:
    return rows_of(success(*words, "--json"))


def refusal(*words: object) -> str:
    shown = run(*words)
    assert shown.exit_code == 2, shown.output
    return shown.stderr


def examples_of(command: click.Command) -> list[str]:
    """Return the commands that the help of a verb ends with."""
    return [line.strip() for line in str(command.epilog).splitlines()[1:]]
