"""The extension of one ConsumeQueue, read-only: tags codes and Bloom bit maps, by address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import gather_spans
from rmqstore.format.layout import EXT_UNIT, Mask, Positions
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, Segment
from rmqstore.storage.files.open_files import OpenFiles

_UNIT = EXT_UNIT.itemsize
_OFFSET_BITS = np.int64((1 << 63) - 1)


class ExtUnits(NamedTuple):
    """The fixed parts of n units as columns; a unit that is not sound has zeros."""

    tags_codes: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]  # ms
    bit_map_sizes: NDArray[np.int64]  # bytes, 0 for a unit without a bit map
    sound: Mask


class ConsumeQueueExt:
    """The extension files of one queue of one topic. Source: ConsumeQueueExt.java.

    A broker with ``enableConsumeQueueExt`` puts an address where a queue unit's tags code would be,
    see ``layout.MAX_EXT_ADDRESS``. Units differ in length: only an address shows where one begins.
    """

    def __init__(self, folder: Path, files: OpenFiles | None = None) -> None:
        self.folder = folder
        self._files = MappedFileQueue([folder], files or OpenFiles())

    def refresh(self) -> None:
        """List the files again."""
        self._files.refresh()

    def units(self, addresses: NDArray[np.int64]) -> ExtUnits:
        """Return the units at addresses, (n,) in any order.

        Addresses outside of the files give units that are not sound.

        Raises:
            FileDeletedError: a file was deleted since the listing.
        """
        n = len(addresses)
        units = ExtUnits(
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n, np.bool_),
        )
        for rows, segment, positions in self._files_of(addresses):
            heads = self._files.open(segment).read_each(positions, _UNIT).view(EXT_UNIT)
            sizes = heads["size"].astype(np.int64)
            lengths = heads["bit_map_size"].astype(np.int64)
            sound = (lengths >= 0) & (sizes == _UNIT + lengths)
            sound &= sizes <= segment.size - positions
            units.sound[rows] = sound
            columns = (heads["tags_code"], heads["store_timestamp"], lengths)
            for column, values in zip(units, columns, strict=False):
                column[rows] = np.where(sound, values, 0)
        return units

    def bit_maps(self, addresses: NDArray[np.int64]) -> pa.BinaryArray:
        """Return the bit maps of the units at addresses, binary (n,).

        Null for a unit without a bit map, and for one that is not sound.
        """
        units = self.units(addresses)
        maps = pa.nulls(len(addresses), pa.binary())
        for rows, segment, positions in self._files_of(addresses):
            has_map = units.bit_map_sizes[rows] > 0
            if not has_map.any():
                continue
            starts = positions[has_map] + _UNIT
            lengths = units.bit_map_sizes[rows[has_map]]
            low = int(starts.min())
            window = self._files.open(segment).read(low, int((starts + lengths).max()) - low)
            gathered = gather_spans(window, starts - low, lengths, pa.binary())
            mask = np.zeros(len(addresses), np.bool_)
            mask[rows[has_map]] = True
            order = np.argsort(rows[has_map], kind="stable")
            maps = pc.replace_with_mask(maps, pa.array(mask), gathered.take(pa.array(order)))
        return maps

    def place(self, address: int) -> tuple[str, int]:
        """Return the file of an address and the position in it, else the folder and the offset."""
        offset = int(np.int64(address) & _OFFSET_BITS)
        segment = self._files.find(offset)
        if segment is None:
            return str(self.folder), offset
        return str(segment.path), offset - segment.start

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _files_of(
        self, addresses: NDArray[np.int64]
    ) -> Iterator[tuple[Positions, Segment, Positions]]:
        """Yield for each file the rows with an address in it, the file, and the positions there.

        Rows at whose position no whole head fits are left out.
        """
        offsets = addresses & _OFFSET_BITS  # Source: ConsumeQueueExt.java#unDecorate
        segments: list[Segment] = self._files.segments
        file_starts = np.array([segment.start for segment in segments], np.int64)
        numbers = np.searchsorted(file_starts, offsets, side="right") - 1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            segment = segments[number]
            size = min(self._files.open(segment).size, segment.size)
            rows = np.flatnonzero((numbers == number) & (offsets - segment.start <= size - _UNIT))
            if len(rows):
                yield rows, segment._replace(size=size), offsets[rows] - segment.start
