"""The blocks of remote files that were fetched last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.remote.ranges import BLOCK_BYTES

_MAX_BYTES: Final = 64 << 20


class BlockCache:
    """Blocks by the number of their object and their own; those used last are kept."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_blocks = max(max_bytes // BLOCK_BYTES, 1)
        self._blocks: OrderedDict[tuple[int, int], NDArray[np.uint8]] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, number: int, block: int) -> NDArray[np.uint8] | None:
        """Return a block of an object, None if it is not held."""
        key = (number, block)
        with self._guard:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
            return found

    def holds(self, number: int, block: int) -> bool:
        """Tell whether a block of an object is held."""
        return (number, block) in self._blocks

    def put(self, number: int, start: int, data: NDArray[np.uint8]) -> None:
        """Keep bytes of an object that begin where a block does."""
        with self._guard:
            for low in range(0, len(data), BLOCK_BYTES):
                # A view would keep all of the bytes in memory.
                block = data[low : low + BLOCK_BYTES].copy()
                self._blocks[number, (start + low) // BLOCK_BYTES] = block
            while len(self._blocks) > self._max_blocks:
                self._blocks.popitem(last=False)
