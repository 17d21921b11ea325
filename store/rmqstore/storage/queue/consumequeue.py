"""The files of one ConsumeQueue, read-only: 20-byte units, queue offset to physical offset."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.format.columns.buffers import gather_spans
from rmqstore.format.layout import EXT_UNIT, QUEUE_UNIT, Mask, Positions
from rmqstore.storage.files.mapped_file_queue import (
    Lister,
    MappedFileQueue,
    OpenFiles,
    Segment,
    list_segments,
)
from rmqstore.storage.files.storage import AnyPath, Storage
from rmqstore.storage.queue.queue import (
    Units,
    count_existing,
    cut_at,
    first_existing,
    weights_of,
    whole_end,
)

_UNIT = QUEUE_UNIT.itemsize
_FIELDS = struct.Struct(">qiq")  # of QUEUE_UNIT

_RECOVERED_FILES = 3
_EXT_UNIT_BYTES = EXT_UNIT.itemsize
_OFFSET_BITS = np.int64((1 << 63) - 1)


def recovered_files(segments: Sequence[Segment]) -> list[Segment]:
    """Return the files of a queue that a starting broker looks at; it deletes an empty one."""
    return [segment for segment in segments if segment.size][-_RECOVERED_FILES:]


def kept_end(queue: ConsumeQueue, log_end: int, *, is_cut: bool) -> int:
    """Return the queue offset after the last unit that a starting broker keeps.

    It ends a queue in files at the first unit that was never written, which it looks for in the
    last three files; it passes over files that are missing between them. Then it cuts off what
    leads behind the end of the log. A queue of which no file is left begins again at 0.

    Args:
        queue: the queue.
        log_end: physical offset where the broker ends the log.
        is_cut: whether a queue leads behind that, so that the broker looks at the last file of all
            queues again, and keeps its first unit whatever it holds. It does so in any case when
            it has deleted files behind that one.

    Source: ConsumeQueue.java#recover, #truncateDirtyLogicFiles.
    """
    segments = [segment for segment in queue.segments if segment.size]
    end, queue_end = 0, queue.end()  # behind which there are zeros
    for segment in recovered_files(segments):
        start, stop = segment.start // _UNIT, segment.end // _UNIT
        end = whole_end(queue, start, min(stop, queue_end))
        if end < stop:
            break
    for segment in reversed(segments):
        start, stop = segment.start // _UNIT, segment.end // _UNIT
        if start > end or queue.unit(start)[0] >= log_end:
            continue  # a broker deletes the file
        if is_cut or end > stop:
            return whole_end(queue, start + 1, min(stop, queue_end), log_end)
        return queue.cut(start, min(end, stop), log_end)
    return 0


def _list_aligned(folders: Sequence[str], storage: Storage) -> list[Segment]:
    """Return the files of a queue without those whose name is not the offset of a unit."""
    segments = list_segments(folders, storage)
    return [segment for segment in segments if not segment.start % _UNIT]


class ConsumeQueue:
    """The files of one queue of one topic. Source: ConsumeQueue.java.

    The unit with queue offset n stands at byte 20 n of the address space that the file names give.

    Args:
        files: opens the files, and may be shared with other queues; by default those of the local
            disk.
        lister: lists files of other names; they are as long as what was written to them, while a
            broker's own files are made at their full length.
    """

    __slots__ = ("_files", "_folder", "_is_preallocated")

    is_batch = False
    is_recovered = False

    def __init__(
        self, folder: AnyPath, files: OpenFiles | None = None, lister: Lister | None = None
    ) -> None:
        self._folder = folder
        self._files = MappedFileQueue([folder], files or OpenFiles(), lister or _list_aligned)
        self._is_preallocated = lister is None

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return Path(self._folder)

    def refresh(self) -> None:
        """List the files again."""
        self._files.refresh()

    @property
    def segments(self) -> list[Segment]:
        """The files, by byte offset."""
        return self._files.segments

    @property
    def is_present(self) -> bool:
        """Whether there is a file with bytes: a broker that starts deletes an empty one."""
        return any(segment.size for segment in self.segments)

    def position(self, queue_offset: int) -> int:
        """Return where a unit stands in the address space of the files."""
        return queue_offset * _UNIT

    @property
    def end_files(self) -> tuple[str, str] | None:
        """The first and the last file."""
        segments = self.segments
        return (segments[0].file, segments[-1].file) if segments else None

    @property
    def n_full_bytes(self) -> int:
        """The length in bytes of all files but the last."""
        return sum(segment.size for segment in self.segments[:-1])

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros if no file has it."""
        segment = self._files.find(queue_offset * _UNIT)
        if segment is None:
            return 0, 0, 0
        position = queue_offset * _UNIT - segment.start
        stored = np.empty(_UNIT, np.uint8)
        count = self._files.file_of(segment).read_into(stored, position)
        if count < _UNIT or position + _UNIT > segment.size:
            return 0, 0, 0
        physical_offset, size, tags_code = _FIELDS.unpack(stored.data)
        return physical_offset, size, tags_code

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, which have to lie in one of :meth:`runs`.

        Raises:
            OffsetOutOfRangeError: a file was deleted since the store was opened.
        """
        parts: list[NDArray[np.void]] = []
        queue_offset = start
        while queue_offset < end:
            segment = self._files.find(queue_offset * _UNIT)
            part = np.empty(0, QUEUE_UNIT)
            if segment is not None:  # the whole units that this file holds
                first = segment.start // _UNIT
                stop = min(end, first + segment.size // _UNIT)
                stored = np.empty(max(stop - queue_offset, 0) * _UNIT, np.uint8)
                position = (queue_offset - first) * _UNIT
                count = self._files.file_of(segment).read_into(stored, position)
                part = stored[: count // _UNIT * _UNIT].view(QUEUE_UNIT)
            if not len(part):
                raise OffsetOutOfRangeError(
                    f"{self.folder}: queue offset {queue_offset} is in none of the queue's files"
                )
            parts.append(part)
            queue_offset += len(part)
        if len(parts) == 1:
            return Units.of(parts[0])
        return Units.of(np.concatenate([np.empty(0, QUEUE_UNIT), *parts]))

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units with rising queue offsets; zeros where no file has one."""
        units = np.zeros(len(queue_offsets), QUEUE_UNIT)
        for segment in self.segments:
            first, stop = segment.start // _UNIT, (segment.start + segment.size) // _UNIT
            rows = np.flatnonzero((queue_offsets >= first) & (queue_offsets < stop))
            if len(rows):
                file = self._files.file_of(segment)
                positions = (queue_offsets[rows] - first) * _UNIT
                is_whole = positions <= file.size - _UNIT
                rows, positions = rows[is_whole], positions[is_whole]
                file.prefetch(positions, _UNIT)
                units[rows] = file.read_each(positions, _UNIT).view(QUEUE_UNIT)
        return Units.of(units)

    def prefetch(self, queue_offsets: NDArray[np.int64], count: int) -> None:
        """Begin to fetch ``count`` units from each queue offset (n,) on, which are read next."""
        for segment in self.segments:
            positions = queue_offsets * _UNIT - segment.start
            is_inside = (positions >= 0) & (positions < segment.size)
            if is_inside.any():
                self._files.file_of(segment).prefetch(positions[is_inside], count * _UNIT)

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that the files hold.

        The units between them were in a missing or truncated file.
        """
        run_start = run_end = start
        for segment in self.segments:
            first, stop = segment.start // _UNIT, (segment.start + segment.size) // _UNIT
            low, high = max(first, start), min(stop, end)
            if low >= high:
                continue
            if low > run_end:
                if run_end > run_start:
                    yield run_start, run_end
                run_start = low
            run_end = high
        if run_end > run_start:
            yield run_start, run_end

    def location(self, queue_offset: int) -> tuple[str, int]:
        """Return the file of a unit and its position there, to name the unit in an error."""
        return self._files.place_of(queue_offset * _UNIT)

    def end(self) -> int:
        """Return the queue offset after the last unit, whole or not, that was ever written.

        The search goes backwards for the last byte that is not zero. A forward search for the first
        unit that was not written would stop at a damaged unit and hide all units after it.

        Source: ConsumeQueue.java#recover.
        """
        if not self._is_preallocated:
            return -(-self._files.max_offset // _UNIT)
        for segment in reversed(self.segments):
            written = self._files.file_of(segment).written_end(segment.size)
            if written:
                return segment.start // _UNIT + -(-written // _UNIT)
        return self.begin

    @property
    def begin(self) -> int:
        """The first queue offset with a unit, even if its record was deleted; 0 without files."""
        return self._files.min_offset // _UNIT

    first = first_existing
    cut = cut_at
    weights = weights_of
    count_units = count_existing

    def close(self) -> None:
        """Close the files."""
        self._files.close()


class ExtUnits(NamedTuple):
    """The fixed parts of n units as columns; a unit that is not valid has zeros."""

    tags_codes: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]  # ms
    bit_map_sizes: NDArray[np.int64]  # bytes, 0 for a unit without a bit map
    valid: Mask


class ConsumeQueueExt(MappedFileQueue):
    """The extension files of one queue of one topic. Source: ConsumeQueueExt.java.

    A broker with ``enableConsumeQueueExt`` puts an address where a queue unit's tags code would be,
    see ``layout.MAX_EXT_ADDRESS``. Units differ in length: only an address shows where one begins.
    """

    def units(self, addresses: NDArray[np.int64]) -> ExtUnits:
        """Return the units at addresses, (n,) in any order.

        Addresses outside of the files give units that are not valid.

        Raises:
            FileDeletedError: a file was deleted since the listing.
        """
        n = len(addresses)
        tags_codes, store_timestamps, bit_map_sizes = np.zeros((3, n), np.int64)
        units = ExtUnits(tags_codes, store_timestamps, bit_map_sizes, np.zeros(n, np.bool_))
        for rows, segment, positions in self._files_of(addresses):
            headers = self.file_of(segment).read_each(positions, _EXT_UNIT_BYTES).view(EXT_UNIT)
            sizes = headers["size"].astype(np.int64)
            lengths = headers["bit_map_size"].astype(np.int64)
            valid = (lengths >= 0) & (sizes == _EXT_UNIT_BYTES + lengths)
            valid &= sizes <= segment.size - positions
            units.valid[rows] = valid
            columns = (headers["tags_code"], headers["store_timestamp"], lengths)
            for column, values in zip(units, columns, strict=False):
                column[rows] = np.where(valid, values, 0)
        return units

    def bit_maps(self, addresses: NDArray[np.int64]) -> pa.BinaryArray:
        """Return the bit maps of the units at addresses, binary (n,).

        Null for a unit without a bit map, and for one that is not valid.
        """
        units = self.units(addresses)
        maps = pa.nulls(len(addresses), pa.binary())
        for rows, segment, positions in self._files_of(addresses):
            has_map = units.bit_map_sizes[rows] > 0
            if not has_map.any():
                continue
            starts = positions[has_map] + _EXT_UNIT_BYTES
            lengths = units.bit_map_sizes[rows[has_map]]
            low = int(starts.min())
            window = self.file_of(segment).read(low, int((starts + lengths).max()) - low)
            gathered = gather_spans(window, starts - low, lengths, pa.binary())
            mask = np.zeros(len(addresses), np.bool_)
            mask[rows[has_map]] = True
            order = np.argsort(rows[has_map], kind="stable")
            maps = pc.replace_with_mask(maps, pa.array(mask), gathered.take(pa.array(order)))
        return maps

    def location(self, address: int) -> tuple[str, int]:
        """Return the file of an address and the position in it, else the folder and the offset."""
        return self.place_of(int(np.int64(address) & _OFFSET_BITS))

    def _files_of(
        self, addresses: NDArray[np.int64]
    ) -> Iterator[tuple[Positions, Segment, Positions]]:
        """Yield for each file the rows with an address in it, the file, and the positions there.

        Rows at whose position no whole head fits are left out.
        """
        offsets = addresses & _OFFSET_BITS  # Source: ConsumeQueueExt.java#unDecorate
        for segment, rows in self.rows_by_file(offsets):
            size = min(self.file_of(segment).size, segment.size)
            positions = offsets[rows] - segment.start
            n_inside = int(np.searchsorted(positions, size - _EXT_UNIT_BYTES, side="right"))
            if n_inside:
                yield rows[:n_inside], segment._replace(size=size), positions[:n_inside]
