"""Values that are kept until too many others were used after them, such as open files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import RLock
from typing import Final, Generic, TypeVar

from rmqstore import platforms

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# For changes of all of them. It is held for a few operations in memory, and no process forks then.
_guard: Final = RLock()
platforms.keep_over_forks(_guard)


class Recent(Generic[K, V]):
    """The values that were used last, by key. Any number of threads may share it.

    A value that is not kept any more is only given up here: whoever reads it holds it. Keys are
    text, numbers or tuples of these, which are compared in one operation; those of others are
    looked up under a lock of the caller.

    Args:
        at_once: how many values are kept at most.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value of a key, which is the one used last now; None without one."""
        value = self._values.get(key)
        if value is not None:
            try:  # noqa: SIM105 - `suppress` takes longer than the rest
                self._values.move_to_end(key)
            except KeyError:  # another thread has just given it up
                pass
        return value

    def put(self, key: K, value: V) -> V:
        """Keep a value in place of an older one of its key, and return it."""
        with _guard:
            self._values.pop(key, None)
            self._values[key] = value
            if len(self._values) > self._at_once:
                self._values.popitem(last=False)
        return value

    def drop(self, key: K) -> None:
        """Give up the value of a key, if there is one."""
        with _guard:
            self._values.pop(key, None)
