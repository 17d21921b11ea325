"""The dispatch requests of records that wait for their commit.

Queues and index are then built without reading the records back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from rmqstore.format.columns.dispatch_requests import Requests

_MAX_WAITING = 3_000_000  # rows of some 50 bytes each
_ROWS_A_BATCH = 100  # the objects of a batch take as much memory as this number of rows


class WaitingRequests:
    """The dispatch requests of the records that wait for their commit, up to a limit of memory.

    Requests beyond the limit are read back from the log after the commit.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all requests."""
        self._sources: deque[Callable[[], Iterable[Requests]]] = deque()
        self.end: int | None = None  # physical offset after the last record whose requests are held
        self._n_rows = 0
        self._is_full = False

    def add(self, requests: Requests, end: int) -> None:
        """Hold the requests of records that end at the physical offset ``end``."""
        self._is_full |= self._n_rows > _MAX_WAITING
        if not self._is_full:
            self._n_rows += len(requests.has_unit) + _ROWS_A_BATCH
            self.add_source(lambda: [requests], end)

    def add_source(self, source: Callable[[], Iterable[Requests]], end: int) -> None:
        """Hold what returns the requests of records that end at ``end``; it takes no memory."""
        if not self._is_full:
            self._sources.append(source)
            self.end = end

    def stop(self) -> None:
        """Hold no further requests, as if the limit were reached."""
        self._is_full = True

    def requests(self) -> Iterator[Requests]:
        """Yield and forget the requests, in the order of the log."""
        while self._sources:
            yield from self._sources.popleft()()
