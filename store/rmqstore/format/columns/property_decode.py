"""The property strings of many records as columns; the plain form is ``properties.parse_properties``.

Two parsers give the same entries. The *template* parser serves records with the same names in the
same order, as one producer sends them: it only looks for the end of each value, and compares names
in place. The *general* parser serves all other records.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import (
    array_bytes,
    booleans,
    find_byte,
    gather_spans,
    numbers,
    valid_text,
    windows,
)
from rmqstore.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, Bytes, Mask, Positions
from rmqstore.format.utf8 import decode_text

_EQUALS, _STOP = bytes([NAME_VALUE_SEPARATOR]), bytes([PROPERTY_SEPARATOR])
# names in a bit set: a record has at most 2^14 properties, so a sum of its bits fits an int64
_CODE_BITS = 48


class Entries(NamedTuple):
    """The m properties of n records that RocketMQ's parser keeps, record by record, in stored order."""

    data: Bytes  # the property strings of all records, one after the other
    offsets: Positions  # (n + 1,) where each record's entries begin among the m
    value_starts: Positions  # (m,) in data
    value_lengths: Positions  # (m,)
    names: list[str]  # distinct names
    # (m,) index in names; None if every record has exactly these names in this order
    codes: NDArray[np.int32] | None
    rows: Positions | None  # (m,) the record of each entry; None if codes is None
    spelled: pa.Array | None  # the names, string (m,), if they had to be gathered anyway


def parse_entries(buf: Bytes, starts: Positions, lengths: Positions) -> Entries:
    """Find the properties of records whose property strings are the given spans of ``buf``.

    Source: MessageDecoder.java#string2messageProperties.
    """
    data, ends = array_bytes(gather_spans(buf, starts, lengths, pa.binary()))
    stops = find_byte(data, PROPERTY_SEPARATOR)
    open_ends = _open_ends(data, ends)
    if len(open_ends):
        # Brokers 4.9.1 to 5.1.4 leave out the last separator: the last property ends where the
        # string ends.
        before = np.searchsorted(stops, open_ends)
        stops = np.insert(stops, before, open_ends)
    begins = np.empty_like(stops)
    begins[:1] = 0
    begins[1:] = stops[:-1] + 1
    if len(open_ends):
        after = before + np.arange(1, len(before) + 1)
        begins[after[after < len(begins)]] -= 1
    return _parse_by_template(data, ends, begins, stops) or _parse_generally(
        data, ends, begins, stops
    )


def _open_ends(data: Bytes, ends: Positions) -> Positions:
    """Return the ends of the strings that are not empty and do not end with a separator."""
    bounds = ends[1:]
    filled = bounds[bounds > ends[:-1]]
    is_open: Mask = data[filled - 1] != PROPERTY_SEPARATOR
    return filled[is_open]


def _parse_by_template(
    data: Bytes, ends: Positions, begins: Positions, stops: Positions
) -> Entries | None:
    """Parse records that all have the names of the first one, in its order; return None if they have not."""
    n = len(ends) - 1
    first = data[: ends[1]].tobytes().removesuffix(_STOP).split(_STOP) if n and ends[1] else []
    heads = [entry.partition(_EQUALS)[0] + _EQUALS for entry in first]
    width = len(heads)
    if not width or len(stops) != n * width or len(set(heads)) < width or _EQUALS in heads:
        return None
    begins, stops = begins.reshape(n, width), stops.reshape(n, width)
    if (begins[:, 0] != ends[:-1]).any():
        return None
    value_starts = begins + np.array([len(head) for head in heads])
    value_lengths = stops - value_starts
    if (value_lengths <= 0).any():
        return None
    for column, head in enumerate(heads):
        if windows(data, len(head))[begins[:, column]].tobytes() != head * n:
            return None
    names = [decode_text(head[:-1]) for head in heads]
    if len(set(names)) < width:
        return None
    offsets = np.arange(0, n * width + 1, width)
    return Entries(
        data, offsets, value_starts.ravel(), value_lengths.ravel(), names, None, None, None
    )


