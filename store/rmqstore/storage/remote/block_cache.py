"""The bytes of remote files that were fetched last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.remote.ranges import BLOCK_BYTES

_MAX_BYTES: Final = 32 << 20
_MAX_PASSING_BYTES: Final = 40 << 20


class _Range(NamedTuple):
    number: int  # of the object
    first_block: int
    data: NDArray[np.uint8]
    is_passing: bool

    def blocks(self) -> Iterator[tuple[int, int]]:
        n_blocks = -(-len(self.data) // BLOCK_BYTES)
        return ((self.number, self.first_block + row) for row in range(n_blocks))


class BlockCache:
    """Ranges of objects, found by block and kept as they came; those used last are kept.

    A read that goes through a whole log would drive everything else out. So what was fetched ahead
    for such a read is kept apart, and what came first of it is dropped first.

    Args:
        max_bytes: how many bytes are kept.
        max_passing_bytes: how many bytes are kept besides that were fetched ahead of a long read.
    """

    def __init__(
        self, max_bytes: int = _MAX_BYTES, max_passing_bytes: int = _MAX_PASSING_BYTES
    ) -> None:
        self._limits = {False: max_bytes, True: max_passing_bytes}
        self._n_bytes = {False: 0, True: 0}
        self._ranges: dict[bool, OrderedDict[int, _Range]] = {
            False: OrderedDict(),
            True: OrderedDict(),
        }
        self._places: dict[tuple[int, int], tuple[bool, int]] = {}  # of the range with a block
        self._ids = count()
        self._guard = threading.Lock()

    def get(self, number: int, block: int, n_blocks: int = 1) -> NDArray[np.uint8] | None:
        """Return a block of an object and those after it that were fetched with it.

        Args:
            number: number of the object.
            block: number of the block.
            n_blocks: how many blocks are returned at most.

        Returns:
            The bytes, None if the first block is not held.
        """
        with self._guard:
            place = self._places.get((number, block))
            if place is None:
                return None
            is_passing, number_of_range = place
            ranges = self._ranges[is_passing]
            if not is_passing:  # those that were read are dropped before those still to be read
                ranges.move_to_end(number_of_range)
            found = ranges[number_of_range]
        start = (block - found.first_block) * BLOCK_BYTES
        return found.data[start : start + n_blocks * BLOCK_BYTES]

    def holds(self, number: int, block: int) -> bool:
        """Tell whether a block of an object is held."""
        return (number, block) in self._places

    def put(
        self, number: int, start: int, data: NDArray[np.uint8], *, is_passing: bool = False
    ) -> None:
        """Keep bytes of an object that begin where a block does.

        Args:
            number: number of the object.
            start: position of the bytes in it.
            data: the bytes, up to the end of a block or of the object.
            is_passing: whether they will be read once, soon.
        """
        new = _Range(number, start // BLOCK_BYTES, data, is_passing)
        place = is_passing, next(self._ids)
        ranges = self._ranges[is_passing]
        with self._guard:
            ranges[place[1]] = new
            self._places.update(dict.fromkeys(new.blocks(), place))
            self._n_bytes[is_passing] += len(data)
            while self._n_bytes[is_passing] > self._limits[is_passing] and len(ranges) > 1:
                self._drop_oldest(is_passing)

    def _drop_oldest(self, is_passing: bool) -> None:
        oldest, dropped = self._ranges[is_passing].popitem(last=False)
        self._n_bytes[is_passing] -= len(dropped.data)
        for block in dropped.blocks():
            if self._places.get(block) == (is_passing, oldest):
                del self._places[block]
