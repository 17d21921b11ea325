"""Copying a store that changes meanwhile, again until what was copied is what the store has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from rmqstore.copying.plan import CopyPlan, CopyRequest, plan_copy
from rmqstore.errors import FileDeletedError, StoreStateError
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_MAX_ROUNDS: Final = 10  # each after the store was opened, or a file of the log was deleted


class Settled(NamedTuple):
    """What the last round copied.

    Attributes:
        plan: the files.
        is_closed: whether the store was closed.
    """

    plan: CopyPlan
    is_closed: bool


def copy_until_settled(
    open_source: Callable[[], MessageStore],
    request: CopyRequest,
    copy_files: Callable[[MessageStore], CopyPlan],
    advice: str,
) -> Settled:
    """Copy the files of a store, round by round, and warn of those that cannot be copied.

    Args:
        open_source: opens the store.
        request: what of it is copied.
        copy_files: makes one round; returns what it copied.
        advice: what to do about a store that changes faster than it can be copied.

    Raises:
        StoreStateError: the store changes all the time.
    """
    for _ in range(_MAX_ROUNDS):
        try:
            with open_source() as store:
                plan, is_closed = copy_files(store), store.log_end is None
                is_outdated = is_closed and _has_changed(store, request, plan)
        except (FileDeletedError, FileNotFoundError) as err:
            logger.info("%s; going on with the files that remain", err)
            continue
        if is_outdated:
            logger.info("the store was opened meanwhile; copying what has changed")
            continue
        for text in plan.skipped:
            logger.warning("not copied: %s", text)
        return Settled(plan, is_closed)
    raise StoreStateError(f"the store changes faster than it can be copied: {advice}")


def _has_changed(store: MessageStore, request: CopyRequest, plan: CopyPlan) -> bool:
    """Tell whether a writer has opened a store that was closed, since a copy of it was planned."""
    paths = store.paths
    paths.storage.refresh()
    store.session.refresh()
    if paths.has_abort or paths.storage.is_locked(paths.lock):
        return True
    return plan_copy(store.session, request, plan.log_start, None) != plan
