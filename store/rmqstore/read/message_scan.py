"""Reads the messages that a request asks for, one part of the plan after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from rmqstore.format.schema import select_columns
from rmqstore.progress import Advance, Progress, Tally, ignore_progress
from rmqstore.query.arrow_rows import first_rows
from rmqstore.query.damage import FAILFAST
from rmqstore.read.parts import Part, QueuesPart
from rmqstore.read.plan import known_topics, plan
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import WHOLE
from rmqstore.read.store_parts import StoreParts, having_topics


class MessageScan:
    """One scan of one store, or of several, one after the other.

    Args:
        stores: the stores.
        request: what is asked for.
        progress: called while the scan is read, with what is done and the total: messages of a scan
            by queue, else bytes of the log.
    """

    def __init__(
        self,
        stores: Sequence[StoreParts],
        request: ScanRequest,
        progress: Progress = ignore_progress,
    ) -> None:
        self._stores = stores
        self._request = request
        self._tally = None if progress is ignore_progress else Tally(progress)
        self._advance: Advance = ignore_progress
        if self._tally is not None:
            is_by_queue = request.is_by_queue
            self._advance = self._tally.add_records if is_by_queue else self._tally.add_bytes

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Return the messages as batches with the columns that are returned.

        The first store is planned now, but for a look-up, which is planned when it begins.

        Raises:
            OptionError: the request contradicts itself or names an unknown topic.
            UnsupportedFeatureError: such a store cannot answer it.
        """
        request = self._request
        each = (self._of_store(store, request) for store in self._having_topics())
        batches = chain.from_iterable(each)
        if not request.lookup_keys:
            batches = chain(next(each), batches)
        return request.returned(batches)

    def _having_topics(self) -> list[StoreParts]:
        known = [known_topics(store, self._request) for store in self._stores]
        return having_topics(self._stores, known, self._request.named)

    def _of_store(self, store: StoreParts, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """Return the messages of one store, which is planned now."""
        is_sized = self._tally is not None and not request.is_by_queue
        return self._read(store, request, plan(store, request, WHOLE if is_sized else None))

    def _read(
        self, store: StoreParts, request: ScanRequest, parts: Sequence[Part]
    ) -> Iterator[pa.RecordBatch]:
        if self._tally is not None:
            sizes = (part.n_records if request.is_by_queue else part.n_bytes for part in parts)
            self._tally.expect(round(sum(size or 0 for size in sizes)))
        for part in parts:
            yield from part.read(store, request, self._advance)

    def count(self, limit: int | None) -> int:
        """Return the number of messages, at most ``limit``; by the ends of queues if they give it.

        If not, few columns are read, except where damaged rows count: which rows are damaged may
        depend on the columns.
        """
        total = 0
        for store in self._having_topics():
            left = None if limit is None else limit - total
            if left == 0:
                break
            total += self._count(store, left)
        return total

    def _count(self, store: StoreParts, limit: int | None) -> int:
        request = self._request
        count = _n_planned(store, request)
        if count is not None:
            return count if limit is None else min(count, limit)
        if request.mode == FAILFAST:
            request = replace(request, schema=select_columns(["queueOffset"]))
        batches = request.returned(self._of_store(store, request))
        return sum(batch.num_rows for batch in first_rows(batches, limit))


def _n_planned(store: StoreParts, request: ScanRequest) -> int | None:
    """Return the number of messages if the ends of queues give it, None if they do not.

    They do where each queue offset gives a row or an error.
    """
    if not request.is_by_queue or not request.is_quick or request.include_pending:
        return None
    if request.mode != FAILFAST or not request.fail_on_data_loss:
        return None
    queues: list[QueuesPart] = []
    for part in plan(store, request):
        if not isinstance(part, QueuesPart):
            return None
        queues.append(part)
    return store.retry(
        lambda: sum(
            store.store_queues.n_messages(*queue_slice)
            for part in queues
            for queue_slice in part.slices
        )
    )
