"""How long what users open may be used: until it is closed, and in the process that opened it."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from rmqstore.errors import StoreStateError
from rmqstore.storage.files.storage import Closing, Storage

P = ParamSpec("P")
T = TypeVar("T")


class Lifetime:
    """From the opening of an object until it is closed.

    Args:
        name: of the object, for errors.
        again: what to do to use it again, for errors.
        is_inherited: whether the children of the process that opened it may use it too.
    """

    def __init__(self, name: str, again: str, *, is_inherited: bool = False) -> None:
        self._name = name
        self._again = again
        self._process = None if is_inherited else os.getpid()
        self.is_closed = False

    @property
    def is_here(self) -> bool:
        """Whether this process may use the object."""
        return self._process in (None, os.getpid())

    def require(self) -> None:
        """Refuse an object that may not be used.

        Raises:
            StoreStateError: it was closed, or another process opened it.
        """
        if self.is_closed or not self.is_here:
            what = "closed" if self.is_here else f"opened by another process ({self._process})"
            raise StoreStateError(f"{self._name} was {what}: {self._again}")

    def end(self) -> None:
        """Note that the object is closed."""
        self.is_closed = True


def lifetime_of_reads(name: str, storage: Storage) -> Lifetime:
    """Return the lifetime of what reads a storage; connections to one are not inherited."""
    is_inherited = storage.requests_made() is None
    return Lifetime(name, "open it again to read it", is_inherited=is_inherited)


class Turns(Lifetime):
    """The lifetime of an object that takes one call at a time: those of other threads wait."""

    def __init__(self, name: str, again: str) -> None:
        super().__init__(name, again)
        self._lock = RLock()
        self._is_taken = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the calls of other threads, then keep them waiting.

        Raises:
            StoreStateError: another process opened the object, or it is used within a call of its
                own, as by the handler of a signal.
        """
        if not self.is_here:  # a fork may have copied the lock while it was held
            self.require()
        with self._lock:
            if self._is_taken:
                raise StoreStateError(f"{self._name}: a call of this thread has not returned yet")
            self._is_taken = True
            try:
                yield
            finally:
                self._is_taken = False


class Opened(Closing):
    """What users open: it stays in the process that opened it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: pass on the path, and open it in the "
            "process that uses it; or pass on the rows that were read"
        )


class OpenedInTurns(Opened):
    """What users open, and use by one call at a time.

    Attributes:
        turns: who may use it, and when.
    """

    turns: Turns

    def _require_open(self) -> None:
        self.turns.require()

    def __exit__(self, *exc_info: object) -> None:
        self._end(completes=exc_info[0] is None)

    def close(self) -> None:
        """Complete what was begun, unless something failed, and release what is open.

        Closing once more does nothing, nor does it in a process that has not opened this.
        """
        self._end(completes=True)

    def _end(self, *, completes: bool) -> None:
        if self.turns.is_here:
            with self.turns.turn():
                if not self.turns.is_closed:
                    self.turns.end()
                    self._close(completes=completes)

    @abstractmethod
    def _close(self, *, completes: bool) -> None:
        """Release what is open."""


S = TypeVar("S", bound=OpenedInTurns)


def in_turn(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Let a method run only while its object is open, and alone."""

    @wraps(method)
    def alone(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.turns.turn():
            self.turns.require()
            return method(self, *args, **kwargs)

    return alone
