"""Retries of reads that race with a broker's retention or recovery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from time import monotonic, sleep
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rmqstore.errors import (
    CorruptQueueError,
    CorruptRecordError,
    FileDeletedError,
    OffsetOutOfRangeError,
)

logger = logging.getLogger(__name__)

_MAX_RETRIES = 10  # of one call, each after a file was deleted
_MAX_SECONDS = 30.0  # for retries of one call while a store keeps changing
_QUIET_SECONDS = 1.0  # without a change, after which a store is taken to be at rest
_PAUSE_SECONDS = 0.1

P = ParamSpec("P")
T = TypeVar("T")


class Refreshable(Protocol):
    """An object that holds a listing of files and can renew it."""

    def refresh(self) -> None: ...


R = TypeVar("R", bound=Refreshable)


def retry_if_deleted(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Call a method again, with a new listing of the files, if retention deleted one of them."""

    @wraps(method)
    def retrying(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_MAX_RETRIES):
            try:
                return method(self, *args, **kwargs)
            except FileDeletedError as err:
                logger.info("%s; trying again with the remaining files", err)
                self.refresh()
        return method(self, *args, **kwargs)

    return retrying


class Signs(Protocol):
    """The state of a store in which a change shows: equal as long as the store has not changed."""

    @property
    def may_be_recovering(self) -> bool:
        """Whether a broker may be recovering the store at the moment."""


class ChangingStore:
    """Repeats calls that failed only because the store was changing.

    A recovery deletes files of the log and of queues, and creates queues again. Results from before
    it contradict those from after it, and results during it may contradict one another. A store at
    rest is read once: its damage stays.

    Args:
        signs: returns the current signs of the store.
        forget: drops all that is cached, so that the next call reads it again.
    """

    def __init__(self, signs: Callable[[], Signs], forget: Callable[[], None]) -> None:
        self._signs = signs
        self._forget = forget
        self._known = signs()

    def answer(self, ask: Callable[[], T]) -> T:
        """Return the result of a call, repeated as long as it fails and the store has changed.

        The error is raised if the signs of the store are still those of the last look. While a
        recovery may be under way, a store that has changed is given some time to change again.
        """
        started = monotonic()
        changed = -float("inf")
        while True:
            try:
                return ask()
            except (CorruptQueueError, CorruptRecordError, OffsetOutOfRangeError) as err:
                signs = self._signs()
                now = monotonic()
                is_new = signs != self._known
                changed = now if is_new else changed
                is_changing = is_new or (signs.may_be_recovering and now - changed < _QUIET_SECONDS)
                if not is_changing or now - started > _MAX_SECONDS:
                    raise
                logger.info("%s; the store is changing, reading all of it again", err)
                if signs.may_be_recovering:
                    sleep(_PAUSE_SECONDS)
                self._known = signs
                self._forget()
