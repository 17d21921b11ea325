"""Extracts dispatch requests in a background thread while records are being written.

Queues and index are then built after the commit without reading the records back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from rmqstore.format.columns.dispatch_requests import Places, Requests, read_requests
from rmqstore.format.columns.encode import Records
from rmqstore.format.columns.heads import Heads

_MAX_WAITING = 3_000_000  # rows of some 50 bytes each
_MAX_UNREAD = 3  # batches
_ROWS_A_BATCH = 100  # the objects of a batch take as much memory as this number of rows


class WaitingRequests:
    """The dispatch requests of the records that wait for their commit, up to a limit of memory.

    A thread reads them while the next records are written. Requests beyond the limit are read back
    from the log after the commit.
    """

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, "rmqstore-requests")
        self.clear()

    def clear(self) -> None:
        """Forget all requests."""
        self._requests: deque[Future[Requests]] = deque()
        self.end: int | None = None  # physical offset after the last record whose requests are held
        self._n_rows = 0
        self._is_full = False

    def add(self, records: Records, heads: Heads, places: Places, end: int) -> None:
        """Read the requests of records in the background.

        The bytes of the records must not change meanwhile, apart from those of their heads.
        """
        self._is_full |= self._n_rows > _MAX_WAITING
        if self._is_full:
            return
        self._requests.append(self._reader.submit(read_requests, records.data, heads, places))
        if len(self._requests) > _MAX_UNREAD:
            # a slow reader would keep the bytes of many batches in memory
            self._requests[-_MAX_UNREAD].result()
        self._n_rows += len(heads) + _ROWS_A_BATCH
        self.end = end

    def settle(self) -> None:
        """Wait until all requests are read; raises the error of a read that failed."""
        for future in self._requests:
            future.result()

    def requests(self) -> Iterator[Requests]:
        """Yield and forget the requests, in the order of the log."""
        while self._requests:
            yield self._requests.popleft().result()

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(cancel_futures=True)
