"""What is read of records ahead of their commit, so that queues and index are built without reading them back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from rmqstore.format.columns.dispatch_requests import Places, Requests, read_requests
from rmqstore.format.columns.encode import Records
from rmqstore.format.columns.heads import Heads

_MAX_WAITING = 3_000_000  # rows, of some 50 bytes
_MAX_UNREAD = 3  # batches
_ROWS_A_BATCH = 100  # that the objects of a batch weigh as much as


class WaitingRequests:
    """What dispatching will need of the records that wait for their commit, as far as memory should hold it.

    A thread reads it from the records while the next ones are written. Beyond so many rows they are read back from the
    log.
    """

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, "rmqstore-requests")
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self._requests: deque[Future[Requests]] = deque()
        self.end: int | None = None  # physical offset behind the last record of these
        self._n_rows = 0
        self._is_full = False

    def add(self, records: Records, heads: Heads, places: Places, end: int) -> None:
        """Take records whose heads were read; their bytes behind the heads must not change."""
        self._is_full |= self._n_rows > _MAX_WAITING
        if self._is_full:
            return
        self._requests.append(self._reader.submit(read_requests, records.data, heads, places))
        if len(self._requests) > _MAX_UNREAD:
            self._requests[-_MAX_UNREAD].result()  # a reader that falls behind would hold the bytes of many
        self._n_rows += len(heads) + _ROWS_A_BATCH
        self.end = end

    def settle(self) -> None:
        """Wait until all is read; raise what a reader met."""
        for one in self._requests:
            one.result()

    def requests(self) -> Iterator[Requests]:
        """Yield them in the order of the log, and forget each."""
        while self._requests:
            yield self._requests.popleft().result()

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(cancel_futures=True)
