"""Messages of the formats v0 and v1, as columns.

Those inside compressed messages are followed and their checksums compared one after the other; the
rest works on arrays.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.batch_headers import BatchHeaders, Data, Longs, follow, view_of
from kafkalog.format.layout import (
    LEAST_LENGTH,
    LEGACY_CRC_FROM,
    LEGACY_HEAD,
    LEGACY_TIMESTAMP_AT,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    Attribute,
    Codec,
)
from kafkalog.format.record_fields import Fields, Rows
from kafkalog.format.record_starts import BatchFaultError, Section
from kafkalog.format.reference import inside_of, parse_message, wrapped
from rmqstore.format.columns.buffers import windows

_LENGTH_BYTES = 4
_OFFSET_BYTES = 8
LEAST_MESSAGE_BYTES = LOG_OVERHEAD + LEAST_LENGTH


def _read(section: Section, starts: Longs, owners: Longs, shifts: Longs) -> Rows:
    """Return the records of a section of legacy messages.

    Args:
        starts: where those that are not compressed begin, (n,).
        owners: number of the batch of each.
        shifts: what is added to their offsets.

    Raises:
        BatchFaultError: a message contradicts the format.
    """
    data = section.data
    outer = section.headers
    headers = windows(data, LEGACY_HEAD.itemsize)[starts].view(LEGACY_HEAD)
    ends = starts + LOG_OVERHEAD + headers["length"]

    def refuse(invalid: NDArray[np.bool_], reason: str) -> None:
        if invalid.any():
            raise BatchFaultError(int(owners[int(invalid.argmax())]), reason)

    def spans(at: Longs) -> tuple[Longs, Longs]:
        """Return the positions and lengths of fields that follow their lengths."""
        begins = at + _LENGTH_BYTES
        refuse(begins > ends, "a message ends within a length")
        lengths = windows(data, _LENGTH_BYTES)[at].view(">i4").astype(np.int64)
        refuse(begins + np.maximum(lengths, 0) > ends, "a field does not fit into a message")
        return begins, lengths

    magic = headers["magic"]
    refuse((magic != 0) & (magic != 1), "its format is unknown")
    is_inner = (outer.codec != Codec.NONE)[owners]
    is_compressed = (headers["attributes"] & Attribute.CODEC) != 0
    refuse(is_inner & is_compressed, "a message inside a compressed one is compressed")
    own = np.full(len(starts), NO_TIMESTAMP, np.int64)
    rows = np.flatnonzero(magic == 1)
    own[rows] = windows(data, 8)[starts[rows] + LEGACY_TIMESTAMP_AT].view(">i8")
    times = np.where(outer.is_log_append_time[owners], outer.max_timestamp[owners], own)
    key_starts, key_lengths = spans(starts + LEGACY_TIMESTAMP_AT + np.where(magic == 1, 8, 0))
    value_starts, value_lengths = spans(key_starts + np.maximum(key_lengths, 0))
    left = ends - value_starts - np.maximum(value_lengths, 0)
    refuse(left != 0, "bytes follow the value of a message")
    zeros = np.zeros(len(starts), np.int64)
    return Rows(
        owners,
        headers["offset"].astype(np.int64) + shifts,
        np.where((outer.magic == 1)[owners], times, NO_TIMESTAMP),
        Fields(
            zeros, zeros, key_starts, key_lengths, value_starts, value_lengths, zeros, ends, ends
        ),
    )


def legacy_records(section: Section) -> Rows:
    """Return all records of a section.

    Raises:
        BatchFaultError: a message contradicts the format.
    """
    starts, owners = _starts(section)
    shifts = np.zeros(len(section.headers), np.int64)
    for row in _shifted(section.headers).tolist():
        last = starts[int(np.searchsorted(owners, row, side="right")) - 1]
        shifts[row] = _shift(section, row, int(last))
    return _read(section, starts, owners, shifts[owners])


def legacy_runs(section: Section, n_bytes: int) -> Iterator[Rows]:
    """Yield the records of a section of one compressed message, some at a time.

    Args:
        section: the message.
        n_bytes: of the messages inside that are read together; one may be larger.

    Raises:
        BatchFaultError: a message contradicts the format.
    """
    shift = 0
    if len(_shifted(section.headers)):
        *_, (last_run, _) = _inside(section, 0, n_bytes)
        shift = _shift(section, 0, last_run[-1])
    for run, end in _inside(section, 0, n_bytes):
        _check_crcs(section.data.data, [*run, end], 0)
        owners = np.zeros(len(run), np.int64)
        yield _read(section, np.array(run, np.int64), owners, owners + shift)


def with_real_end(data: Data, headers: BatchHeaders) -> BatchHeaders:
    """Return headers of which the first names its real last offset, if it is such a wrapper.

    Some versions of librdkafka give a compressed message of format v1 the offset 0, whatever it
    holds; then the messages inside have absolute offsets. Only the first message of a log can.

    Args:
        data: the data that was walked.
        headers: its headers.

    Source: AbstractLegacyRecordBatch.java#DeepRecordsIterator.
    """
    first = headers[:1]
    may_be = len(first) and first.magic[0] == 1 and first.codec[0] and not first.base_offset[0]
    if not may_be or not first.check_crcs(data)[0]:
        return headers
    start = int(first.position[0]) - headers.base_position
    stored = view_of(data)[start : start + int(first.size[0])]
    try:
        inside = memoryview(inside_of(parse_message(stored)))
    except ValueError:
        return headers  # who decodes it says what is wrong
    starts, _, _ = follow(inside, 0)
    if not starts:
        return headers
    last_offset = headers.last_offset.copy()
    last_offset[0] = max(
        int.from_bytes(inside[starts[-1] :][:_OFFSET_BYTES], "big", signed=True), 0
    )
    return replace(headers, last_offset=last_offset)


def most_records(section: Section) -> Longs:
    """Return the most records that each message of a section may have, (n,)."""
    is_compressed = section.headers.codec != Codec.NONE
    n_bytes = section.ends - section.starts
    return np.where(is_compressed, n_bytes // LEAST_MESSAGE_BYTES + 1, 1)


def _inside(section: Section, row: int, n_bytes: int) -> Iterator[tuple[list[int], int]]:
    """Yield the starts of messages inside a compressed one, some at a time, and their common end.

    Args:
        section: has the compressed message.
        row: its number in the section.
        n_bytes: of the messages that are yielded together; one may be larger.

    Raises:
        BatchFaultError: they do not fill it.
    """
    view = section.data.data
    at = int(section.starts[row])
    end = int(section.ends[row])
    taken = n_bytes
    while True:
        starts, stopped_at, reason = follow(view[: min(at + taken, end)], at)
        if starts:
            yield starts, stopped_at
            at, taken = stopped_at, n_bytes
            if at == end:
                return
        elif at + taken < end:
            taken *= 4
        else:
            raise BatchFaultError(row, f"inside of a compressed message: {reason or 'nothing'}")


def _shifted(headers: BatchHeaders) -> Longs:
    """Return the rows of compressed v1 messages, whose offset is that of the last one inside."""
    is_shifted = (headers.codec != Codec.NONE) & (headers.magic == 1) & (headers.base_offset != 0)
    return np.flatnonzero(is_shifted)


def _shift(section: Section, row: int, last: int) -> int:
    """Return what is added to the offsets inside a message, by where the last of them begins."""
    stored = section.data[last : last + _OFFSET_BYTES].tobytes()
    inner = int.from_bytes(stored, "big", signed=True)
    outer = int(section.headers.base_offset[row])
    if outer < inner:
        reason = "the offset of a compressed message is less than those inside"
        raise BatchFaultError(row, reason)
    return wrapped(outer - inner)


def _starts(section: Section) -> tuple[Longs, Longs]:
    """Return where messages begin, and the number of the batch of each."""
    codecs = section.headers.codec
    if not codecs.any():
        return section.starts, np.arange(len(section.headers))
    starts: list[int] = []
    counts: list[int] = []
    for row, codec in enumerate(codecs.tolist()):
        inside = [int(section.starts[row])]
        if codec != Codec.NONE:
            n_bytes = int(section.ends[row] - section.starts[row])
            ((inside, end),) = _inside(section, row, n_bytes)
            _check_crcs(section.data.data, [*inside, end], row)
        starts += inside
        counts.append(len(inside))
    return np.array(starts, np.int64), np.repeat(np.arange(len(codecs)), counts)


def _check_crcs(view: memoryview, bounds: list[int], owner: int) -> None:
    for start, end in pairwise(bounds):
        stored = int.from_bytes(view[start + 12 : start + LEGACY_CRC_FROM], "big")
        if zlib.crc32(view[start + LEGACY_CRC_FROM : end]) != stored:
            raise BatchFaultError(owner, "the CRC of a message inside a compressed one is wrong")
