"""The stores that a read names, as a source of tasks."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark_rmqstore.followed_stores import FollowedStores
from pyspark_rmqstore.opened_stores import plan_stores, stores_to_read
from pyspark_rmqstore.tasks import StoreTask
from rmqstore.read.plan import plan
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.store_ref import StoreRef

logger = logging.getLogger(__name__)

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
            OptionError: no store has a topic or queue that is named.
        """
        selection = request.selection if request.is_by_queue else None

        def plan_one(ref: StoreRef, store: StoreParts) -> list[StoreTask]:
            parts = plan(store, request, limits)
            requests = store.paths.storage.requests_made()
            if requests is not None:
                n_bytes = sum(part.n_bytes for part in parts)
                logger.info(
                    "%s: planning took %s; reading takes about %d GETs",
                    ref.path, requests, -(-int(n_bytes) // _REQUEST_BYTES),
                )  # fmt: skip
            return [StoreTask(one, ref) for part in parts for one in part.parts]

        return plan_stores(stores_to_read(self.stores), plan_one, selection)

    def follow(self, request: ScanRequest) -> FollowedStores:
        """Return the stores as a stream follows them."""
        return FollowedStores(self.stores, request)
