"""The stores that a read names, as a source of tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rmqstore.read.parts import Part
from rmqstore.read.plan import having_messages, plan
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts, open_ref
from rmqstore.read.store_ref import StoreRef
from rmqstore.read.views.catalogue import ClusterPart, having_names, plan_view
from rmqstore.read.views.parts import ViewPart
from rmqstore.read.views.schema import OF_CLUSTER, ViewSpec
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

    def plan(self, request: ScanRequest | ViewSpec, limits: Limits) -> list[StoreTask]:
        """Return what a request asks of all stores, one after the other.

        Args:
            request: the messages or the view that is asked for.
            limits: those within which the tasks are to be split.

        Raises:
            OptionError: no store has a topic, a queue or a consumer group that is named; two stores
                have the same broker name and are not replicas of each other.
        """
        with self._opened() as opened:
            stores: Sequence[StoreParts] = [*opened]
            if isinstance(request, ScanRequest):
                stores = having_messages(stores_that_are_read(stores), request)
            elif request.view in OF_CLUSTER:
                having_names(stores, request)
                return [StoreTask(ClusterPart(self.stores), self.stores[0])]
            else:
                stores = stores_that_are_read(stores)
                if limits.min_partitions:
                    least = -(-limits.min_partitions // len(stores))
                    limits = limits._replace(min_partitions=least)
                stores = having_names(stores, request)
            planned = _each(stores, lambda store: _plan_one(store, request, limits))
            return [
                StoreTask(part, opened[store])
                for store, parts in zip(stores, planned, strict=True)
                for part in parts
            ]

    def follow(self, request: ScanRequest) -> StoreStream:
        """Return the stream of new messages of the stores."""
        return StoreStream(self._of_each_broker, request)

    def _of_each_broker(self) -> Sequence[StoreRef]:
        """Return the stores without replicas of others."""
        if len(self.stores) == 1:
            return self.stores
        with self._opened() as opened:
            return [opened[store] for store in stores_that_are_read([*opened])]

    @contextmanager
    def _opened(self) -> Iterator[dict[StoreParts, StoreRef]]:
        """Open all stores, each with where it lies."""
        with ExitStack() as stack:
            stores = [stack.enter_context(store) for store in _each(self.stores, _open_named)]
            yield dict(zip(stores, self.stores, strict=True))


def _open_named(ref: StoreRef) -> StoreParts:
    """Open a store, and find the name of its broker."""
    store = open_ref(ref)
    _ = store.view_broker_name
    return store


def _plan_one(
    store: StoreParts, request: ScanRequest | ViewSpec, limits: Limits
) -> list[Part] | list[ViewPart]:
    """Plan one store, and close it: there may be hundreds."""
    with store:
        if isinstance(request, ViewSpec):
            return [*plan_view(store, request, limits)]
        parts = plan(store, request, limits)
        requests = store.paths.storage.requests_made()
        if requests is not None:
            n_bytes = sum(part.n_bytes for part in parts)
            logger.info(
                "%s: planning took %s; reading takes about %d GETs",
                store.paths.root, requests, -(-int(n_bytes) // _REQUEST_BYTES),
            )  # fmt: skip
        return [one for part in parts for one in part.parts]


def _each(values: Sequence[A], ask: Callable[[A], T]) -> Iterator[T]:
    """Yield what a function returns for each value, in their order; some run side by side.

    Stores are opened and planned so: little of each is read, so from a slow disk it mostly waits.
    """
    if len(values) == 1:
        yield ask(values[0])
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(ask, values)
