"""Questions about a store that may change while they are answered.

Retention deletes files, writers open closed stores, and recoveries cut the log and make queues
again. A question is asked again if one of these :class:`Change` happened meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Protocol, TypeVar

from rmqstore.errors import (
    CorruptQueueError,
    CorruptRecordError,
    FileDeletedError,
    OffsetOutOfRangeError,
    RmqStoreError,
)
from rmqstore.storage.broker.broker_run import BrokerRun, StoreSigns
from rmqstore.storage.files.paths import StorePaths

logger = logging.getLogger(__name__)

_MAX_DELETIONS = 10  # of files, during one question
_MAX_RESTARTS = 10  # a store that is opened and closed all the time is not recovered each time
_MAX_SECONDS = 30.0  # for one question while a store keeps changing
_QUIET_SECONDS = 1.0  # without a change, after which a store is taken to be at rest
_PAUSE_SECONDS = 0.1

T = TypeVar("T")


class Change(Protocol):
    """A way in which a store may change while a question about it is answered."""

    def happened(self, error: RmqStoreError | None) -> bool:
        """Return whether the store changed so that an answer does not hold.

        What is cached of the store is dropped then.

        Args:
            error: the error that came in place of an answer; None if there is an answer.
        """
        ...


def retry(ask: Callable[[], T], *changes: Change) -> T:
    """Return the answer to a question, asked again as long as the store changes meanwhile."""
    while True:
        try:
            answer = ask()
        except RmqStoreError as err:
            if not any(change.happened(err) for change in changes):
                raise
            logger.info("%s; the store has changed, trying again", err)
        else:
            if not any(change.happened(None) for change in changes):
                return answer


class Refreshable(Protocol):
    """An object that holds a listing of files and can renew it."""

    def refresh(self) -> None: ...


class Deletions:
    """Files that have gone since they were listed, such as those that retention deletes."""

    def __init__(self, store: Refreshable) -> None:
        self._store = store
        self._n_left = _MAX_DELETIONS

    def happened(self, error: RmqStoreError | None) -> bool:
        """Return whether a file was deleted; the files are listed again then."""
        if not isinstance(error, FileDeletedError) or not self._n_left:
            return False
        self._n_left -= 1
        self._store.refresh()
        return True


class Restarts:
    """Starts and ends of a broker or a writer.

    A question that is answered in several steps could have a part of an append as its answer, or
    records of before a recovery and of after it.

    Args:
        paths: the paths of the store.
        forget: drops what is cached of the store.
    """

    def __init__(self, paths: StorePaths, forget: Callable[[], None]) -> None:
        self._paths = paths
        self._forget = forget
        self._n_left = _MAX_RESTARTS
        self.run = BrokerRun.of(paths)  # when the question was asked last

    def happened(self, error: RmqStoreError | None) -> bool:
        """Return whether there is an answer, and the store is in another run than before it."""
        run = BrokerRun.of(self._paths)
        if error is not None or run == self.run or not self._n_left:
            return False
        self._n_left -= 1
        self.run = run
        self._forget()
        return True


class Recoveries:
    """Recoveries, which let a store contradict earlier reads of it.

    They delete files of the log and of queues, and create queues again. The damage of a store at
    rest stays, so it is read once. While a recovery may be under way, a store that has changed is
    given some time to change again.

    Args:
        signs: returns the current signs of the stores that a question is about.
        forget: drops all that is cached of the store.
    """

    def __init__(
        self, signs: Callable[[], Sequence[StoreSigns]], forget: Callable[[], None]
    ) -> None:
        self._signs = signs
        self._forget = forget
        self._known = signs()
        self._first_failed: float | None = None  # when the present question did
        self._changed = -float("inf")

    def happened(self, error: RmqStoreError | None) -> bool:
        """Return whether an error may come from a recovery, after which all is read again."""
        if not isinstance(error, (CorruptQueueError, CorruptRecordError, OffsetOutOfRangeError)):
            self._first_failed = None
            return False
        signs, now = self._signs(), monotonic()
        if self._first_failed is None:
            self._first_failed = now
            self._changed = -float("inf")
        is_new = signs != self._known
        if is_new:
            self._changed = now
        may_be_recovering = any(store.may_be_recovering for store in signs)
        is_changing = is_new or (may_be_recovering and now - self._changed < _QUIET_SECONDS)
        if not is_changing or now - self._first_failed > _MAX_SECONDS:
            self._first_failed = None
            return False
        if may_be_recovering:
            sleep(_PAUSE_SECONDS)
        self._known = signs
        self._forget()
        return True
