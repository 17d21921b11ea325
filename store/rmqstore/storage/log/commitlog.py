"""The record log of a broker, read-only: the file of a physical offset, and the record there.

A DLedger log has each record in an entry, as :meth:`CommitLog.framing` says. Walks begin and end at
frames; queues, the index and message ids point at records. In a plain log these are the same.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import (
    CorruptRecordError,
    FileDeletedError,
    MalformedBytesError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    UnreadableFileError,
)
from rmqstore.format.columns.buffers import in_calendar
from rmqstore.format.columns.search import are_magics, have_magic, stores_its_offset
from rmqstore.format.framing import ENTRIES, RECORDS, FrameNumbers, Framing
from rmqstore.format.layout import (
    FIRST_TIMESTAMP,
    FIXED_PART,
    FIXED_PART_V4,
    FRAME_HEAD,
    LAST_TIMESTAMP,
    MAX_FIXED_BYTES,
    MIN_RECORD_BYTES,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Mask,
    Positions,
    SysFlag,
)
from rmqstore.format.record import (
    SplitRecord,
    check_record,
    decode_record,
    split_record,
    time_reason,
)
from rmqstore.format.schema import Message
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import Lister, MappedFileQueue, OpenFiles, Segment
from rmqstore.storage.files.paths import name_to_offset, segment_files
from rmqstore.storage.files.storage import Storage, StoredFile

_PLACE = ["total_size", "magic", "physical_offset"]
_MAX_SPANS = 10_000  # of data between holes, of one file
_FILES_AT_ONCE = 96  # a search by time goes to and fro in the log

_SYS_FLAG = struct.Struct(">36xi")
_TIME = struct.Struct(">q")
_TIME_POSITIONS: dict[int, int] = {
    bits: dict(fixed.fields or {})["store_timestamp"][1] for bits, fixed in FIXED_PART.items()
}
_HOSTS_V6 = int(SysFlag.HOSTS_V6)
_BORN_HOST_V6 = int(SysFlag.BORN_HOST_V6)


def first_record(log: CommitLog, segment: Segment) -> SegmentPosition:
    """Return where the first record of a file begins."""
    return SegmentPosition(segment, log.framing(segment).head_bytes)


def records_in(log: CommitLog, frames: Positions) -> Positions:
    """Return the physical offsets of the records in frames, (n,), by those of the frames."""
    if not log.entry_segments:
        return frames
    segments = [log.find(frame) for frame in frames.tolist()]
    head_bytes = [log.framing(segment).head_bytes if segment else 0 for segment in segments]
    return frames + np.array(head_bytes, np.int64)


def frame_start(log: CommitLog, physical_offset: int) -> int:
    """Return where the frame of the record at a physical offset begins; nothing is read."""
    segment = log.find(physical_offset)
    return physical_offset - (log.framing(segment).head_bytes if segment is not None else 0)


def frame_of(log: CommitLog, physical_offset: int) -> int | None:
    """Return where the frame of the record at a physical offset begins.

    None if no record, whole or not, begins there that holds that offset.
    """
    if not begins_record(log, physical_offset):
        return None
    segment = log.locate(physical_offset).segment
    framing = log.framing(segment)
    frame = physical_offset - framing.head_bytes
    if frame == physical_offset:
        return frame
    if frame < segment.start:
        return None
    head = log.read(segment, frame - segment.start, framing.head_bytes)
    only = np.zeros(1, np.int64)
    return None if len(framing.refused_rows(head, only, frame, only)) else frame


def numbers_of(log: CommitLog, physical_offset: int) -> FrameNumbers | None:
    """Return the numbers of the frame of the record at an offset, None if it has none."""
    segment = log.find(physical_offset)
    if segment is None:
        return None
    framing = log.framing(segment)
    position = physical_offset - segment.start - framing.head_bytes
    if position < 0:
        return None
    return framing.numbers(log.read(segment, position, framing.head_bytes), 0)


def is_blank(log: CommitLog, located: SegmentPosition) -> bool:
    """Return whether the blank that closes a file begins at a place."""
    framing = log.framing(located.segment)
    words = read_frame(log, located)
    size, magic = words[framing.size_word], words[1 - framing.size_word]
    return framing.is_blank(magic, size, located.segment.size - located.position)


class SegmentPosition(NamedTuple):
    """A physical offset as a file and the position in it."""

    segment: Segment
    position: int


class SegmentSpan(NamedTuple):
    """A span of the log by physical offset, and the file that holds it; None for a gap."""

    start: int
    end: int
    segment: Segment | None


class CommitLog(MappedFileQueue):
    """Fixed-size files of records, named by their start offset.

    Args:
        folders: the folders whose files hold records.
        storage: the storage that holds the files.
        entry_folders: the folders whose files hold entries of a DLedger log.
        files: opens the files, and may be shared with other logs.
        lister: lists files of other names and lengths.

    The records end where the last file does, or before.

    Source: CommitLog.java, DLedgerCommitLog.java.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        storage: Storage = LOCAL,
        *,
        entry_folders: Sequence[Path] = (),
        files: OpenFiles | None = None,
        lister: Lister | None = None,
    ) -> None:
        self.storage = storage
        self.is_remote = storage.requests_made() is not None
        every = (*folders, *entry_folders)
        self.folders = ", ".join(map(str, every))
        self._entry_folders = frozenset(entry_folders)
        super().__init__(every, files or OpenFiles(storage, _FILES_AT_ONCE), lister)

    def framing(self, segment: Segment) -> Framing:
        """Return how records follow one another in a file."""
        if self._entry_folders and segment.path.parent in self._entry_folders:
            return ENTRIES
        return RECORDS

    @property
    def entry_segments(self) -> list[Segment]:
        """The files that hold entries of a DLedger log, by offset."""
        if not self._entry_folders:
            return []
        return [segment for segment in self.segments if self.framing(segment) is ENTRIES]

    def written_end(self, segment: Segment) -> int:
        """Return the physical offset after the last byte of a file that is not zero."""
        return segment.start + self.file_of(segment).written_end(segment.size)

    def read(self, segment: Segment, position: int, size: int) -> Bytes:
        """Return bytes of a file from a position on, uint8 (size,); fewer only at its end.

        Raises:
            FileDeletedError: the file was deleted since it was listed.
            UnreadableFileError: it is longer than RocketMQ can make a file.
        """
        return self.file_of(segment).read(position, size)

    def read_in_place(
        self, segment: Segment, positions: Positions, sizes: NDArray[np.int64]
    ) -> Bytes:
        """Return an array as long as a file, uint8 (nbytes,), with some spans of it filled in.

        Positions in the array are positions in the file. A local storage gives its mapping; any
        other storage fetches the spans and nothing else.

        Args:
            segment: the file.
            positions: where the spans begin, (n,); those outside of the file hold nothing.
            sizes: bytes of the spans, (n,), cut off where the file ends.

        Raises:
            FileDeletedError: the file was deleted since it was listed.
            UnreadableFileError: it is longer than RocketMQ can make a file.
        """
        file = self.file_of(segment)
        starts = np.clip(positions, 0, file.size)
        return file.read_in_place(starts, np.clip(sizes, 0, file.size - starts))

    def read_into(self, segment: Segment, window: Bytes, position: int) -> Bytes:
        """Copy bytes of a file from a position on into ``window``; return the filled part."""
        return window[: self.file_of(segment).read_into(window, position)]

    def data_lengths(self, physical_offsets: Positions) -> Positions:
        """Return how many bytes between each two offsets are not holes of sparse files, (n - 1,).

        Args:
            physical_offsets: int64 (n,), rising.
        """
        bounds = [(0, 0)]
        for low, high, segment in self.segment_spans(
            int(physical_offsets[0]), int(physical_offsets[-1])
        ):
            if segment is None:
                continue
            base = segment.start
            if self.is_remote and segment.end < self.max_offset:
                bounds.append((low, high))  # it is full, and a storage with requests has no holes
                continue
            with suppress(FileDeletedError, UnreadableFileError):
                spans = self.file_of(segment).data_spans(low - base, high - base, is_appended=True)
                bounds += [(base + start, base + end) for start, end in islice(spans, _MAX_SPANS)]
        starts, ends = np.array(bounds, np.int64).T
        before = np.cumsum(ends - starts) - (ends - starts)
        rows = np.searchsorted(starts, physical_offsets, side="right") - 1
        within = np.minimum(physical_offsets, ends[rows]) - starts[rows]
        lengths: Positions = np.diff(before[rows] + within)
        return lengths

    def segment_spans(self, start: int, end: int) -> Iterator[SegmentSpan]:
        """Yield a range of the log file by file, with the gaps before and between them."""
        low = start
        segments = self.segments
        first = bisect_right(segments, start, key=attrgetter("end"))
        for segment in islice(segments, first, None):
            if low >= end:
                break
            if segment.start > low:
                yield SegmentSpan(low, min(segment.start, end), None)
                low = segment.start
            if low < min(end, segment.end):
                yield SegmentSpan(low, min(end, segment.end), segment)
                low = segment.end

    def locate(self, physical_offset: int) -> SegmentPosition:
        """Return where a physical offset lies.

        Raises:
            OffsetOutOfRangeError: no file covers it.
        """
        segment = self.find(physical_offset)
        if segment is None:
            raise OffsetOutOfRangeError(
                f"{self.folders}: no file holds physical offset {physical_offset}; "
                f"the log reaches from {self.min_offset} to {self.max_offset}"
            )
        return SegmentPosition(segment, physical_offset - segment.start)

    def record(self, located: SegmentPosition) -> Bytes:
        """Return the bytes of the record at a place, by the size in its head.

        If the size does not fit the file, these are all bytes up to the end of the file. If no
        record begins at the place, they are just enough for :mod:`rmqstore.format.record` to see.
        """
        total_size, magic = read_frame(self, located)
        if magic not in TOPIC_LENGTH_BYTES:
            return self.read(*located, MIN_RECORD_BYTES)
        n_left = max(self.file_of(located.segment).size - located.position, 0)
        is_size = MIN_RECORD_BYTES <= total_size <= n_left
        return self.read(*located, total_size if is_size else n_left)

    def parts(self, physical_offset: int) -> SplitRecord:
        """Return the parts of the record that begins at the offset; only lengths are checked.

        Raises:
            CorruptRecordError: no whole record begins there.
            OffsetOutOfRangeError: no file covers the offset.
        """
        located = self.locate(physical_offset)
        try:
            return split_record(self.record(located).data, 0)
        except MalformedBytesError as err:
            raise CorruptRecordError(
                str(located.segment.path), physical_offset, err.reason
            ) from err

    def store_timestamp(self, physical_offset: int) -> int:
        """Return when the record at the offset was stored, ms; only its head is read.

        Raises:
            CorruptRecordError: no record begins there, or its store time is not in the calendar.
            OffsetOutOfRangeError: no file covers the offset.
        """
        located = self.locate(physical_offset)
        stored_head = self.read(*located, MAX_FIXED_BYTES)
        if not stores_its_offset(stored_head, 0, physical_offset):
            reason = "no record begins here, though a queue says so"
            raise CorruptRecordError(str(located.segment.path), physical_offset, reason)
        stored = _named_time(stored_head)
        if not FIRST_TIMESTAMP <= stored <= LAST_TIMESTAMP:
            reason = time_reason(stored)
            raise CorruptRecordError(str(located.segment.path), physical_offset, reason)
        return stored

    def first_timestamp(self, segment: Segment) -> int:
        """Return the store time in the head of a file's first record, ms; 0 if there is no head.

        The rest of the record may be damaged.
        """
        stored_head = self.read(*first_record(self, segment), MAX_FIXED_BYTES)
        begins = bool(have_magic(stored_head, np.zeros(1, np.int64))[0])
        return _named_time(stored_head) if begins else 0

    def store_timestamps(self, physical_offsets: Positions) -> tuple[Positions, Mask]:
        """Return when the records at offsets (n,) were stored, ms, and which times are right.

        A time is right if :meth:`store_timestamp` gives it too, which says what is wrong with
        others.
        """
        headers = np.zeros((len(physical_offsets), MAX_FIXED_BYTES), np.uint8)
        for segment, members in self.rows_by_file(physical_offsets):
            with suppress(FileDeletedError, UnreadableFileError):
                file = self.file_of(segment)
                positions = physical_offsets[members] - segment.start
                last = min(segment.size, file.size) - MAX_FIXED_BYTES
                n_inside = int(np.searchsorted(positions, last, side="right"))
                inside = positions[:n_inside]
                file.prefetch(inside, MAX_FIXED_BYTES)
                stored = file.read_each(inside, MAX_FIXED_BYTES).view(np.uint8)
                headers[members[:n_inside]] = stored.reshape(n_inside, MAX_FIXED_BYTES)
                # A short record may begin closer to the end of the file.
                for position in np.unique(positions[n_inside:]).tolist():
                    if position < segment.size:
                        stored = file.read(position, MAX_FIXED_BYTES)
                        headers[members[positions == position], : len(stored)] = stored
        return _stored_times(headers, physical_offsets)

    def get(
        self, physical_offset: int, broker_name: str | None = None, *, with_body: bool = True
    ) -> Message:
        """Return the message whose record begins at the offset.

        Without ``with_body`` its body is neither checked nor inflated.

        Raises:
            MessageNotFoundError: no record begins there.
            CorruptRecordError: the record is damaged.
            OffsetOutOfRangeError: no file covers the offset.
        """
        located = self.locate(physical_offset)
        record = self.record(located)
        try:
            check_record(record.data, 0, physical_offset, check_crc=with_body)
            return decode_record(record.data, 0, broker_name, inflate=with_body)
        except MalformedBytesError as err:
            damage = CorruptRecordError(str(located.segment.path), physical_offset, err.reason)
            if stores_its_offset(record, 0, physical_offset):
                raise damage from err
            raise MessageNotFoundError(
                f"no message begins at physical offset {physical_offset} ({damage})"
            ) from err


