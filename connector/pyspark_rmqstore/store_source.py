"""The stores that a read names, as a source of tasks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np

from pyspark_rmqstore.followed_stores import FollowedStores
from pyspark_rmqstore.opened_stores import each_store, open_ref, stores_to_read
from pyspark_rmqstore.store_options import StoreRef
from pyspark_rmqstore.tasks import StoreTask
from rmqstore.format.schema import select_columns
from rmqstore.query.selection import require_named
from rmqstore.read.limits import Limits
from rmqstore.read.plan import plan, records_part
from rmqstore.read.read_spec import DROPMALFORMED, FAILFAST
from rmqstore.read.request import ScanRequest

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
        msg_key_limit: the most messages that a look-up gives, the newest ones; None for all.
    """

    stores: tuple[StoreRef, ...]
    msg_key_limit: int | None = None

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
        if self.msg_key_limit is not None:
            return self._newest(stores, request, limits, self.msg_key_limit)
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

    @staticmethod
    def _newest(
        stores: Sequence[StoreRef], request: ScanRequest, limits: Limits, count: int
    ) -> list[StoreTask]:
        """Return what is read of the newest messages of all stores that a look-up finds.

        Pushed filters do not apply, because the messages are chosen before they do.
        """
        # A damaged message has no store time, so it cannot be chosen.
        mode = request.mode if request.mode == FAILFAST else DROPMALFORMED
        schema = select_columns(["storeTimestamp", "commitLogOffset"])
        chosen = replace(request, schema=schema, mode=mode, where=None)

        def stored(ref: StoreRef) -> list[tuple[datetime, str, int]]:
            with open_ref(ref) as store:
                store.require("msgKeyLimit")
                return [
                    (row["storeTimestamp"], ref.path, row["commitLogOffset"])
                    for part in plan(store, chosen)
                    for batch in part.read(store, chosen)
                    for row in batch.to_pylist()
                ]

        matches = sorted(match for found in each_store(stores, stored) for match in found)
        tasks = []
        for ref in stores:
            offsets = sorted(offset for _, path, offset in matches[-count:] if path == ref.path)
            if offsets:
                with open_ref(ref) as store:
                    part = records_part(store, np.array(offsets, np.int64), limits)
                    tasks.append(StoreTask(part, ref))
        return tasks


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
