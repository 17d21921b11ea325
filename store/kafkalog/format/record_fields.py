"""The fields of many records, and of their headers, without a loop per record."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.batch_headers import Longs
from kafkalog.format.layout import LEAST_HEADER, LEAST_RECORD_BODY
from kafkalog.format.varints import (
    MOST_BYTES,
    WORD_BYTES,
    Words,
    decode_words,
    low_32_bits,
    read_varint,
    read_varlong,
    shift_out,
    short_numbers,
    word_view,
    word_view_16,
)
from rmqstore.errors import MalformedBytesError

CHUNK_ROWS = 4096  # whose arrays stay in the cache from one step to the next
_FEWEST_ROWS = 12  # fewer are faster one after the other
_EIGHT = np.uint64(8)


class RowFaultError(Exception):
    """A record contradicts the format. Fields: row (its number among those read), reason."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row = row
        self.reason = reason


class Fields(NamedTuple):
    """Fields of records, (n,) each. A length of -1 or less is null.

    Attributes:
        time_deltas: what is added to the base timestamp of the batch.
        offset_deltas: what is added to its base offset.
        key_starts: positions in the data.
        key_lengths: bytes.
        value_starts: positions in the data.
        value_lengths: bytes.
        header_counts: number of headers.
        header_starts: where the first one begins.
        ends: where the record ends.
    """

    time_deltas: Longs
    offset_deltas: Longs
    key_starts: Longs
    key_lengths: Longs
    value_starts: Longs
    value_lengths: Longs
    header_counts: Longs
    header_starts: Longs
    ends: Longs


class Rows(NamedTuple):
    """Records of some batches, (n,) each.

    Attributes:
        owners: numbers of their batches.
        offsets: absolute offsets.
        timestamps: ms; -1 if there is none.
        fields: keys, values and headers; legacy messages have no headers.
    """

    owners: Longs
    offsets: Longs
    timestamps: Longs
    fields: Fields

    def within(self, start_offset: int | None, end_offset: int | None) -> Rows:
        """Return the records whose offsets are in a range."""
        inside = np.ones(len(self.offsets), np.bool_)
        if start_offset is not None:
            inside &= self.offsets >= start_offset
        if end_offset is not None:
            inside &= self.offsets < end_offset
        if inside.all():
            return self
        chosen = np.flatnonzero(inside)
        owners, offsets, timestamps = (column[chosen] for column in self[:3])
        fields = Fields(*(column[chosen] for column in self.fields))
        return Rows(owners, offsets, timestamps, fields)


def read_fields(data: NDArray[np.uint8], bodies: Longs, ends: Longs) -> Fields:
    """Read the fields of records.

    What the headers hold is not read; only if there are none, it is known that the fields fill
    a record.

    Args:
        data: records, with SLACK bytes after the last one.
        bodies: where each record begins, after its length.
        ends: where it ends.

    Raises:
        RowFaultError: the fields do not fit into a record.
    """
    columns = [np.empty(len(bodies), np.int64) for _ in range(len(Fields._fields) - 1)]
    words = word_view(data)
    for first in range(0, len(bodies), CHUNK_ROWS):
        chunk = slice(first, first + CHUNK_ROWS)
        try:
            read = _chunk_fields(data, words, bodies[chunk], ends[chunk])
        except RowFaultError as err:
            raise RowFaultError(first + err.row, err.reason) from None
        for column, values in zip(columns, read, strict=True):
            column[chunk] = values
    columns.append(ends)
    return Fields(*columns)


def proved_fields(
    data: NDArray[np.uint8], begins: Longs, ends: Longs, counts: Longs
) -> Fields | None:
    """Read the fields of records at guessed positions, which proves or refutes the guess.

    Args:
        data: records, with SLACK bytes after the last one.
        begins: where each record begins, before its length, rising; the first of each batch surely.
        ends: where the records of each batch end, (n_batches,).
        counts: how many there are.

    Returns:
        The fields; None if a record does not end where the next one begins, or contradicts the
        format. :func:`read_fields` then says what is wrong.
    """
    has_records = counts > 0
    nexts = np.empty_like(begins)
    nexts[:-1] = begins[1:]
    nexts[np.cumsum(counts)[has_records] - 1] = ends[has_records]
    columns = [np.empty(len(begins), np.int64) for _ in range(len(Fields._fields) - 1)]
    words, pairs = word_view(data), word_view_16(data)
    for first in range(0, len(begins), CHUNK_ROWS):
        chunk = slice(first, first + CHUNK_ROWS)
        read = _short_fields(words, pairs, begins[chunk], nexts[chunk])
        if read is None:
            # Numbers of any width.
            numbers, widths = decode_words(words[begins[chunk]])
            lengths = low_32_bits(numbers)
            bodies = begins[chunk] + widths.view(np.int64)
            invalid = (lengths < LEAST_RECORD_BODY) | (widths > MOST_BYTES)
            invalid |= bodies + lengths != nexts[chunk]
            if invalid.any():
                return None
            try:
                read = _chunk_fields(data, words, bodies, nexts[chunk])
            except RowFaultError:
                return None
        for column, values in zip(columns, read, strict=True):
            column[chunk] = values
    columns.append(nexts)
    return Fields(*columns)


