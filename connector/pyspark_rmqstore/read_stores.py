"""The stores that a read opens: one of each broker, whichever of them the options name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

from pyspark_rmqstore.opened_stores import open_ref
from pyspark_rmqstore.store_options import StoreRef
from rmqstore.read.views.replicas import brokers_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

_STORES_AT_ONCE = 8  # while they are planned


def each_store(stores: Sequence[StoreRef], plan: Callable[[StoreRef], T]) -> Iterator[T]:
    """Yield what a function returns for each store, in their order; some run side by side.

    Planning reads little of each store, so from a slow disk it mostly waits.
    """
    if len(stores) == 1:
        yield plan(stores[0])
        return
    with ThreadPoolExecutor(_STORES_AT_ONCE) as pool:
        yield from pool.map(plan, stores)


def stores_to_read(stores: Sequence[StoreRef]) -> tuple[StoreRef, ...]:
    """Return the stores without replicas of others: the master, or else the longest log.

    Raises:
        OptionError: two stores have the same broker name and are not replicas of each other.
    """
    if len(stores) == 1:
        return tuple(stores)
    names = [*each_store(stores, _broker_name)]
    counts = Counter(names)
    shared = [ref for ref, name in zip(stores, names, strict=True) if counts[name] > 1]
    unread = _replicas(shared) if shared else set()
    return tuple(ref for ref in stores if ref.path not in unread)


def _broker_name(ref: StoreRef) -> str:
    if ref.broker_name is not None:
        return ref.broker_name
    with open_ref(ref) as store:
        return store.view_broker_name


def _replicas(stores: Sequence[StoreRef]) -> set[str]:
    """Return the paths of the stores that are replicas of others."""
    paths: dict[int, str] = {}
    unread = set()
    with ExitStack() as stack:
        sources = []
        for ref in stores:
            store = stack.enter_context(open_ref(ref))
            store.require_local("reading one of several stores of a broker")
            source = store.view_source
            sources.append(source)
            paths[id(source)] = ref.path
        for broker in brokers_of(sources):
            broker.require_sound()
            for replica in broker.replicas:
                path = paths[id(replica.source)]
                logger.warning("%s is not read: it is %s", path, broker.note(replica))
                unread.add(path)
    return unread
