"""The stores that a read names, as a source of tasks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_rmqstore.followed_stores import FollowedStores
from pyspark_rmqstore.opened_stores import each_store, open_ref, stores_to_read
from pyspark_rmqstore.store_options import StoreRef
from pyspark_rmqstore.tasks import StoreTask
from rmqstore.query.selection import require_named
from rmqstore.read.plan import plan
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits

logger = logging.getLogger(__name__)

_REQUEST_BYTES = 4 << 20  # that a long read of a remote store fetches by one request


class _StorePlan(NamedTuple):
    """What is to be read of one store."""

    named_queues: dict[str, set[int]]  # by topic; see `StoreParts.named_queues`
    tasks: list[StoreTask]


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
            OptionError: no store has a topic or queue that is named.
        """
        stores = stores_to_read(self.stores)
        known: dict[str, set[int]] = {}
        tasks: list[StoreTask] = []
        for planned in each_store(stores, lambda ref: _plan(ref, request, limits)):
            tasks += planned.tasks
            for topic, queue_ids in planned.named_queues.items():
                known.setdefault(topic, set()).update(queue_ids)
        if request.is_by_queue:
            require_named(request.selection, known, ", ".join(ref.path for ref in stores))
        return tasks

    def follow(self, request: ScanRequest) -> FollowedStores:
        """Return the stores as a stream follows them."""
        return FollowedStores(self.stores, request)


def _plan(ref: StoreRef, request: ScanRequest, limits: Limits) -> _StorePlan:
    """Return what is read of one store."""
    with open_ref(ref) as store:
        parts = plan(store, request, limits)
        named = store.ranges.named_queues(request.selection) if request.is_by_queue else {}
        requests = store.paths.storage.requests_made()
        if requests is not None:
            n_bytes = sum(part.n_bytes for part in parts)
            logger.info(
                "%s: planning took %s; reading takes about %d GETs",
                ref.path, requests, -(-int(n_bytes) // _REQUEST_BYTES),
            )  # fmt: skip
        return _StorePlan(named, [StoreTask(part, ref) for part in parts])