def _short_fields(
    words: Words, pairs: NDArray[np.uint16], begins: Longs, ends: Longs
) -> tuple[Longs, ...] | None:
    """Read fields whose numbers have two bytes at most; return None if one has more, or is wrong.

    The record's length, its attributes and both deltas are in one word then.
    """
    table = short_numbers()
    rest = words[begins]
    numbers: list[Longs] = []
    used = np.zeros(len(begins), np.int64)  # bits of the word
    for skipped in (8, 0, 0):  # the attributes follow the length
        entries = table.take(rest.astype(np.uint16))
        if not entries.all():
            return None
        n_bits = (entries & 0xFF) + skipped if skipped else entries & 0xFF
        rest = rest >> n_bits.view(np.uint64)
        used += n_bits
        numbers.append(entries >> 8)
        if skipped and (
            int(numbers[0].min()) < LEAST_RECORD_BODY
            or (begins + ((used >> 3) + numbers[0] - 1) != ends).any()
        ):
            return None
    positions = begins + (used >> 3)
    most_used = int(used.max())
    entries = table.take(rest.astype(np.uint16) if most_used <= 48 else pairs[positions])
    key_lengths, key_starts, positions = _span(entries, positions)
    if (positions >= ends).any() or not entries.all():
        return None
    entries = table.take(pairs[positions])
    value_lengths, value_starts, positions = _span(entries, positions)
    if (positions >= ends).any() or not entries.all():
        return None
    entries = table.take(pairs[positions])
    counts = entries >> 8
    positions = positions + ((entries & 0xFF) >> 3)
    left = ends - positions
    if int(counts.max()) or int(counts.min()) or int(left.max()) or int(left.min()):
        wrong = (counts < 0) | (counts * LEAST_HEADER > left) | ((counts == 0) & (left != 0))
        if wrong.any() or not entries.all():
            return None
    return (
        numbers[1], numbers[2], key_starts, key_lengths, value_starts, value_lengths, counts,
        positions,
    )  # fmt: skip


def _span(entries: Longs, positions: Longs) -> tuple[Longs, Longs, Longs]:
    """Return lengths, and the starts and ends of the bytes that follow them."""
    lengths = entries >> 8
    starts = positions + ((entries & 0xFF) >> 3)
    return lengths, starts, starts + np.maximum(lengths, 0)


def _chunk_fields(
    data: NDArray[np.uint8], words: Words, bodies: Longs, ends: Longs
) -> tuple[Longs, ...]:
    cursor = _Cursor(words, bodies, ends)
    time_deltas = cursor.time_deltas(data)
    offset_deltas = cursor.numbers()
    key_lengths = cursor.numbers()
    key_starts = cursor.positions
    cursor.skip(key_lengths)
    value_lengths = cursor.numbers()
    value_starts = cursor.positions
    cursor.skip(value_lengths)
    counts = cursor.numbers()
    left = ends - cursor.positions
    _refuse((counts < 0) | (counts * LEAST_HEADER > left), "the headers do not fit into a record")
    _refuse((counts == 0) & (left != 0), "bytes follow the fields of a record")
    return (
        time_deltas, offset_deltas, key_starts, key_lengths, value_starts, value_lengths, counts,
        cursor.positions,
    )  # fmt: skip


def _refuse(invalid: NDArray[np.bool_], reason: str) -> None:
    if invalid.any():
        raise RowFaultError(int(invalid.argmax()), reason)


class _Cursor:
    """Where each record is read on, (n,), and the rest of the word that was read there."""

    def __init__(self, words: Words, positions: Longs, ends: Longs) -> None:
        self.positions = positions
        self._words = words
        self._ends = ends
        self._rest = words[:0]
        self._n_used: Words | None = None  # bytes of the word that were shifted out; None: no word

    def time_deltas(self, data: NDArray[np.uint8]) -> Longs:
        """Read the attributes, which mean nothing, and numbers of up to 64 bits."""
        word = self._words[self.positions] >> _EIGHT
        deltas, n_bytes = decode_words(word)
        long = np.flatnonzero(n_bytes >= WORD_BYTES)  # the word had seven bytes
        for row in long.tolist():
            start = int(self.positions[row]) + 1
            try:
                delta, end = read_varlong(data[start : start + 10].tobytes(), 0)
            except MalformedBytesError as err:
                raise RowFaultError(row, err.reason) from err
            deltas[row], n_bytes[row] = delta, end
        self._rest = shift_out(word, np.minimum(n_bytes, np.uint64(7)))
        self._n_used = n_bytes + np.uint64(1)
        self.positions = self.positions + self._n_used.view(np.int64)
        return deltas

    def numbers(self) -> Longs:
        """Read numbers of 32 bits."""
        if self._n_used is None:
            n_used, numbers, n_bytes = self._read()
        else:
            numbers, n_bytes = decode_words(self._rest)
            n_used = self._n_used + n_bytes
            if int(n_used.max(initial=0)) > WORD_BYTES:
                n_used, numbers, n_bytes = self._read()
        self._rest = shift_out(self._rest, n_bytes)
        self._n_used = n_used
        self.positions = self.positions + n_bytes.view(np.int64)
        _refuse((self.positions > self._ends) | (n_bytes > MOST_BYTES), "a number is cut off")
        return low_32_bits(numbers)

    def _read(self) -> tuple[Words, Longs, Words]:
        self._rest = self._words[self.positions]
        numbers, n_bytes = decode_words(self._rest)
        return n_bytes, numbers, n_bytes

    def skip(self, lengths: Longs) -> None:
        """Step over bytes; a negative length is none."""
        self.positions = self.positions + np.maximum(lengths, 0)
        _refuse(self.positions > self._ends, "a field does not fit into a record")
        self._n_used = None


