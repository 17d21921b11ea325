"""One object of a remote file system, in the version that was there when it was opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import FileDeletedError, FileReplacedError
from rmqstore.storage.remote.announced import PART_BYTES, Announced
from rmqstore.storage.remote.block_cache import BlockCache
from rmqstore.storage.remote.ranges import BLOCK_BYTES, blocks_of, requests_for, runs_of
from rmqstore.storage.remote.requests import AT_ONCE, Range, Requests

_numbers = count()

Sink = Callable[[int, NDArray[np.uint8]], None]
Pending = tuple[int, "Future[NDArray[np.uint8]]"]


class RemoteObject:
    """The bytes of one version of an object, fetched in blocks.

    If another content takes its place, every later fetch fails: bytes of two versions never come
    together. An answer does not name its version, so it is asked for afterwards, but not after a
    first request for one range alone, which cannot mix two.

    Raises:
        FileNotFoundError: there is no such object.
        RemoteReadError: it cannot be opened.
    """

    def __init__(self, requests: Requests, cache: BlockCache, key: str, name: str) -> None:
        self.name = name
        self._requests, self._cache, self._key = requests, cache, key
        self._file, self.version = requests.handle(key, name)
        self._number = next(_numbers)
        self._announced: list[Announced] = []
        self._has_fetched = False
        self.is_gone = False  # deleted or replaced
        self.checked_in = 0  # the listing in which it was seen last
        self.on_gone: Callable[[], None] = _nothing
        self.ends: dict[int, int] = {}  # the written ends before some positions
        self.written_until = 0  # a position before the written end

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.version.size

    def fetch(
        self,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        sink: Sink,
        *,
        is_last: bool = True,
    ) -> None:
        """Pass the bytes of spans, and some around them, to ``sink`` with their positions.

        Args:
            starts: positions inside of the object, (n,).
            ends: positions after the spans, (n,), inside of the object too.
            sink: takes a position and the bytes from there on.
            is_last: no more is fetched before the bytes are used. A search fetches on, and
                compares the version at its end only.

        Raises:
            FileDeletedError: the object was deleted, or replaced (:class:`FileReplacedError`).
            RemoteReadError: a request failed each time that it was made.
        """
        blocks = blocks_of(starts, ends)
        if not len(blocks):
            return
        self._await(int(blocks[0]) * BLOCK_BYTES, (int(blocks[-1]) + 1) * BLOCK_BYTES)
        missing = []
        for first, last in runs_of(blocks):
            block = first
            while block <= last:
                held = self._cache.get(self._number, block, last - block + 1)
                if held is None:
                    missing.append(block)
                    block += 1
                else:
                    sink(block * BLOCK_BYTES, held)
                    block += -(-len(held) // BLOCK_BYTES)
        ranges = requests_for(np.array(missing, np.int64), self.size)
        if not ranges:
            return
        is_checked = is_last and (self._has_fetched or len(ranges) > 1)
        self._has_fetched = True
        fetched = []
        for start, data in self._fetched(ranges):
            sink(start, data)
            fetched.append((start, data))
            if not is_checked:
                self._cache.put(self._number, start, data)
            elif len(fetched) == AT_ONCE:
                self._keep(fetched)
        if is_checked:
            self._keep(fetched)

    def _keep(self, fetched: list[tuple[int, NDArray[np.uint8]]]) -> None:
        """Put bytes into the cache if the object is still the one that was opened."""
        if fetched:
            self.require_same()
        for start, data in fetched:
            self._cache.put(self._number, start, data)
        fetched.clear()

    def _fetched(self, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield ranges with their bytes, in order, some of them requested at the same time."""
        if len(ranges) == 1:
            yield ranges[0][0], self._get(*ranges[0])
            return
        begun: list[Pending] = []
        try:
            for row in range(len(ranges) + AT_ONCE):
                if row < len(ranges):
                    start, end = ranges[row]
                    begun.append((start, self._requests.begin(self._range(start, end))))
                if row >= AT_ONCE - 1 and begun:
                    start, future = begun.pop(0)
                    with self._noting_its_end():
                        data = future.result()
                    yield start, data
        finally:
            for _, future in begun:
                future.cancel()

    def _get(self, start: int, end: int) -> NDArray[np.uint8]:
        with self._noting_its_end():
            return self._requests.get(self._range(start, end))

    def _range(self, start: int, end: int) -> Range:
        return Range(self._file, self.name, start, end, self.require_same)

    @contextmanager
    def _noting_its_end(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self._gone(FileDeletedError) from None

    def require_same(self) -> None:
        """Refuse to go on with an object that was deleted or replaced since it was opened.

        Raises:
            FileDeletedError: it was deleted, or replaced (:class:`FileReplacedError`).
        """
        try:
            file, version = self._requests.handle(self._key, self.name)
        except FileNotFoundError:
            raise self._gone(FileDeletedError) from None
        _close(file)
        if version != self.version:
            raise self._gone(FileReplacedError)

    def is_same(self) -> bool:
        """Tell whether the object is still the one that was opened."""
        try:
            self.require_same()
        except FileDeletedError:
            return False
        return True

    def _gone(self, kind: type[FileDeletedError]) -> FileDeletedError:
        self.is_gone = True
        self.on_gone()
        return kind(self.name)

    def announce(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], *, is_passing: bool = False
    ) -> None:
        """Begin to fetch spans that will be read next, as far as there is room for them.

        Args:
            starts: positions inside of the object, (n,).
            ends: positions after the spans, (n,), inside of the object too.
            is_passing: whether they will be read once, by a read of much more.
        """
        self._announced = [group for group in self._announced if not group.is_done]
        blocks = blocks_of(starts, ends)
        is_missing = ~np.array(
            [self._cache.holds(self._number, block) for block in blocks.tolist()]
        )
        for group in self._announced if len(blocks) else ():
            is_missing &= ~group.hold(blocks)
        missing = blocks[is_missing] if len(blocks) else blocks
        ranges = [self._range(*bounds) for bounds in requests_for(missing, self.size, PART_BYTES)]
        if not ranges:
            return

        def keep(start: int, data: NDArray[np.uint8]) -> None:
            self._cache.put(self._number, start, data, is_passing=is_passing)

        group = Announced(ranges, self.require_same, keep)
        if group.begin(self._requests):
            self._has_fetched = True
            self._announced.append(group)

    def _await(self, low: int, high: int) -> None:
        """Wait for announced spans in a range."""
        for group in [group for group in self._announced if group.touches(low, high)]:
            self._announced.remove(group)
            with self._noting_its_end():
                group.wait()


def _nothing() -> None:
    """Do nothing."""


def _close(file: Any) -> None:  # noqa: ANN401
    with suppress(OSError):
        file.close()
