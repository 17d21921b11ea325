"""Spans of an object that were announced: fetched together, before they are read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.remote.ranges import BLOCK_BYTES
from rmqstore.storage.remote.requests import Range, Requests

PART_BYTES: Final = (2 << 20) + 2 * BLOCK_BYTES  # of one request, of which several run at once
Keep = Callable[[int, NDArray[np.uint8]], None]


class Announced:
    """Ranges of one object, which are kept when all of them have come.

    The version of the object is compared once, after the last of them: what was fetched before a
    comparison is of the version that it finds.

    Args:
        ranges: the ranges, rising.
        require_same: raises an error if what has come is of another version.
        keep: takes the position of a range and its bytes.
    """

    def __init__(self, ranges: list[Range], require_same: Callable[[], None], keep: Keep) -> None:
        self._ranges, self._require_same, self._keep = ranges, require_same, keep
        self._n_left = len(ranges)
        self._come: list[tuple[int, Future[NDArray[np.uint8]]]] = []
        self._guard = Lock()
        self._done: Future[None] = Future()

    def begin(self, requests: Requests) -> bool:
        """Begin to fetch the ranges that there is room for; return whether there is any."""
        for row, wanted in enumerate(self._ranges):
            if not requests.begin_ahead(wanted, self._taker(wanted.start)):
                n_left_out = len(self._ranges) - row
                self._ranges = self._ranges[:row]
                self._settle(n_left_out)
                break
        return bool(self._ranges)

    def _settle(self, count: int = 1) -> None:
        """Note that some more ranges have come or are left out."""
        with self._guard:
            self._n_left -= count
            is_done = self._n_left == 0
        if is_done and self._ranges:
            self._finish()

    def _taker(self, start: int) -> Callable[[Future[NDArray[np.uint8]]], None]:
        def take(fetched: Future[NDArray[np.uint8]]) -> None:
            self._come.append((start, fetched))
            self._settle()

        return take

    def _finish(self) -> None:
        try:
            parts = [(start, fetched.result()) for start, fetched in self._come]
            self._require_same()
            for start, data in parts:
                self._keep(start, data)
        except Exception as err:  # noqa: BLE001 - who reads the bytes gets it
            self._done.set_exception(err)
        else:
            self._done.set_result(None)
        self._come = []

    @property
    def is_done(self) -> bool:
        """Whether all has come, or has failed."""
        return self._done.done()

    def touches(self, low: int, high: int) -> bool:
        """Tell whether a part of ``[low, high)`` is in the ranges."""
        return any(one.start < high and one.end > low for one in self._ranges)

    def hold(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which blocks, (n,), are in the ranges."""
        mask = np.zeros(len(blocks), np.bool_)
        for one in self._ranges:
            mask |= (blocks * BLOCK_BYTES >= one.start) & (blocks * BLOCK_BYTES < one.end)
        return mask

    def wait(self) -> None:
        """Wait until all has come.

        Raises what a request or the comparison raised.
        """
        self._done.result()
