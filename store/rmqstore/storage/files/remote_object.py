"""One object of a remote file system, in the version that was there when it was opened."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import FileDeletedError, FileReplacedError
from rmqstore.storage.files.remote_requests import AT_ONCE, Range, RemoteRequests

BLOCK_BYTES: Final = 32 << 10  # what the cache holds is made of blocks of this size
MAX_REQUEST_BYTES: Final = 8 << 20
_MOST_BETWEEN: Final = 7  # blocks that are fetched along: another request would take longer

_MAX_BYTES: Final = 32 << 20
_MAX_PASSING_BYTES: Final = 40 << 20

PART_BYTES: Final = (2 << 20) + 2 * BLOCK_BYTES  # of one request, of which several run at once

_numbers = count()

Sink = Callable[[int, NDArray[np.uint8]], None]  # takes a position and the bytes from there on


def blocks_of(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the blocks that hold spans of bytes, rising and distinct.

    Args:
        starts: positions in the file, (n,).
        ends: positions after the spans, (n,); a span that ends where it starts needs no block.
    """
    is_filled = ends > starts
    firsts = starts[is_filled] // BLOCK_BYTES
    counts = (ends[is_filled] - 1) // BLOCK_BYTES - firsts + 1
    if len(counts) == 1:
        return np.arange(firsts[0], firsts[0] + counts[0])
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.unique(np.repeat(firsts, counts) + offsets)


