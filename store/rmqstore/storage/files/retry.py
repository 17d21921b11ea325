"""Questions to a store whose broker deletes files, or recovers the store, while they are answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from time import monotonic, sleep
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rmqstore.errors import CorruptQueueError, CorruptRecordError, FileDeletedError, OffsetOutOfRangeError

logger = logging.getLogger(__name__)

_PATIENCE = 10  # files that may vanish while one question is answered
_MOST_SECONDS = 30.0  # that one question takes while a store keeps changing
_QUIET_SECONDS = 1.0  # after which a store that changed is taken to be at rest
_PAUSE_SECONDS = 0.1

P = ParamSpec("P")
T = TypeVar("T")


class Refreshable(Protocol):
    """What lists files and can do so anew."""

    def refresh(self) -> None: ...


R = TypeVar("R", bound=Refreshable)


def anew_if_deleted(ask: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Ask again, of the files that are left, where retention deleted one that an answer was to come from."""

    @wraps(ask)
    def asked(asked_of: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_PATIENCE):
            try:
                return ask(asked_of, *args, **kwargs)
            except FileDeletedError as err:
                logger.info("%s; asking the files that are left", err)
                asked_of.refresh()
        return ask(asked_of, *args, **kwargs)

    return asked


class Signs(Protocol):
    """What of a store shows that it changed; equal where it did not."""

    @property
    def may_be_recovering(self) -> bool:
        """Whether a broker may be recovering the store, which takes some time."""


class ChangingStore:
    """Asks again what a store contradicted only because it was changing.

    A recovery deletes files of the log and of queues, and makes queues anew. What was found before does not fit what
    is found later, and what is found meanwhile may not fit together. A store at rest is asked once: its damage stays.

    Args:
        signs: looks at the store.
        forget: makes the next question look at everything anew.
    """

    def __init__(self, signs: Callable[[], Signs], forget: Callable[[], None]) -> None:
        self._signs, self._forget = signs, forget
        self._known = signs()

    def answer(self, ask: Callable[[], T]) -> T:
        """Return the answer to a question; raise what it raised if the store has not changed since it was looked at.

        While a recovery may go on, a store that has changed is given some time to change again.
        """
        begun, changed = monotonic(), -float("inf")
        while True:
            try:
                return ask()
            except (CorruptQueueError, CorruptRecordError, OffsetOutOfRangeError) as err:
                signs, now = self._signs(), monotonic()
                is_new = signs != self._known
                changed = now if is_new else changed
                is_changing = is_new or (signs.may_be_recovering and now - changed < _QUIET_SECONDS)
                if not is_changing or now - begun > _MOST_SECONDS:
                    raise
                logger.info("%s; the store is changing, looking at all of it again", err)
                if signs.may_be_recovering:
                    sleep(_PAUSE_SECONDS)
                self._known = signs
                self._forget()