def _named_time(stored_head: Bytes) -> int:
    """Return the store time that the head of a record names, ms."""
    (sys_flag,) = _SYS_FLAG.unpack_from(stored_head.data)
    stored: int = _TIME.unpack_from(stored_head.data, _TIME_POSITIONS[sys_flag & _HOSTS_V6])[0]
    return stored


def _stored_times(stored: Bytes, physical_offsets: Positions) -> tuple[Positions, Mask]:
    """Return the store times in headers (n, MAX_FIXED_BYTES), and which are right."""
    fixed = stored[:, : FIXED_PART_V4.itemsize].copy().view(FIXED_PART_V4).ravel()
    times = fixed["store_timestamp"].astype(np.int64)
    has_v6_born = (fixed["sys_flag"] & _BORN_HOST_V6) != 0  # the store host follows the time
    if has_v6_born.any():
        position = _TIME_POSITIONS[_BORN_HOST_V6]
        times_v6 = stored[:, position : position + 8].copy().view(">i8").ravel()
        times = np.where(has_v6_born, times_v6.astype(np.int64), times)
    is_right = are_magics(fixed["magic"])
    is_right &= fixed["physical_offset"] == physical_offsets
    is_right &= in_calendar(times)
    return times, is_right


def read_frame(log: CommitLog, located: SegmentPosition) -> tuple[int, int]:
    """Return the total size and the magic at a place; zeros too close to the file's end.

    Where an entry of a DLedger log begins, the magic comes first.
    """
    head = log.read(*located, FRAME_HEAD.itemsize)
    if len(head) < FRAME_HEAD.itemsize:
        return 0, 0
    total_size, magic = head.view(FRAME_HEAD)[0].tolist()
    return total_size, magic


