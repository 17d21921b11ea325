"""The core without its wings, as if their files were not there.

``RMQSTORE_WITHOUT=live,kafka`` in the environment names wings whose modules cannot be imported in
this process, and ``all`` names all of them. What asks for such a wing is left out: test files that
import a module of it, by themselves or through a helper, cases of its verb, and its folder of
tests. Nothing else may need it: ``make test-wings`` runs the tests of ``make test-core`` without
each wing, and without all of them. The contracts of import-linter in ``pyproject.toml`` say the
same of the imports that stand in the code.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

WINGS: Final = {
    "live": ("rmqstore.live", "pyspark_rmqstore.live"),
    "replica": ("rmqstore.replica", "rmqstore.cli.follow"),
    "kafka": ("kafkalog", "pyspark_kafkalog", "rmqstore.cli.kafka"),
    "report": (
        "rmqstore.inspect.report", "rmqstore.inspect.charts", "rmqstore.inspect.facts",
        "rmqstore.cli.report",
    ),
}  # fmt: skip
_VERBS: Final = {"replica": "follow", "kafka": "kafka", "report": "report"}
_FOLDERS: Final = {"live": "live", "replica": "following", "kafka": "kafkalog"}
# Tests that ask for a wing among other things.
_CASES: Final = {
    "report": ("cli/test_cli.py::test_verbs_read_tiered_storage_by_queue",
               "cli/test_progress.py::test_verbs_that_write_show_their_progress"),
    "kafka": ("inspect/test_doctor.py::test_a_computer_that_runs_the_tests_is_well",),
}  # fmt: skip
_NETWORK: Final = {"live", "replica"}  # which share rmqstore.remoting
_TESTS: Final = Path(__file__).parent


def _named(text: str) -> frozenset[str]:
    names = {*WINGS} if text == "all" else {name for name in text.split(",") if name}
    assert names <= {*WINGS}, f"RMQSTORE_WITHOUT={text}: the wings are {', '.join(WINGS)}"
    return frozenset(names)


WITHOUT: Final = _named(os.environ.get("RMQSTORE_WITHOUT", ""))
_GONE: Final = (
    *(module for name in WITHOUT for module in WINGS[name]),
    *(("rmqstore.remoting",) if WITHOUT >= _NETWORK else ()),
)


def _is_gone(module: str) -> bool:
    return any(module == gone or module.startswith(f"{gone}.") for gone in _GONE)


class _Gone:
    """Finds no module of the wings, and lets nothing else find one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if _is_gone(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def is_of_wing(path: Path) -> bool:
    """Return whether a file or folder of tests is of a wing that is gone."""
    folders = (_TESTS / _FOLDERS[name] for name in WITHOUT & {*_FOLDERS})
    if any(path.is_relative_to(folder) for folder in folders):
        return True
    return bool(WITHOUT) and path.suffix == ".py" and _needs_wing(path)


def take_out(items: list[pytest.Item]) -> None:
    """Take the cases of wings that are gone out of a list: those of their verbs, and a few more."""
    verbs = {_VERBS[name] for name in WITHOUT & {*_VERBS}}
    tests = {f"tests/{test}" for name in WITHOUT & {*_CASES} for test in _CASES[name]}
    if WITHOUT:
        items[:] = [
            item
            for item in items
            if not verbs & {*_parameters(item)} and item.nodeid.partition("[")[0] not in tests
        ]


def _parameters(item: pytest.Item) -> list[str]:
    _, _, parameters = item.name.rstrip("]").partition("[")
    return re.split("[- ]", parameters)


@cache
def _needs_wing(file: Path) -> bool:
    """Return whether a test file imports a module of the wings that are gone."""
    return any(_is_gone(name) or any(map(_needs_wing, _helpers(name))) for name in _imported(file))


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _helpers(module: str) -> Iterator[Path]:
    file = _TESTS.joinpath(*module.split(".")).with_suffix(".py")
    if file.is_file():
        yield file


if WITHOUT:
    sys.meta_path.insert(0, _Gone())
