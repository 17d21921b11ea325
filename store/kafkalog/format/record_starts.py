"""Where the records of many batches begin.

Records are a chain of lengths, so the chains of all batches are followed together, one record of
each batch a step. Large batches are cut at positions that look like the start of a record, so that
more chains can be followed at once. The chain from each position must end exactly at the next one,
which proves that all of them are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.batch_headers import BatchHeaders, Data, Longs, view_of
from kafkalog.format.compression import inflate
from kafkalog.format.layout import LEAST_RECORD, LEAST_RECORD_BODY, RECORDS_AT, Codec
from kafkalog.format.reference import inside_of, parse_message
from kafkalog.format.varints import (
    MOST_BYTES,
    decode_long,
    decode_words,
    low_32_bits,
    read_varint,
    short_numbers,
    word_view,
    word_view_16,
)
from rmqstore.errors import MalformedBytesError

_CHUNK_BYTES = 16 << 20

_FEWEST_CHAINS = 12  # fewer are faster one after the other
SLACK = 64  # bytes that must follow the last record, so that words can be read past its end

_ENOUGH_CHAINS = 256  # more gain little
_RECORDS_A_CHAIN = 24  # that large batches are cut into, at least
_RUN = 64  # records whose offsets in a batch take as many bytes
_MOST_RUNS = 64  # of a batch whose records are divided
_STEPS = 8  # that chains are followed before those that end are left out
_MOST_SEARCHED = 16_384  # bytes, for the start of one chain
_LONGEST_WIDTH = 3  # of the length of a record that a chain may begin with


class Section(NamedTuple):
    """What some batches of one kind hold.

    Attributes:
        headers: the batches.
        data: their records, with SLACK bytes after the last one. Of legacy messages: themselves, or
            the messages inside if they are compressed.
        starts: where those of each batch begin, (n,).
        ends: where they end.
    """

    headers: BatchHeaders
    data: NDArray[np.uint8]
    starts: Longs
    ends: Longs


def sections(data: Data, headers: BatchHeaders) -> Iterator[Section]:
    """Yield all batches in order, those of format v2 and others in sections of their own.

    Args:
        data: the data that was walked.
        headers: some of its headers.

    Raises:
        MalformedBytesError: a batch does not inflate. The position is that in the segment.
    """
    changes = np.flatnonzero(np.diff(headers.is_v2)) + 1
    bounds = [0, *changes.tolist(), len(headers)]
    for begin, after in pairwise(bounds):
        first = begin
        while first < after:
            run = headers[first:after]
            ends = np.cumsum(run.size)
            taken = max(1, int(np.searchsorted(ends, _CHUNK_BYTES, side="right")))
            run = run[:taken]
            section = _joined(data, run) if run.codec.any() else _in_place(data, run)
            yield section
            first += len(section.headers)


def _in_place(data: Data, headers: BatchHeaders) -> Section:
    """Return uncompressed batches, without a copy where possible."""
    view = view_of(data)
    starts = headers.position - headers.base_position
    low, high = int(starts[0]), int((starts + headers.size).max())
    buffer = np.frombuffer(view[low : high + SLACK], np.uint8)
    if len(buffer) < high - low + SLACK:
        padded = np.zeros(high - low + SLACK, np.uint8)
        padded[: len(buffer)] = buffer
        buffer = padded
    starts = starts - low
    return Section(
        headers, buffer, starts + np.where(headers.is_v2, RECORDS_AT, 0), starts + headers.size
    )


def _joined(data: Data, headers: BatchHeaders) -> Section:
    """Return as many batches as fill a chunk; at least one."""
    view = view_of(data)
    parts: list[bytes | memoryview] = []
    total = 0
    for row in range(len(headers)):
        if total > _CHUNK_BYTES:
            break
        start = int(headers.position[row]) - headers.base_position
        stored = view[start : start + int(headers.size[row])]
        try:
            parts.append(_content(stored, headers, row))
        except MalformedBytesError as err:
            raise MalformedBytesError(int(headers.position[row]), err.reason) from err
        except ValueError as err:
            raise MalformedBytesError(int(headers.position[row]), str(err)) from err
        total += len(parts[-1])
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = np.concatenate([[np.int64(0)], ends[:-1]])
    buffer = np.frombuffer(b"".join([*parts, bytes(SLACK)]), np.uint8)
    return Section(headers[: len(parts)], buffer, starts, ends)


def _content(stored: memoryview, headers: BatchHeaders, row: int) -> bytes | memoryview:
    codec, magic = int(headers.codec[row]), int(headers.magic[row])
    if codec == Codec.NONE:
        return stored[RECORDS_AT:] if magic >= 2 else stored
    if magic < 2:
        return inside_of(parse_message(stored))
    has_records = headers.record_count[row] > 0  # a negative number is refused later
    return inflate(stored[RECORDS_AT:], codec, magic) if has_records else b""


class BatchFaultError(Exception):
    """A batch contradicts the format. Fields: batch (its number among those read), reason."""

    def __init__(self, batch: int, reason: str) -> None:
        super().__init__(batch, reason)
        self.batch = batch
        self.reason = reason


def record_starts(
    data: NDArray[np.uint8], starts: Longs, ends: Longs, counts: Longs
) -> tuple[Longs, Longs]:
    """Return the starts, after their lengths, and the ends of all records' bodies.

    Args:
        data: records, with SLACK bytes after the last one.
        starts: where the records of each batch begin, (n_batches,).
        ends: where they end.
        counts: how many there are; none is negative.

    Returns:
        Two arrays (n_records,), in the order of the batches. Bodies have the least length at least.

    Raises:
        BatchFaultError: the records of a batch do not fill it exactly.
    """
    _refuse_too_many(starts, ends, counts)
    total = int(counts.sum())
    bodies, body_ends = np.empty(total, np.int64), np.empty(total, np.int64)
    order = np.argsort(-counts, kind="stable")
    cursors, limits = starts[order], ends[order]
    targets = (np.cumsum(counts) - counts)[order]
    rising = counts[order][::-1]
    n_steps = int(rising[-1]) if len(rising) else 0
    n_active = len(counts) - np.searchsorted(rising, np.arange(n_steps), side="right")
    words = word_view(data)
    step = 0
    for active in n_active.tolist():
        if active < _FEWEST_CHAINS:
            break
        positions = cursors[:active]
        numbers, widths = decode_words(words[positions])
        lengths = low_32_bits(numbers)
        begins = positions + widths.view(np.int64)
        nexts = begins + lengths
        invalid = (lengths < LEAST_RECORD_BODY) | (nexts > limits[:active])
        invalid |= widths > MOST_BYTES
        if invalid.any():
            chain = int(invalid.argmax())
            raise BatchFaultError(int(order[chain]), f"a record has {lengths[chain]} bytes")
        bodies[targets[:active]] = begins
        body_ends[targets[:active]] = nexts
        targets[:active] += 1
        cursors[:active] = nexts
        step += 1
    if step < n_steps:
        for chain in range(int(n_active[step])):
            batch = int(order[chain])
            n_left = int(counts[batch]) - step
            rows = slice(int(targets[chain]), int(targets[chain]) + n_left)
            start, end = int(cursors[chain]), int(limits[chain])
            followed = _follow(data[start:end].tobytes(), n_left, batch)
            bodies[rows] = followed[0] + start
            body_ends[rows] = followed[1] + start
            cursors[chain] = body_ends[rows.stop - 1]
    unfilled = np.flatnonzero(cursors != limits)
    if len(unfilled):
        chain = int(unfilled[0])
        n_bytes_left = int(limits[chain] - cursors[chain])
        raise BatchFaultError(int(order[chain]), f"{n_bytes_left} bytes follow the last record")
    return bodies, body_ends


def supposed_starts(
    data: NDArray[np.uint8], starts: Longs, ends: Longs, counts: Longs
) -> Longs | None:
    """Return where the records of batches seem to begin, before their lengths, rising.

    It takes a fraction of the time of :func:`record_starts`, as little is checked: batches of equal
    records are divided, and the chains of others are followed, the large ones cut. If each record
    ends where the next one begins, or its batch ends, then all positions are right.

    Args:
        data: as for :func:`record_starts`, and so are the others.

    Returns:
        (n_records,), the first of each batch at its start; None if it takes as long to prove
        anything, or if a batch contradicts the format.
    """
    too_many = counts * LEAST_RECORD > ends - starts
    is_wrong = too_many | ((counts == 0) & (starts != ends))
    if is_wrong.any() or (starts[1:] < ends[:-1]).any():
        return None
    is_even, begins = _divided(data, starts, ends, counts)
    if not is_even.all():
        odd = ~is_even
        own_starts, own_ends, own_counts = starts[odd], ends[odd], counts[odd]
        firsts, owners = _chains(data, own_starts, own_ends, own_counts)
        if len(firsts) < _FEWEST_CHAINS:
            return None
        is_last = np.append(owners[1:] != owners[:-1], True)
        limits = np.where(is_last, own_ends[owners], np.append(firsts[1:], 0))
        followed = _supposed(data, firsts, limits, int(own_counts.sum()))
        if followed is None:
            return None
        begins = np.sort(np.concatenate([begins, followed]))
    has_records = counts > 0
    of_batches = begins[(np.cumsum(counts) - counts)[has_records]]
    if np.array_equal(of_batches, starts[has_records]):
        return begins
    return None


def _divided(
    data: NDArray[np.uint8], starts: Longs, ends: Longs, counts: Longs
) -> tuple[NDArray[np.bool_], Longs]:
    """Return the batches whose records seem to have equal sizes, and the starts of these records.

    A size holds for 64 records: the next one has an offset that takes a byte more.
    """
    none = np.zeros(len(counts), np.bool_), np.empty(0, np.int64)
    n_runs = -(-int(counts.max(initial=0)) // _RUN)
    if n_runs > _MOST_RUNS or n_runs * _RUN * len(counts) > 4 * int(counts.sum()):
        return none
    words, strides = word_view_16(data), _strides()
    last = len(words) - 1
    sizes = strides.take(words[starts])
    following = strides.take(words[np.minimum(starts + sizes, last)])
    if 2 * np.count_nonzero(sizes == following) < len(counts):
        return none
    cursors = starts
    left = counts
    run_starts = np.empty((len(counts), n_runs), np.int64)
    run_sizes = np.empty((len(counts), n_runs), np.int64)
    for number in range(n_runs):
        if number:
            sizes = strides.take(words[np.minimum(cursors, last)])
        run_starts[:, number], run_sizes[:, number] = cursors, sizes
        cursors = cursors + sizes * np.clip(left, 0, _RUN)
        left = left - _RUN
    is_even: NDArray[np.bool_] = cursors == ends
    begins = run_starts[:, :, None] + run_sizes[:, :, None] * np.arange(_RUN)
    own_counts = np.where(is_even, counts, 0)
    chosen = np.arange(n_runs * _RUN) < own_counts[:, None]
    return is_even, begins.reshape(len(counts), n_runs * _RUN)[chosen]


def _supposed(data: NDArray[np.uint8], cursors: Longs, limits: Longs, total: int) -> Longs | None:
    """Follow chains up to their limits; return where records seem to begin, rising.

    Nothing is checked here, so that a step is a few passes over the chains.

    Args:
        cursors: where chains begin.
        limits: where they end.
        total: how many records there are; None is returned if there seem to be more or fewer.
    """
    words, strides = word_view_16(data), _strides()
    last = len(words) - 1
    found: list[Longs] = []
    n_found = 0
    while len(cursors) >= _FEWEST_CHAINS:
        steps = np.empty((_STEPS, len(cursors)), np.int64)
        for number in range(_STEPS):
            steps[number] = cursors
            cursors = np.minimum(cursors + strides.take(words[cursors]), last)
        is_inside = steps < limits
        stuck = np.flatnonzero(cursors == steps[-1])
        if len(stuck):
            is_inside[1:] &= steps[1:] != steps[:-1]
            # These lengths may have any width. A chain ends at its limit where no record is.
            positions, bounds = cursors[stuck], limits[stuck]
            inside = positions < bounds
            numbers, widths = decode_long(word_view(data)[np.where(inside, positions, 0)])
            lengths = low_32_bits(numbers)
            nexts = positions + widths.view(np.int64) + lengths
            is_record = inside & (lengths >= LEAST_RECORD_BODY) & (widths <= MOST_BYTES)
            cursors[stuck] = np.where(is_record, np.minimum(nexts, bounds), bounds)
        found.append(steps[is_inside])
        n_found += len(found[-1])
        if n_found > total:
            return None
        goes_on = cursors < limits
        if not goes_on.all():
            cursors, limits = cursors[goes_on], limits[goes_on]
    for cursor, limit in zip(cursors.tolist(), limits.tolist(), strict=True):
        begins = _follow_to(data[cursor:limit].tobytes())
        if begins is None:
            return None
        found.append(begins + cursor)
        n_found += len(begins)
    if n_found == total:
        return np.sort(np.concatenate(found))
    return None


@cache
def _strides() -> Longs:
    """Return the size of a record by the two bytes that it begins with; 0 if they do not say."""
    entries = short_numbers()
    lengths, widths = entries >> 8, (entries & 0xFF) >> 3
    return np.where(lengths < LEAST_RECORD_BODY, 0, lengths + widths)


def _chains(
    data: NDArray[np.uint8], starts: Longs, ends: Longs, counts: Longs
) -> tuple[Longs, Longs]:
    """Return where chains may begin, rising in each batch, and the batch of each.

    The first chain of a batch begins where the batch does; the others where a record seems to
    begin, by its length, its attributes, which are 0, and the two records that would follow it.
    """
    has_records = np.flatnonzero(counts)
    owners, firsts = has_records, starts[has_records]
    a_chain = max(int(counts.sum()) // _ENOUGH_CHAINS, _RECORDS_A_CHAIN)
    large = np.flatnonzero(counts >= 2 * a_chain)
    if not len(large):
        return firsts, owners
    sizes = (ends - starts)[large]
    searched = min(int(3 * sizes.sum() / counts[large].sum()) + 1, _MOST_SEARCHED)
    n_cuts = counts[large] // a_chain - 1
    batches = np.repeat(large, n_cuts)
    number = np.arange(len(batches)) - np.repeat(np.cumsum(n_cuts) - n_cuts, n_cuts) + 1
    positions = starts[batches] + number * np.repeat(sizes // (n_cuts + 1), n_cuts)
    fits = positions + searched <= len(data)
    batches, positions = batches[fits], positions[fits]
    if not len(positions):
        return firsts, owners
    windows = np.lib.stride_tricks.sliding_window_view(data, searched)[positions]
    windows[:, :_LONGEST_WIDTH] = 1
    row, column = np.nonzero(windows == 0)
    bodies = positions[row] + column  # a record's attributes, its first byte, may be there
    widths = 1 + (data[bodies - 2] >= 0x80) * (1 + (data[bodies - 3] >= 0x80))
    begins = bodies - widths
    limits = ends[batches[row]]
    seems_so = data[bodies - 1] < 0x80
    cursors = begins
    words = word_view(data)
    for _ in range(3):
        numbers, found = decode_words(words[cursors])
        lengths = low_32_bits(numbers)
        body = cursors + found.view(np.int64)
        nexts = body + lengths
        is_end = cursors == limits
        is_record = (lengths >= LEAST_RECORD_BODY) & (nexts <= limits) & (found <= MOST_BYTES)
        is_record &= data[np.minimum(body, len(data) - 1)] == 0
        seems_so &= is_record | is_end
        cursors = np.where(is_record & seems_so, nexts, limits)
    rows, taken = np.unique(row[seems_so], return_index=True)
    # Two windows may find the same record, and the end of a batch is the start of the next one.
    firsts, kept = np.unique(np.append(firsts, begins[seems_so][taken]), return_index=True)
    return firsts, np.append(owners, batches[rows])[kept]


def _refuse_too_many(starts: Longs, ends: Longs, counts: Longs) -> None:
    too_many = np.flatnonzero(counts * LEAST_RECORD > ends - starts)
    if len(too_many):
        batch = int(too_many[0])
        n_bytes = int(ends[batch] - starts[batch])
        raise BatchFaultError(batch, f"{counts[batch]} records do not fit into {n_bytes} bytes")


def record_runs(
    data: NDArray[np.uint8], starts: Longs, ends: Longs, counts: Longs, most: int
) -> Iterator[tuple[Longs, Longs]]:
    """Yield the records of one batch as :func:`record_starts`, some of them at a time.

    Args:
        data: as in :func:`record_starts`, as for the next three, which have one number each.
        starts: where the records begin.
        ends: where they end.
        counts: how many there are.
        most: how many records are yielded together.

    Raises:
        BatchFaultError: the records do not fill the batch exactly.
    """
    _refuse_too_many(starts, ends, counts)
    start, end, left = int(starts[0]), int(ends[0]), int(counts[0])
    content = data[start:end].tobytes()
    position = 0
    while left:
        begins, nexts = _follow(content, min(left, most), 0, position)
        yield begins + start, nexts + start
        position = int(nexts[-1])
        left -= len(begins)
    if position != len(content):
        raise BatchFaultError(0, f"{len(content) - position} bytes follow the last record")


def _follow(data: bytes, count: int, batch: int, position: int = 0) -> tuple[Longs, Longs]:
    """Follow one chain from a position on; return as :func:`record_starts`."""
    begins: list[int] = []
    nexts: list[int] = []
    n_bytes = len(data)
    try:
        for _ in range(count):
            first = data[position]
            if first < 0x80:
                raw, position = first, position + 1
                length = raw >> 1 if not raw & 1 else -1
            elif (second := data[position + 1]) < 0x80:
                raw, position = first & 0x7F | second << 7, position + 2
                length = raw >> 1 if not raw & 1 else -1
            else:
                length, position = read_varint(data, position)
            begins.append(position)
            position += length
            if length < LEAST_RECORD_BODY or position > n_bytes:
                raise BatchFaultError(batch, f"a record has {length} bytes")
            nexts.append(position)
    except IndexError as err:
        raise BatchFaultError(batch, "the data ends within a length") from err
    except MalformedBytesError as err:
        raise BatchFaultError(batch, err.reason) from err
    return np.array(begins, np.int64), np.array(nexts, np.int64)


def _follow_to(data: bytes) -> Longs | None:
    """Return the starts of records that fill all bytes; None if there are no such records."""
    begins: list[int] = []
    position = 0
    try:
        while position < len(data):
            begins.append(position)
            length, position = read_varint(data, position)
            if length < LEAST_RECORD_BODY:
                return None
            position += length
    except MalformedBytesError:
        return None
    return np.array(begins, np.int64)
