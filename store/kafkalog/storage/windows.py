"""Walks a segment from batch to batch, a window of its bytes at a time.

Windows are copied, never mapped: a broker shortens files, and reading the lost part of a mapping
would end this process.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_headers import BatchHeaders, walk_batches
from kafkalog.format.legacy_columns import with_real_end
from kafkalog.storage.segments import Segment
from rmqstore.storage.files.storage import Storage

_FIRST_BYTES: Final = 256 << 10
_MOST_BYTES: Final = 4 << 20
_GROWTH: Final = 4
_LARGEST: Final = 256 << 20  # bytes of a batch; a broker takes 1 MiB unless it is set otherwise
_LENGTH_END: Final = 12  # the batch's length ends here and counts what follows
_SMALLEST: Final = 26  # bytes of the smallest batch: a message of format v0 without key and value


class Stop(NamedTuple):
    """Where a walk through a segment ended before the end of the file.

    Attributes:
        position: in the file, of the first byte that belongs to no valid batch.
        reason: what is wrong there.
    """

    position: int
    reason: str


class Window(NamedTuple):
    """Whole batches that follow one another in a segment.

    Attributes:
        segment: the segment.
        data: bytes of the file, uint8 (nbytes,).
        start: position in the file of the first of these bytes.
        headers: the headers of the batches; their positions are positions in the file.
        stop: why the walk ended with this window; None if it continues, or if the file has ended.
    """

    segment: Segment
    data: NDArray[np.uint8]
    start: int
    headers: BatchHeaders
    stop: Stop | None = None

    @property
    def next_offset(self) -> int | None:
        """The offset after the last batch; None if there is no batch."""
        return int(self.headers.last_offset[-1]) + 1 if len(self.headers) else None

    @property
    def end_of_batches(self) -> int:
        """The position in the file after the last batch."""
        if not len(self.headers):
            return self.start
        return int(self.headers.position[-1] + self.headers.size[-1])

    def require_valid(self, headers: BatchHeaders) -> None:
        """Refuse batches of this window whose CRC is wrong.

        Raises:
            CorruptBatchError: there is one; it names the first.
        """
        valid = headers.check_crcs(self.data)
        if not valid.all():
            position = int(headers.position[int(valid.argmin())])
            raise self.error(position, "the CRC is wrong")

    def error(self, position: int, reason: str) -> CorruptBatchError:
        """Return the error that names the segment, for damage at a position in it."""
        return CorruptBatchError(self.segment.path, position, reason)


def walk_segment(
    storage: Storage, segment: Segment, position: int = 0, end: int | None = None
) -> Generator[Window]:
    """Yield the batches of a segment, at least one window, the last of which has the stop.

    Heads are checked as Kafka checks them when it reads: lengths, but no CRC.

    Args:
        storage: the storage to read from.
        segment: the segment.
        position: of a batch in the file.
        end: position at which the walk ends; the end of the file if it is None.

    Raises:
        FileNotFoundError: the segment was deleted.
        UnreadableFileError: the path is not a regular file.

    Source: FileLogInputStream.java#nextBatch.
    """
    with storage.open(segment.path) as file:
        limit = file.size if end is None else min(end, file.size)
        n_bytes = _FIRST_BYTES
        while True:
            data = np.empty(0, np.uint8)
            if position < limit:
                # Arrow keeps the memory of windows that are done with. numpy returns it to the
                # system, which takes a third as long as reading to clear it again.
                n_needed = min(n_bytes, limit - position)
                data = np.frombuffer(pa.allocate_buffer(n_needed), np.uint8)
                data = data[: file.read_into(data, position)]
            limit = min(limit, position + len(data)) if len(data) < n_bytes else limit
            headers = walk_batches(data, 0, position)
            if not position:
                headers = with_real_end(data, headers)
            window, needed = _window(segment, data, position, headers, limit)
            if needed is None:
                yield window
                return
            if len(headers):
                yield window
            position = window.start + needed.at
            n_bytes = max(min(n_bytes * _GROWTH, _MOST_BYTES), needed.n_bytes)


class _Next(NamedTuple):
    at: int  # position in the present window of the batch that the next one begins with
    n_bytes: int  # that the next window must have


def _window(
    segment: Segment, data: NDArray[np.uint8], start: int, headers: BatchHeaders, limit: int
) -> tuple[Window, _Next | None]:
    """Return a window, and what the next one must hold; None if the walk ends here."""
    window = Window(segment, data, start, headers)
    at = window.end_of_batches - start
    left = limit - start - at
    if left <= 0:
        return window, None
    claimed: int | None = None  # the size of the next batch, if the window has its length
    if at + _LENGTH_END <= len(data):
        length = data[at + 8 : at + _LENGTH_END].tobytes()
        claimed = _LENGTH_END + int.from_bytes(length, "big", signed=True)
    if claimed is not None and claimed > _LARGEST and claimed <= left:
        reason = f"a batch of {claimed} bytes; at most {_LARGEST} are read"
        return window._replace(stop=Stop(start + at, reason)), None
    is_cut = headers.reason is None or claimed is None or claimed > len(data) - at
    if is_cut and start + len(data) < limit and (claimed or 0) <= left:
        return window, _Next(at, claimed or _SMALLEST)
    reason = headers.reason or "the file ends within a batch"
    if is_cut and claimed is not None:
        reason = f"the file has {left} bytes left of a batch of {claimed}"
    return window._replace(stop=Stop(start + at, reason)), None


def lowest_offsets(headers: BatchHeaders) -> NDArray[np.int64]:
    """Return a lower bound of the offsets in each batch, int64 (n,).

    The header of a compressed batch of format v0 or v1 names its last offset only.
    """
    lowest = headers.base_offset.astype(np.int64)
    unknown = (headers.magic < 2) & (headers.codec != 0)
    if unknown.any():
        after_previous = np.concatenate([[0], headers.last_offset[:-1] + 1])
        lowest[unknown] = np.minimum(lowest, after_previous)[unknown]
    return lowest
