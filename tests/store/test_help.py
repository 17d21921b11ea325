"""``help`` shows what a function takes, an argument a line, as the package names it."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable

import pytest

import rmqstore
from rmqstore.query.arguments import FolderArguments, SelectionArguments, ViewArguments


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (rmqstore.open, FolderArguments),
        (rmqstore.MessageStore.scan, SelectionArguments),
        (rmqstore.MessageStore.view, ViewArguments),
    ],
    ids=["open", "scan", "view"],
)
def test_every_argument_is_shown_and_has_a_line(
    function: Callable[..., object], arguments: type
) -> None:
    shown = inspect.signature(function).parameters
    assert {*arguments.__annotations__} <= {*shown}
    assert not any(one.kind is one.VAR_KEYWORD for one in shown.values())
    lines = re.findall(r"^ +(\w+): ", function.__doc__ or "", re.MULTILINE)
    left_out = {"self", "storage"}
    assert {*shown} - {*lines} <= left_out


def test_defaults_are_those_of_the_arguments() -> None:
    shown = inspect.signature(rmqstore.MessageStore.scan).parameters
    assert shown["ending_offsets"].default == "latest"
    assert shown["include_system_topics"].default is False


def test_open_is_called_open() -> None:
    assert (rmqstore.open.__name__, rmqstore.open.__module__) == ("open", "rmqstore")
    assert pickle.loads(pickle.dumps(rmqstore.open)) is rmqstore.open