class Headers(NamedTuple):
    """Headers of records, in the order of the records: names and values, (n_headers,) each."""

    name_starts: Longs
    name_lengths: Longs
    value_starts: Longs
    value_lengths: Longs


def read_headers(data: NDArray[np.uint8], records: Fields) -> Headers:
    """Read where the names and values of all headers are.

    Args:
        data: records, with SLACK bytes after the last one.
        records: their fields.

    Raises:
        RowFaultError: the headers do not fill a record.
    """
    counts = records.header_counts
    total = int(counts.sum())
    columns = Headers(*(np.empty(total, np.int64) for _ in range(4)))
    firsts = np.cumsum(counts) - counts
    words = word_view(data)
    for first in range(0, len(counts), CHUNK_ROWS):
        rows = np.flatnonzero(counts[first : first + CHUNK_ROWS]) + first
        rows = rows[np.argsort(-counts[rows], kind="stable")]
        try:
            _chunk_headers(data, words, records, rows, firsts, columns)
        except RowFaultError as err:
            raise RowFaultError(int(rows[err.row]), err.reason) from None
    return columns


def _chunk_headers(
    data: NDArray[np.uint8],
    words: Words,
    records: Fields,
    rows: Longs,
    firsts: Longs,
    columns: Headers,
) -> None:
    """Read the headers of a chunk: the first of all records, the second of all, and so on.

    Args:
        records: the fields of all records.
        rows: the records of the chunk, those with the most headers first.
        firsts: the number of the first header of each record.
        columns: what is filled.
    """
    counts = records.header_counts[rows]
    positions, ends, targets = records.header_starts[rows], records.ends[rows], firsts[rows]
    number = 0
    active = len(rows)
    while active >= _FEWEST_ROWS:
        cursor = _Cursor(words, positions[:active], ends[:active])
        name_lengths = cursor.numbers()
        _refuse(name_lengths < 0, "a header has no name")
        chosen = targets[:active]
        columns.name_lengths[chosen] = name_lengths
        columns.name_starts[chosen] = cursor.positions
        cursor.skip(name_lengths)
        columns.value_lengths[chosen] = cursor.numbers()
        columns.value_starts[chosen] = cursor.positions
        cursor.skip(columns.value_lengths[chosen])
        positions[:active] = cursor.positions
        targets[:active] += 1
        number += 1
        active = int(np.searchsorted(-counts, -number))
    for row in range(active):
        n_left = int(counts[row]) - number
        start, end, target = int(positions[row]), int(ends[row]), int(targets[row])
        spans = header_spans(data[start:end].tobytes(), n_left, row)
        columns.name_starts[target : target + n_left] = spans[0] + start
        columns.name_lengths[target : target + n_left] = spans[1]
        columns.value_starts[target : target + n_left] = spans[2] + start
        columns.value_lengths[target : target + n_left] = spans[3]
        positions[row] = int(spans[2][-1] + max(int(spans[3][-1]), 0)) + start
    _refuse(positions != ends, "bytes follow the headers of a record")


def header_spans(data: bytes, count: int, row: int) -> Longs:
    """Read the headers of one record; return starts and lengths of names and values, (4, n).

    Raises:
        RowFaultError: the bytes end within them; ``row`` is its row.
    """
    spans = np.empty((4, count), np.int64)
    position = 0
    for number in range(count):
        for field in (0, 2):
            try:
                length, position = read_varint(data, position)
            except MalformedBytesError as err:
                raise RowFaultError(row, err.reason) from err
            if length < 0 and field == 0:
                raise RowFaultError(row, "a header has no name")
            spans[field, number], spans[field + 1, number] = position, length
            position += max(length, 0)
            if position > len(data):
                raise RowFaultError(row, "a field does not fit into a record")
    return spans