def _parse_generally(data: Bytes, ends: Positions, begins: Positions, stops: Positions) -> Entries:
    """Parse any records: each property is split at its first 0x01, and dropped if its name or value is empty."""
    splits = find_byte(data, NAME_VALUE_SEPARATOR)
    if len(splits) != len(stops) or (splits < begins).any() or (splits > stops).any():
        splits = np.append(splits, len(data))[np.searchsorted(splits, begins)]
    offsets = np.searchsorted(begins, ends)
    rows = np.repeat(np.arange(len(ends) - 1), np.diff(offsets))
    is_entry = (splits > begins) & (splits < stops - 1)
    if not is_entry.all():
        offsets = np.concatenate(([0], np.cumsum(is_entry)))[offsets]
        begins, splits, stops, rows = (
            begins[is_entry],
            splits[is_entry],
            stops[is_entry],
            rows[is_entry],
        )
    spelled = valid_text(gather_spans(data, begins, splits - begins, pa.string()))
    encoded = spelled.dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    entries = Entries(data, offsets, splits + 1, stops - splits - 1, names, codes, rows, spelled)
    repeated = _repeated(entries)
    return entries if repeated is None else _without(entries, repeated)


def _repeated(entries: Entries) -> Mask | None:
    """Return a mask (m,) of the entries that a later one of the same record and name replaces, or None."""
    codes, offsets = entries.codes, entries.offsets
    assert codes is not None
    filled = offsets[:-1][offsets[1:] > offsets[:-1]]
    if not len(filled):
        return None
    if len(entries.names) <= _CODE_BITS:
        bits = np.left_shift(np.int64(1), codes.astype(np.int64))
        if (np.add.reduceat(bits, filled) == np.bitwise_or.reduceat(bits, filled)).all():
            return None
    assert entries.rows is not None
    keys = entries.rows * len(entries.names) + codes
    order = np.argsort(keys, kind="stable")
    repeated = np.zeros(len(codes), np.bool_)
    repeated[order[:-1]] = keys[order[:-1]] == keys[order[1:]]
    return repeated if repeated.any() else None


def _without(entries: Entries, dropped: Mask) -> Entries:
    left = ~dropped
    assert entries.codes is not None
    assert entries.rows is not None
    assert entries.spelled is not None
    return entries._replace(
        offsets=np.concatenate(([0], np.cumsum(left)))[entries.offsets],
        value_starts=entries.value_starts[left],
        value_lengths=entries.value_lengths[left],
        codes=entries.codes[left],
        rows=entries.rows[left],
        spelled=entries.spelled.filter(booleans(left)),
    )


def property_map(entries: Entries) -> pa.MapArray:
    """Return all properties, map<string, string> (n,)."""
    values = valid_text(
        gather_spans(entries.data, entries.value_starts, entries.value_lengths, pa.string())
    )
    names = (
        _repeat(entries.names, len(entries.offsets) - 1)
        if entries.spelled is None
        else entries.spelled
    )
    offsets = numbers(entries.offsets.astype(np.int32))
    return pa.MapArray.from_arrays(offsets, names, values)


def _repeat(names: list[str], times: int) -> pa.Array:
    """Return the list of names repeated, string (times * len(names),), by copying bytes only."""
    texts = [name.encode() for name in names]
    lengths = np.cumsum([0] + [len(text) for text in texts], dtype=np.int32)
    rows = np.arange(times, dtype=np.int32)[:, None] * lengths[-1]
    offsets = np.append((rows + lengths[None, :-1]).ravel(), np.int32(times) * lengths[-1])
    data = pa.py_buffer(b"".join(texts) * times)
    return pa.Array.from_buffers(
        pa.string(), times * len(names), [None, pa.py_buffer(offsets), data]
    )


def property_column(entries: Entries, name: str) -> pa.Array:
    """Return one property, string (n,), null where a record lacks it."""
    n = len(entries.offsets) - 1
    if name not in entries.names:
        return pa.nulls(n, pa.string())
    code = entries.names.index(name)
    if entries.codes is None:
        column = slice(code, None, len(entries.names))
        return valid_text(
            gather_spans(
                entries.data,
                entries.value_starts[column],
                entries.value_lengths[column],
                pa.string(),
            )
        )
    assert entries.rows is not None
    numbers = np.flatnonzero(entries.codes == code)
    starts, lengths = np.zeros(n, np.int64), np.zeros(n, np.int64)
    starts[entries.rows[numbers]] = entries.value_starts[numbers]
    lengths[entries.rows[numbers]] = entries.value_lengths[numbers]
    values = gather_spans(entries.data, starts, lengths, pa.string())
    if len(numbers) < n:  # a value is never empty, so length 0 means that there is no value
        valid = pa.py_buffer(np.packbits(lengths > 0, bitorder="little"))
        values = pa.Array.from_buffers(pa.string(), n, [valid, *values.buffers()[1:]])
    return valid_text(values)
