"""The inflated bytes of batches, put together in pieces that columns are read from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.batch_heads import BatchHeads, Data, view_of
from kafkalog.format.compression import inflate
from kafkalog.format.layout import RECORDS_AT, Codec
from kafkalog.format.record_starts import SLACK
from kafkalog.format.reference import check_count, parse_message
from rmqstore.errors import MalformedBytesError

_PIECE_BYTES = 16 << 20


class Section(NamedTuple):
    """What some batches of one kind hold.

    Attributes:
        heads: the batches.
        data: their records, with SLACK bytes after the last one. Of legacy messages: themselves, or
            the messages inside if they are compressed.
        starts: where those of each batch begin, (n,).
        ends: where they end.
    """

    heads: BatchHeads
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def sections(data: Data, heads: BatchHeads) -> Iterator[Section]:
    """Yield all batches in order, those of format v2 and others in sections of their own.

    Args:
        data: the data that was walked.
        heads: some of its heads.

    Raises:
        MalformedBytesError: a batch does not inflate. The position is that in the segment.
    """
    changes = np.flatnonzero(np.diff(heads.is_v2)) + 1
    bounds = [0, *changes.tolist(), len(heads)]
    for begin, after in pairwise(bounds):
        first = begin
        while first < after:
            run = heads[first:after]
            ends = np.cumsum(run.size)
            taken = max(1, int(np.searchsorted(ends, _PIECE_BYTES, side="right")))
            run = run[:taken]
            section = _joined(data, run) if run.codec.any() else _in_place(data, run)
            yield section
            first += len(section.heads)


def _in_place(data: Data, heads: BatchHeads) -> Section:
    """Return batches that are not compressed, without a copy where it can be."""
    view = view_of(data)
    starts = heads.position - heads.base_position
    low, high = int(starts[0]), int((starts + heads.size).max())
    buffer = np.frombuffer(view[low : high + SLACK], np.uint8)
    if len(buffer) < high - low + SLACK:
        padded = np.zeros(high - low + SLACK, np.uint8)
        padded[: len(buffer)] = buffer
        buffer = padded
    starts = starts - low
    return Section(
        heads, buffer, starts + np.where(heads.is_v2, RECORDS_AT, 0), starts + heads.size
    )


def _joined(data: Data, heads: BatchHeads) -> Section:
    """Return as many batches as fill a piece; at least one."""
    view = view_of(data)
    parts: list[bytes | memoryview] = []
    total = 0
    for row in range(len(heads)):
        if total > _PIECE_BYTES:
            break
        start = int(heads.position[row]) - heads.base_position
        stored = view[start : start + int(heads.size[row])]
        try:
            parts.append(_content(stored, heads, row))
        except MalformedBytesError as err:
            raise MalformedBytesError(int(heads.position[row]), err.reason) from err
        except ValueError as err:
            raise MalformedBytesError(int(heads.position[row]), str(err)) from err
        total += len(parts[-1])
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = np.concatenate([[np.int64(0)], ends[:-1]])
    buffer = np.frombuffer(b"".join([*parts, bytes(SLACK)]), np.uint8)
    return Section(heads[: len(parts)], buffer, starts, ends)


def _content(stored: memoryview, heads: BatchHeads, row: int) -> bytes | memoryview:
    codec, magic = int(heads.codec[row]), int(heads.magic[row])
    if magic >= 2:
        count = int(heads.record_count[row])
        check_count(count)
        records = stored[RECORDS_AT:]
        if codec == Codec.NONE:
            return records
        return inflate(records, codec, magic) if count else b""
    if codec == Codec.NONE:
        return stored
    value = parse_message(stored).value
    if value is None:
        raise ValueError("a compressed message has no value")
    return inflate(memoryview(value), codec, magic)