def stored_start(file: StoredFile, named: int) -> int:
    """Return where a file of the log begins by its first two records, else by its name.

    Of most files the first record says what the name does, and nothing more is read.
    """
    n_bytes = FIXED_PART_V4.itemsize
    head = file.read(0, n_bytes)
    if len(head) < n_bytes:
        return named
    size, magic, start = head.view(FIXED_PART_V4)[_PLACE][0].tolist()
    if magic not in TOPIC_LENGTH_BYTES or start < 0 or name_to_offset(str(start)) is None:
        return named
    if start != named and n_bytes <= size <= file.size - n_bytes:
        following = file.read(size, n_bytes).view(FIXED_PART_V4)[_PLACE]
        _, magic, second = following[0].tolist()
        if magic in TOPIC_LENGTH_BYTES and second != start + size:
            return named
    return int(start)


def misnamed_segments(storage: Storage, folders: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Yield files of the log with the name of another place, and where they begin."""
    for path in chain.from_iterable(segment_files(storage, folder) for folder in folders):
        with storage.open(path) as file:
            start = stored_start(file, int(path.name))
        if start != int(path.name):
            yield path, start


def begins_record(log: CommitLog, physical_offset: int) -> bool:
    """Return whether a record, whole or not, begins at the offset and holds that offset."""
    if log.find(physical_offset) is None:
        return False
    stored_head = log.read(*log.locate(physical_offset), MAX_FIXED_BYTES)
    return stores_its_offset(stored_head, 0, physical_offset)
