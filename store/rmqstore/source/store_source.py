"""The stores that a read names, as a source of tasks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from rmqstore.query.selection import Selection, concerns, require_named
from rmqstore.read.parts import Part
from rmqstore.read.plan import known_topics, plan
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts, open_ref
from rmqstore.read.store_ref import StoreRef
from rmqstore.read.views.parts import ViewPart
from rmqstore.read.views.stores import stores_that_are_read
from rmqstore.source.store_stream import StoreStream
from rmqstore.source.tasks import StoreTask

logger = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")

_AT_ONCE = 8  # stores that are opened or planned
_REQUEST_BYTES = 4 << 20  # that a long read of a remote store fetches by one request


@dataclass(frozen=True)
class StoreSource:
    """Stores of files, of one broker or of several.

    Attributes:
        stores: where they lie.
    """

    stores: tuple[StoreRef, ...]

    def __str__(self) -> str:
        """Return the paths of the stores."""
        return ", ".join(ref.path for ref in self.stores)

    def plan(self, request: ScanRequest, limits: Limits) -> list[StoreTask]:
        """Return what a request asks of all stores, one after the other.

        Args:
            request: what is asked for.
            limits: those within which the tasks are to be split.

        Raises:
            OptionError: no store has a topic or queue that is named; also as
                :meth:`of_each_broker`.
        """
        return plan_each(
            self.of_each_broker(),
            request.named,
            lambda store: known_topics(store, request),
            lambda store: [one for part in plan(store, request, limits) for one in part.parts],
        )

    def follow(self, request: ScanRequest) -> StoreStream:
        """Return the stream of new messages of the stores."""
        return StoreStream(self.of_each_broker, request)

    def of_each_broker(self) -> tuple[StoreRef, ...]:
        """Return the stores without replicas of others: of these one is read.

        Raises:
            OptionError: two stores have the same broker name and are not replicas of each other.
            UnsupportedFeatureError: a store is of a kind that cannot be compared with another one.
        """
        if len(self.stores) == 1:
            return self.stores
        names = _each(self.stores, _broker_name)
        counts = Counter(names)
        shared = [ref for ref, name in zip(self.stores, names, strict=True) if counts[name] > 1]
        with ExitStack() as stack:
            opened = {stack.enter_context(open_ref(ref)): ref.path for ref in shared}
            unread = {*opened.values()} - {
                opened[store] for store in stores_that_are_read([*opened])
            }
        return tuple(ref for ref in self.stores if ref.path not in unread)


def plan_each(
    stores: Sequence[StoreRef],
    named: Selection | None,
    known: Callable[[StoreParts], dict[str, set[int]]],
    plan_one: Callable[[StoreParts], Sequence[Part | ViewPart]],
) -> list[StoreTask]:
    """Return the tasks of all stores, one store after the other.

    Args:
        stores: where they lie.
        named: what names topics that some store must have; None if nothing does.
        known: returns the topics of a store.
        plan_one: plans one store.

    Raises:
        OptionError: no store has a topic or queue that is named.
    """

    def planned(ref: StoreRef) -> tuple[dict[str, set[int]], list[StoreTask]]:
        with open_ref(ref) as store:  # and close it again: there may be hundreds
            topics = known(store)
            if not concerns(named, topics):
                return topics, []
            parts = plan_one(store)
            requests = store.paths.storage.requests_made()
            if requests is not None:
                n_bytes = sum(part.n_bytes for part in parts)
                logger.info(
                    "%s: planning took %s; reading takes about %d GETs",
                    ref.path, requests, -(-int(n_bytes) // _REQUEST_BYTES),
                )  # fmt: skip
            return topics, [StoreTask(part, ref) for part in parts]

    each = _each(stores, planned)
    if named is not None:
        where = ", ".join(ref.path for ref in stores)
        require_named(named, [topics for topics, _ in each], where)
    return [task for _, tasks in each for task in tasks]


def _broker_name(ref: StoreRef) -> str:
    if ref.broker_name is not None:
        return ref.broker_name
    with open_ref(ref) as store:
        return store.view_broker_name


def _each(values: Sequence[A], ask: Callable[[A], T]) -> list[T]:
    """Return what a function returns for each value, in their order; some run side by side.

    Stores are opened and planned so: little of each is read, so from a slow disk it mostly waits.
    """
    if len(values) == 1:
        return [ask(values[0])]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [*pool.map(ask, values)]
