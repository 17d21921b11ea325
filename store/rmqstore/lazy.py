"""Values of objects that are found on first use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801 - the name of what it is
    """A cached property that no thread waits for: two that need it first may both find it.

    In Python 3.11 all objects of a class share a lock for it, which would be held for ever in the
    child of a process that forks meanwhile.
    """

    def __init__(self, find: Callable[[Any], T]) -> None:
        super().__init__(find)
        self.lock = nullcontext()
