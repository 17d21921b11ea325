"""A file of a remote storage: only its bytes that were fetched are ever seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.files.closing import Closing
from rmqstore.storage.files.storage import AnyPath, empty_array
from rmqstore.storage.remote.remote_object import RemoteObject

_LAST_BYTES: Final = 4 << 10  # read first, because most files are full
_PROBE_BYTES: Final = 4 << 10
_NEAR_BYTES: Final = 512 << 10  # of the written end; these are fetched by one request
_SHORT_BYTES: Final = 8 << 20  # such a file is of a queue, which has no long run of zeros
_NEAR_IN_LONG_BYTES: Final = 4 << 20
_PARTS_OF_LONG: Final = 4  # that a longer file is searched by, with a request each, all at once
_LONG_BYTES: Final = 4 << 20  # of a span, for which pages are best large
_GUESSED_BYTES: Final = 64 << 10  # on both sides of a guess
_DISTANCES: Final = _NEAR_BYTES << np.arange(0, 20, 2)  # bytes, at which later data is looked for


class Listing(Protocol):
    """Tells which objects there are."""

    def is_outdated(self, name: str) -> bool:
        """Tell whether another object has the name by now."""


class RemoteFile(Closing):
    """One version of an object. The storage keeps it open for others who read it.

    Args:
        path: name of the file.
        stored: the object.
        listing: tells whether the object is still that of the name.
        ends: where the last searched file of each length ended, shared by all files of a storage.
    """

    __slots__ = ("_guesses", "_listing", "_object", "path")

    def __init__(
        self, path: AnyPath, stored: RemoteObject, listing: Listing, ends: dict[int, int]
    ) -> None:
        self.path, self._object, self._listing, self._guesses = path, stored, listing, ends

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self._object.size

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return the bytes ``[start, start + size)``, fewer only at the end."""
        data = np.empty(max(min(size, self.size - start), 0), np.uint8)
        self.read_into(data, start)
        return data

    def read_into(self, window: NDArray[np.uint8], start: int) -> int:
        """Copy bytes from ``start`` on into a window; return their number, less only at the end."""
        n_bytes = max(min(len(window), self.size - start), 0)
        end = start + n_bytes

        def copy(position: int, data: NDArray[np.uint8]) -> None:
            low, high = max(position, start), min(position + len(data), end)
            if low < high:
                window[low - start : high - start] = data[low - position : high - position]

        self._object.fetch(np.array([start], np.int64), np.array([end], np.int64), copy)
        return n_bytes

    def read_in_place(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return an array as long as the file, which holds some spans, and zeros elsewhere."""
        return self._in_place(starts, sizes, is_last=True)

    def _in_place(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64], *, is_last: bool
    ) -> NDArray[np.uint8]:
        is_long = int(sizes.max(initial=0)) > _LONG_BYTES
        whole = empty_array(self.size, in_large_pages=is_long)

        def copy(position: int, data: NDArray[np.uint8]) -> None:
            whole[position : position + len(data)] = data

        starts, ends = np.minimum(starts, self.size), self._ends(starts, sizes)
        self._object.fetch(starts, ends, copy, is_last=is_last)
        return whole

    def read_each(self, starts: NDArray[np.int64], size: int) -> NDArray[np.void]:
        """Return ``size`` bytes from each of the starts (n,), void (n,), all inside the file."""
        if not len(starts) or not size:
            return np.empty(len(starts), f"V{size}")
        whole = self.read_in_place(starts, np.full(len(starts), size, np.int64))
        every = np.ndarray((len(whole) - size + 1,), f"V{size}", whole, 0, (1,))
        values: NDArray[np.void] = every[starts]
        return values

    def want(self, starts: NDArray[np.int64], size: int) -> None:
        """Begin to fetch ``size`` bytes from each of the starts, (n,)."""
        sizes = np.full(len(starts), size, np.int64)
        self._object.announce(np.minimum(starts, self.size), self._ends(starts, sizes))

    def read_ahead(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Begin to fetch spans, (n,), that a long read reaches soon, and reads once."""
        starts = np.minimum(starts, self.size)
        self._object.announce(starts, self._ends(starts, sizes), is_passing=True)

    def _ends(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        ends: NDArray[np.int64] = np.minimum(starts + sizes, self.size)
        return ends

    def data_spans(
        self, start: int, end: int, *, is_appended: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Yield a range, or its part before the written end of a file that is only appended to.

        Where something was written just before ``end``, the written end is after it, and is not
        looked for.
        """
        end = min(end, self.size)
        if is_appended and start < end and not self._is_written_until(end):
            end = min(end, self.written_end(self.size))
        if start < end:
            yield start, end

    def _is_written_until(self, end: int) -> bool:
        """Tell, by one request at most, whether the written end is known to be after a position."""
        found = self._object
        if (
            found.written_until < end < self.size
            and self.size not in found.ends
            and self._last_byte(max(end - _PROBE_BYTES, 0), end)
        ):
            found.written_until = end
        return end <= found.written_until

    def written_end(self, size: int) -> int:
        """Return the position after the last byte before ``size`` that is not zero, or 0.

        A file is written from its start on, so the end is searched by halves, or by quarters in a
        long file. A long run of zeros in a record can mislead the search, so places after the end
        that it finds are looked at as well, each twice as far as the one before.
        """
        size = min(size, self.size)
        found = self._object.ends.get(size)
        if found is None:
            found = self._object.ends[size] = self._search_end(size)
            self._object.written_until = max(self._object.written_until, found)
        return found

    def look(self, *, at_start: bool, at_end: bool) -> None:
        """Fetch the first bytes and, around the place where they are expected, the last ones."""
        low, high = self._around(self._guesses.get(self.size, 0) if at_end else 0, self.size)
        starts = np.array([0, low], np.int64)
        ends = np.array([min(_PROBE_BYTES, self.size) if at_start else 0, high], np.int64)
        self._object.fetch(starts, ends, _ignore)
        if at_end:
            self.written_end(self.size)

    def _search_end(self, size: int) -> int:
        end = self._end_near(self._guesses.get(size, 0), size)
        if end:
            return end
        high = max(size - _LAST_BYTES, 0)
        end = self._last_byte(high, size)
        low = 0
        while not end and low < high:
            end = self._by_parts(low, high)
            is_long = size > _SHORT_BYTES
            places = end + _DISTANCES[is_long & (_DISTANCES < high - end)]  # noqa: SIM300
            later = places[self._hold_data(places)]
            if len(later):
                low, end = int(later[-1]), 0
            elif not end:
                break
        if end < size:  # a full file says nothing of others
            self._guesses[size] = end
        return end

    def _end_near(self, guess: int, size: int) -> int:
        """Return the end if it lies near a guess in a short file, else 0.

        Queues that take turns are filled alike, so the end in one file is near that in another.
        """
        low, high = self._around(guess, size)
        if low >= high:
            return 0
        end = self._last_byte(low, high)
        return end if end + _PROBE_BYTES <= high or end == size else 0

    def _around(self, guess: int, size: int) -> tuple[int, int]:
        """Return the range of positions in which the end is expected; an empty one for none."""
        if not 0 < guess <= size <= _SHORT_BYTES:
            return 0, 0
        return max(guess - _GUESSED_BYTES, 0), min(guess + _GUESSED_BYTES, size)

    def _by_parts(self, low: int, high: int) -> int:
        """Return the end of what is written in ``[low, high)``, after which all is zero."""
        start, near = low, _NEAR_BYTES if high <= _SHORT_BYTES else _NEAR_IN_LONG_BYTES
        n_parts = 2 if high <= _SHORT_BYTES else _PARTS_OF_LONG
        while high - low > near:
            places = low + (high - low) * np.arange(1, n_parts, dtype=np.int64) // n_parts
            data = np.flatnonzero(self._hold_data(places, is_last=False))
            last = int(data[-1]) if len(data) else -1
            bounds = [low, *places.tolist(), high]
            low, high = bounds[last + 1], bounds[last + 2]
        end = self._last_byte(low, high)
        return end or (low if low > start else 0)

    def _hold_data(
        self, positions: NDArray[np.int64], *, is_last: bool = True
    ) -> NDArray[np.bool_]:
        """Tell at which positions, (n,), some of the next bytes are not zero."""
        if not len(positions):
            return np.empty(0, np.bool_)
        sizes = np.full(len(positions), _PROBE_BYTES, np.int64)
        whole = self._in_place(positions, sizes, is_last=is_last)
        rows = [whole[position : position + _PROBE_BYTES].any() for position in positions.tolist()]
        return np.array(rows, np.bool_)

    def _last_byte(self, start: int, end: int) -> int:
        """Return the position after the last byte in a range that is not zero, or 0."""
        n_written = len(self.read(start, end - start).tobytes().rstrip(b"\0"))
        return start + n_written if n_written else 0

    def is_outdated(self) -> bool:
        """Tell whether another object has the name by now."""
        return self._object.is_gone or self._listing.is_outdated(str(self.path))

    def close(self) -> None:
        """Do nothing: the storage closes objects that are not used for long."""


def _ignore(_position: int, _data: NDArray[np.uint8]) -> None:
    """Take bytes that stay in the cache for those who read them."""