def runs_of(blocks: NDArray[np.int64], most_between: int = 0) -> list[tuple[int, int]]:
    """Return the runs of blocks that follow one another: the first and the last of each.

    Args:
        blocks: numbers of blocks, rising and distinct, (n,).
        most_between: how many blocks may be left out between two of a run.
    """
    if not len(blocks):
        return []
    ends = np.flatnonzero(np.diff(blocks) > most_between + 1)
    firsts = blocks[np.append(0, ends + 1)]
    lasts = blocks[np.append(ends, len(blocks) - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def requests_for(
    blocks: NDArray[np.int64], size: int, max_bytes: int = MAX_REQUEST_BYTES
) -> list[tuple[int, int]]:
    """Return the ranges of bytes to request for blocks, rising.

    Args:
        blocks: numbers of blocks, rising, (n,).
        size: length of the file, where the last range ends at most.
        max_bytes: of one range.
    """
    ranges = []
    for first, last in runs_of(blocks, _MOST_BETWEEN):
        start, end = first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, size)
        ranges += [(low, min(low + max_bytes, end)) for low in range(start, end, max_bytes)]
    return ranges


class _Range(NamedTuple):
    number: int  # of the object
    first_block: int
    data: NDArray[np.uint8]

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
        self._ranges: defaultdict[bool, OrderedDict[int, _Range]] = defaultdict(OrderedDict)
        self._range_ids: dict[tuple[int, int], tuple[bool, int]] = {}  # by block
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
            range_id = self._range_ids.get((number, block))
            if range_id is None:
                return None
            is_passing, number_of_range = range_id
            ranges = self._ranges[is_passing]
            if not is_passing:  # those that were read are dropped before those still to be read
                ranges.move_to_end(number_of_range)
            found = ranges[number_of_range]
        start = (block - found.first_block) * BLOCK_BYTES
        return found.data[start : start + n_blocks * BLOCK_BYTES]

    def holds(self, number: int, block: int) -> bool:
        """Return whether a block of an object is held."""
        return (number, block) in self._range_ids

    def put(
        self, number: int, start: int, data: NDArray[np.uint8], *, is_passing: bool = False
    ) -> None:
        """Keep bytes of an object from the start of a block on.

        Args:
            number: number of the object.
            start: position of the bytes in it.
            data: the bytes, up to the end of a block or of the object.
            is_passing: whether they will be read once, soon.
        """
        new = _Range(number, start // BLOCK_BYTES, data)
        range_id = is_passing, next(self._ids)
        with self._guard:
            ranges = self._ranges[is_passing]
            ranges[range_id[1]] = new
            self._range_ids.update(dict.fromkeys(new.blocks(), range_id))
            self._n_bytes[is_passing] += len(data)
            while self._n_bytes[is_passing] > self._limits[is_passing] and len(ranges) > 1:
                oldest, dropped = ranges.popitem(last=False)
                self._n_bytes[is_passing] -= len(dropped.data)
                for block in dropped.blocks():
                    if self._range_ids.get(block) == (is_passing, oldest):
                        del self._range_ids[block]


class Prefetched:
    """Ranges of one object, which are kept when all of them have come.

    The version of the object is compared once, after the last of them: what was fetched before a
    comparison is of the version that it finds.

    Args:
        ranges: the ranges, rising.
        require_same: raises an error if what has come is of another version.
        keep: takes the position of a range and its bytes.
    """

    def __init__(self, ranges: list[Range], require_same: Callable[[], None], keep: Sink) -> None:
        self._ranges = ranges
        self._require_same = require_same
        self._keep = keep
        self._n_left = len(ranges)
        self._come: list[tuple[int, Future[NDArray[np.uint8]]]] = []
        self._guard = Lock()
        self._done: Future[None] = Future()

    def begin(self, requests: RemoteRequests) -> bool:
        """Begin to fetch the ranges that there is room for; return whether there is any."""
        for row, byte_range in enumerate(self._ranges):
            if not requests.begin_ahead(byte_range, partial(self._take, byte_range.start)):
                n_left_out = len(self._ranges) - row
                self._ranges = self._ranges[:row]
                self._count_down(n_left_out)
                break
        return bool(self._ranges)

    def _count_down(self, count: int = 1) -> None:
        """Count ranges that have come or are left out; keep all after the last."""
        with self._guard:
            self._n_left -= count
            is_done = self._n_left == 0
        if not is_done or not self._ranges:
            return
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

    def _take(self, start: int, fetched: Future[NDArray[np.uint8]]) -> None:
        self._come.append((start, fetched))
        self._count_down()

    @property
    def is_done(self) -> bool:
        """Whether all has come, or has failed."""
        return self._done.done()

    def touches(self, low: int, high: int) -> bool:
        """Return whether a part of ``[low, high)`` is in the ranges."""
        return any(byte_range.start < high and byte_range.end > low for byte_range in self._ranges)

    def contain(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks, (n,), are in the ranges."""
        starts = blocks * BLOCK_BYTES
        mask = np.zeros(len(blocks), np.bool_)
        for byte_range in self._ranges:
            mask |= (starts >= byte_range.start) & (starts < byte_range.end)
        return mask

    def wait(self) -> None:
        """Wait until all has come.

        Raises what a request or the comparison raised.
        """
        self._done.result()


class RemoteObject:
    """The bytes of one version of an object, fetched in blocks.

    If another version takes its place, every later fetch fails: bytes of two versions never come
    together. An answer does not name its version, so it is asked for afterwards, but not after a
    first request for one range alone, which cannot mix two.

    Args:
        requests: makes the requests to the file system.
        cache: keeps what was fetched.
        key: the path of the object in the file system.
        name: how errors call it.
        listing: the number of the listing in which it was seen.
        on_gone: called when the object is found deleted or replaced, by any thread.

    Raises:
        FileNotFoundError: there is no such object.
        RemoteReadError: it cannot be opened.
    """

    def __init__(
        self,
        requests: RemoteRequests,
        cache: BlockCache,
        key: str,
        name: str,
        *,
        listing: int,
        on_gone: Callable[[], None],
    ) -> None:
        self.name = name
        self._requests = requests
        self._cache = cache
        self._key = key
        self._file, self.version = requests.handle(key, name)
        self._number = next(_numbers)
        self._prefetched: list[Prefetched] = []
        self._has_fetched = False
        self.is_gone = False  # deleted or replaced
        self._checked_in = listing  # the one in which it was seen last
        self._on_gone = on_gone
        self.ends: dict[int, int] = {}  # the written ends before some positions
        self.written_until = 0  # the last known position before the written end

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
                cached = self._cache.get(self._number, block, last - block + 1)
                if cached is None:
                    missing.append(block)
                    block += 1
                else:
                    sink(block * BLOCK_BYTES, cached)
                    block += -(-len(cached) // BLOCK_BYTES)
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
            start, end = ranges[0]
            with self._noting_its_end():
                data = self._requests.get(self._range(start, end))
            yield start, data
            return
        begun: list[tuple[int, Future[NDArray[np.uint8]]]] = []
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

    def _range(self, start: int, end: int) -> Range:
        return Range(self._file, self.name, start, end, self.require_same)

    @contextmanager
    def _noting_its_end(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self._gone(FileDeletedError) from None

    def require_same(self) -> None:
        """Refuse to continue with an object that was deleted or replaced since it was opened.

        Raises:
            FileDeletedError: it was deleted, or replaced (:class:`FileReplacedError`).
        """
        try:
            file, version = self._requests.handle(self._key, self.name)
        except FileNotFoundError:
            raise self._gone(FileDeletedError) from None
        with suppress(Exception):  # that of a file system of the caller may raise any
            file.close()
        if version != self.version:
            raise self._gone(FileReplacedError)

    def is_same_in(self, listing: int) -> bool:
        """Return whether it is still the object that was opened; asks once for each listing."""
        if self._checked_in != listing:
            try:
                self.require_same()
            except FileDeletedError:
                return False
        self._checked_in = listing
        return True

    def note_written(self, position: int) -> None:
        """Note a position before the written end."""
        self.written_until = max(self.written_until, position)

    def _gone(self, kind: type[FileDeletedError]) -> FileDeletedError:
        self.is_gone = True
        self._on_gone()
        return kind(self.name)

    def prefetch(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], *, is_passing: bool = False
    ) -> None:
        """Begin to fetch spans that will be read next, as far as there is room for them.

        Args:
            starts: positions inside of the object, (n,).
            ends: positions after the spans, (n,), inside of the object too.
            is_passing: whether they will be read once, by a read of much more.
        """
        self._prefetched = [group for group in self._prefetched if not group.is_done]
        blocks = blocks_of(starts, ends)
        cached = [self._cache.holds(self._number, block) for block in blocks.tolist()]
        is_missing = ~np.array(cached, np.bool_)
        for group in self._prefetched:
            is_missing &= ~group.contain(blocks)
        missing = requests_for(blocks[is_missing], self.size, PART_BYTES)
        ranges = [self._range(*bounds) for bounds in missing]
        if not ranges:
            return

        def keep(start: int, data: NDArray[np.uint8]) -> None:
            self._cache.put(self._number, start, data, is_passing=is_passing)

        group = Prefetched(ranges, self.require_same, keep)
        if group.begin(self._requests):
            self._has_fetched = True
            self._prefetched.append(group)

    def _await(self, low: int, high: int) -> None:
        """Wait for prefetched spans in a range."""
        touched = [group for group in self._prefetched if group.touches(low, high)]
        self._prefetched = [group for group in self._prefetched if group not in touched]
        for group in touched:
            with self._noting_its_end():
                group.wait()
