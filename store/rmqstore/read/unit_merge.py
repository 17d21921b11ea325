"""Merges the units of many queues, so that the log is read once and forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import Mask, Positions
from rmqstore.spans import QueueSlice
from rmqstore.storage.queue.queue import Units

WINDOW_UNITS = 1 << 19  # a window has about as many
_SAMPLES_PER_WINDOW = 64
_MAX_SAMPLES = 1 << 12
_OVERREAD = 1.25  # units read of each slice, per unit of its share of a window: shares differ
_PREFETCHED_UNITS = 1024  # prefetched by one number
_LEAST_UNITS = 8  # read at once
_SHORT_SLICE = 1024  # units that cost little more to read at once than a few of them
_MAX_BUFFERED_WINDOWS = 4  # where the samples mislead, fewer units go into a window
_LAST = np.iinfo(np.int64).max

ReadUnits = Callable[[QueueSlice, int, int], tuple[int, Units]]
PrefetchUnits = Callable[[QueueSlice, NDArray[np.int64], int], None]
SampleUnit = Callable[[QueueSlice, int], Positions]


class MergedUnits(NamedTuple):
    """Units of several slices, (n,) each."""

    slices: NDArray[np.int64]  # the number of the slice that each unit is of
    keys: Positions  # what they are merged by
    queue_offsets: NDArray[np.int64]
    physical_offsets: Positions
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    def take(self, rows: Positions | Mask) -> MergedUnits:
        """Return the chosen rows."""
        return MergedUnits(*(column[rows] for column in self))


_NO_UNITS = MergedUnits(*[np.empty(0, np.int64)] * 6)


class UnitMerge:
    """Yields the units of slices in windows, each of them sorted by physical offset.

    The slices are cut at the same physical offsets, which a sample of all their units gives, so
    that every window has about as many units as the others. A slice is read on only for a window
    that its units may reach into: the cost is that of the units, and a slice with few of them costs
    no visit for the windows of the others.

    A queue's own order stands above the log's. The key of a unit is the highest physical offset up
    to it in its slice, so a damaged unit stays between its neighbours: physical offsets 10, 40, 20,
    50 get the keys 10, 40, 40, 50. A slice follows the last unit of the slice before it if both are
    of one queue.

    Args:
        slices: the queue slices to merge; equal keys come in their order.
        read_units: gives units of a slice from a queue offset on, with the queue offset of the
            first of them, which is later than the one asked for if units are gone.
        sample_unit: gives the physical offset of one unit of a slice by its queue offset, (1,), or
            (0,) if it is gone.
        window_units: how many units a window has, about.
        prefetch: if given, called before units are read: with a slice, queue offsets (n,), and how
            many units from each of these on are read.
    """

    def __init__(
        self,
        slices: Sequence[QueueSlice],
        read_units: ReadUnits,
        sample_unit: SampleUnit,
        window_units: int = WINDOW_UNITS,
        prefetch: PrefetchUnits | None = None,
    ) -> None:
        self._slices = slices
        self._read_units = read_units
        self._sample_unit = sample_unit
        self._window_units = window_units
        self._prefetch_units = prefetch
        # The queue offset of each slice to read from.
        self._next = np.array([queue_slice.start for queue_slice in slices], np.int64)
        self._ends = np.array([queue_slice.end for queue_slice in slices], np.int64)
        self._horizons = np.full(len(slices), -1, np.int64)  # the highest key read
        self._buffered = _NO_UNITS  # read, and not in a window yet

    def windows(self) -> Iterator[MergedUnits]:
        """Yield all units, window by window; raises what ``read_units`` raises."""
        for limit in self._limits():
            is_complete = False
            while not is_complete:
                is_complete = self._read_up_to(limit)
                highest = limit
                if not is_complete:
                    # Up to here all units are buffered; after it, a slice that is not read to its
                    # end may still have units.
                    highest = int(self._horizons[self._next < self._ends].min(initial=_LAST))
                is_due = self._buffered.keys <= highest
                if is_due.all():
                    window = self._buffered
                    self._buffered = _NO_UNITS
                else:
                    window = self._buffered.take(is_due)
                    self._buffered = self._buffered.take(~is_due)
                order = np.argsort(window.keys, kind="stable")
                keys = window.keys[order]
                if (keys[1:] == keys[:-1]).any():
                    order = np.lexsort((window.slices, window.keys))
                window = window.take(order)
                del is_due, order, keys  # while the caller reads the window
                if len(window.keys):
                    yield window

    def _limits(self) -> list[int]:
        """Return the highest key of each window, ascending.

        Reads the beginning of every slice and some samples.
        """
        left = self._ends - self._next
        total = int(left.sum())
        share = min(1.0, self._window_units / max(total, 1))
        most_buffered = _MAX_BUFFERED_WINDOWS * self._window_units
        least = max(1, min(_SHORT_SLICE, most_buffered // max(len(left), 1)))
        counts = np.minimum(left, np.maximum((left * share).astype(np.int64), least))
        step = max(self._window_units // _SAMPLES_PER_WINDOW, total // _MAX_SAMPLES, 1)
        # Sampled is every ``step``-th queue offset that is not read here, counted through all
        # slices. With a step of 4, slices that end at 10 and 20 and have 3 and 6 such offsets (7 to
        # 9 and 14 to 19) give none and 14 and 18.
        passed = np.cumsum(left - counts)
        positions = np.arange(step - 1, int(passed[-1]) if len(passed) else 0, step)
        numbers = np.searchsorted(passed, positions, side="right")
        offsets = self._ends[numbers] - (passed[numbers] - positions)
        bounds = np.searchsorted(numbers, np.arange(1, len(left)))
        sampled = [part.tolist() for part in np.split(offsets, bounds)]
        for number, count in enumerate(counts.tolist()):
            self._prefetch(number, count, sampled[number])
        chunks, samples = [], []
        for number, count in enumerate(counts.tolist()):
            chunks.append(self._read(number, count))
            # The samples are taken now because the files of the queue are open.
            queue_slice = self._slices[number]
            if number and self._slices[number - 1][:2] == queue_slice[:2]:
                self._horizons[number] = self._key_before(number, chunks[number - 1][2])
            samples += [
                self._sample_unit(queue_slice, queue_offset) for queue_offset in sampled[number]
            ]
        self._buffer(chunks)
        keys = np.concatenate([self._buffered.keys, *samples])
        weights = np.full(len(keys), step, np.int64)
        weights[: len(self._buffered.keys)] = 1
        order = np.argsort(keys, kind="stable")
        windows = np.cumsum(weights[order]) // self._window_units
        return [*np.unique(keys[order][np.flatnonzero(np.diff(windows))]).tolist(), _LAST]

    def _key_before(self, number: int, units: Units) -> int:
        """Return the highest key of the slice before, by its first units, and by its last one."""
        before = self._slices[number - 1]
        key = int(units.physical_offsets.max(initial=self._horizons[number - 1]))
        if self._next[number - 1] < before.end:
            key = int(self._sample_unit(before, before.end - 1).max(initial=key))
        return key

    def _read_up_to(self, limit: int) -> bool:
        """Read until every slice is known up to the limit.

        False if too many units would be buffered at once.
        """
        factor = _OVERREAD
        while True:
            left = self._ends - self._next
            due = np.flatnonzero((left > 0) & (self._horizons <= limit))
            if not len(due):
                return True
            n_buffered = np.count_nonzero(self._buffered.keys <= limit)
            if n_buffered > _MAX_BUFFERED_WINDOWS * self._window_units:
                due = due[[np.argmin(self._horizons[due])]]
                self._buffer([self._read(int(due[0]), min(int(left[due[0]]), self._window_units))])
                return False
            share = min(1.0, factor * self._window_units / int(left.sum()))
            least = max(_LEAST_UNITS, self._window_units // len(left))
            counts = np.minimum(left[due], np.maximum((left[due] * share).astype(np.int64), least))
            for number, count in zip(due.tolist(), counts.tolist(), strict=True):
                self._prefetch(number, count)
            reads = zip(due.tolist(), counts.tolist(), strict=True)
            self._buffer([self._read(number, count) for number, count in reads])
            factor *= 2

    def _prefetch(self, number: int, count: int, sampled: Sequence[int] = ()) -> None:
        """Begin to fetch the next units of a slice, and some later ones."""
        if self._prefetch_units is not None:
            first = int(self._next[number])
            starts = [*range(first, first + count, _PREFETCHED_UNITS), *sampled]
            least = min(count, _PREFETCHED_UNITS)
            self._prefetch_units(self._slices[number], np.array(starts, np.int64), least)

    def _read(self, number: int, count: int) -> tuple[int, int, Units]:
        """Read units of a slice.

        Returns:
            The number of the slice, the queue offset of the first unit, and the units.
        """
        start, units = self._read_units(self._slices[number], int(self._next[number]), count)
        self._next[number] = start + len(units.sizes)
        return number, start, units

    def _buffer(self, chunks: list[tuple[int, int, Units]]) -> None:
        """Add units to the buffered ones, with their keys."""
        chunks = [chunk for chunk in chunks if len(chunk[2].sizes)]
        if not chunks:
            return
        counts = np.array([len(units.sizes) for _, _, units in chunks], np.int64)
        numbers = np.array([number for number, _, _ in chunks], np.int64)
        first_rows = np.cumsum(counts) - counts
        starts = np.array([start for _, start, _ in chunks], np.int64)
        offsets = np.repeat(starts - first_rows, counts)
        columns = [
            np.concatenate(column)
            for column in zip(*(units for _, _, units in chunks), strict=True)
        ]
        physical_offsets = columns[0]
        horizons = self._horizons[numbers]
        keys = physical_offsets
        # A key is the highest physical offset up to its unit in the slice, so it differs from the
        # unit's own where these fall.
        falls = np.zeros(len(physical_offsets), np.bool_)
        falls[1:] = physical_offsets[1:] < physical_offsets[:-1]
        falls[first_rows] = physical_offsets[first_rows] < horizons
        if falls.any():
            keys = physical_offsets.copy()
            ends = first_rows + counts
            fallen = np.searchsorted(first_rows, np.flatnonzero(falls), side="right") - 1
            for chunk in np.unique(fallen).tolist():
                rows = slice(int(first_rows[chunk]), int(ends[chunk]))
                keys[rows] = np.maximum(np.maximum.accumulate(keys[rows]), horizons[chunk])
        self._horizons[numbers] = keys[first_rows + counts - 1]
        more = MergedUnits(
            np.repeat(numbers, counts), keys, offsets + np.arange(len(keys)), *columns
        )
        if len(self._buffered.keys):
            both = zip(self._buffered, more, strict=True)
            more = MergedUnits(*(np.concatenate(column) for column in both))
        self._buffered = more
