"""Old names of arguments and attributes, which warn and work until 2.0."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from warnings import warn

from rmqstore.errors import OptionError

Arguments = ParamSpec("Arguments")
T = TypeVar("T")


def renamed(**names: str) -> Callable[[Callable[Arguments, T]], Callable[Arguments, T]]:
    """Return a decorator that lets a function take arguments by their old names, with a warning.

    Args:
        names: the new names by the old ones.
    """

    def decorate(function: Callable[Arguments, T]) -> Callable[Arguments, T]:
        @wraps(function)
        def call(*positional: Arguments.args, **given: Arguments.kwargs) -> T:
            for old in names.keys() & given.keys():
                new = names[old]
                if new in given:
                    raise OptionError(f"{new} and {old}, its old name: give one of them")
                warn(
                    f"argument {old} is called {new} now; rmqstore 2.0 does not take {old}",
                    DeprecationWarning,
                    stacklevel=2,
                )
                given[new] = given.pop(old)
            return function(*positional, **given)

        return call

    return decorate


class TopicNames(list[str]):
    """The names of topics, which a call returns: ``logs.topics()``.

    It is the list that ``logs.topics`` was without a call, too. What reads it as a list warns.
    """

    def __call__(self) -> list[str]:
        """Return the names as a plain list."""
        return super().copy()


def _warning(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a list that warns before it does what it did."""

    @wraps(method)
    def call(names: TopicNames, *arguments: object, **named: object) -> Any:  # noqa: ANN401
        warn(
            "topics is a method now: logs.topics(); rmqstore 2.0 has no list logs.topics",
            DeprecationWarning,
            stacklevel=2,
        )
        return method(names, *arguments, **named)

    return call


for _name in (
    "__add__", "__contains__", "__eq__", "__getitem__", "__iter__", "__len__", "__ne__", "__repr__",
    "__reversed__", "copy", "count", "index",
):  # fmt: skip
    setattr(TopicNames, _name, _warning(getattr(list, _name)))
