"""The property strings of many records as columns; no loop per record. The plain form is ``properties.parse_properties``.

Two ways lead to the same entries. The *template* way serves records that all carry the same names in the same order,
as one producer's do: it looks for the end of each value only, and compares names in place. The *general* way serves
everything else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.format.gather import array_bytes, gather_spans
from rmqstore.format.heads import windows
from rmqstore.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, Bytes, Mask, Positions
from rmqstore.format.schema import PROPERTIES
from rmqstore.format.text import valid_text

_EQUALS = bytes([NAME_VALUE_SEPARATOR])
_CODE_BITS = 62  # names that a row's int64 bit set can hold


class Entries(NamedTuple):
    """The properties of n records that survive RocketMQ's parser: m in all, record by record, in stored order."""

    data: Bytes  # the property strings of all records, one behind the other
    offsets: Positions  # (n + 1,) where each record's entries begin among the m
    value_starts: Positions  # (m,) in data
    value_lengths: Positions  # (m,)
    names: list[str]  # the distinct names
    codes: NDArray[np.int32] | None  # (m,) in names; None: every record has just these names in this order


def parse_entries(buf: Bytes, starts: Positions, lengths: Positions) -> Entries:
    """Find the properties of the records whose property strings are these spans of ``buf``.

    Source: MessageDecoder.java#string2messageProperties.
    """
    data, ends = array_bytes(gather_spans(buf, starts, lengths, pa.binary()))
    data, ends = _close(data, ends)
    stops = np.flatnonzero(data == PROPERTY_SEPARATOR)
    return _parse_by_template(data, ends, stops) or _parse_generally(data, ends, stops)


def _close(data: Bytes, ends: Positions) -> tuple[Bytes, Positions]:
    """Give every string that is not empty its last separator, which brokers 4.9.1 to 5.1.4 leave out."""
    bounds = ends[1:]
    is_open = bounds > ends[:-1]
    is_open[is_open] = data[bounds[is_open] - 1] != PROPERTY_SEPARATOR
    if not is_open.any():
        return data, ends
    closed = np.insert(data, bounds[is_open], PROPERTY_SEPARATOR)
    return closed, np.concatenate((ends[:1], bounds + np.cumsum(is_open)))


def _parse_by_template(data: Bytes, ends: Positions, stops: Positions) -> Entries | None:
    """Parse records that repeat the names of the first one; None where they do not."""
    n = len(ends) - 1
    first = data[: ends[1]].tobytes() if n else b""
    heads = [piece.partition(_EQUALS)[0] + _EQUALS for piece in first.split(bytes([PROPERTY_SEPARATOR]))[:-1]]
    width = len(heads)
    if not width or len(stops) != n * width or len(set(heads)) < width or _EQUALS in heads:
        return None
    stops = stops.reshape(n, width)
    if (stops[:, -1] + 1 != ends[1:]).any():
        return None
    begins = np.empty_like(stops)
    begins[:, 0] = ends[:-1]
    begins[:, 1:] = stops[:, :-1] + 1
    value_starts = begins + np.array([len(head) for head in heads])
    value_lengths = stops - value_starts
    if (value_lengths <= 0).any():
        return None
    for column, head in enumerate(heads):
        if windows(data, len(head))[begins[:, column]].tobytes() != head * n:
            return None
    names = [head[:-1].decode(errors="replace") for head in heads]
    if len(set(names)) < width:
        return None
    return Entries(data, np.arange(0, n * width + 1, width), value_starts.ravel(), value_lengths.ravel(), names, None)


def _parse_generally(data: Bytes, ends: Positions, stops: Positions) -> Entries:
    """Parse any records: each piece ends at a 0x02 and is cut at its first 0x01, if that leaves a name and a value."""
    begins = np.empty_like(stops)
    begins[:1] = 0
    begins[1:] = stops[:-1] + 1
    splits = np.flatnonzero(data == NAME_VALUE_SEPARATOR)
    if len(splits) != len(stops) or (splits < begins).any() or (splits > stops).any():
        nearest = np.searchsorted(splits, begins)
        splits = np.append(splits, len(data))[nearest]
    kept = (splits > begins) & (splits < stops - 1)
    offsets = np.searchsorted(stops, ends)
    if not kept.all():
        offsets = np.concatenate(([0], np.cumsum(kept)))[offsets]
        begins, splits, stops = begins[kept], splits[kept], stops[kept]
    encoded = gather_spans(data, begins, splits - begins, pa.binary()).dictionary_encode()
    names, codes = _as_text(encoded)
    entries = Entries(data, offsets, splits + 1, stops - splits - 1, names, codes)
    repeated = _repeated(entries)
    return entries if repeated is None else _without(entries, repeated)


def _as_text(encoded: pa.DictionaryArray) -> tuple[list[str], NDArray[np.int32]]:
    """Return distinct names and codes as text; names that differ only in broken bytes become one."""
    places: dict[str, int] = {}
    texts = [name.decode(errors="replace") for name in encoded.dictionary.to_pylist()]
    remap = np.array([places.setdefault(text, len(places)) for text in texts], np.int32)
    return list(places), remap[encoded.indices.to_numpy()] if len(texts) else np.empty(0, np.int32)


def _repeated(entries: Entries) -> Mask | None:
    """Return a mask (m,) of the entries that a later one of the same name and record replaces; None if there are none."""
    codes, offsets = entries.codes, entries.offsets
    assert codes is not None
    filled = offsets[:-1][offsets[1:] > offsets[:-1]]
    if not len(filled):
        return None
    if len(entries.names) <= _CODE_BITS:
        bits = np.left_shift(np.int64(1), codes.astype(np.int64))
        if (np.add.reduceat(bits, filled) == np.bitwise_or.reduceat(bits, filled)).all():
            return None
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    keys = rows * len(entries.names) + codes
    order = np.argsort(keys, kind="stable")
    repeated = np.zeros(len(codes), np.bool_)
    repeated[order[:-1]] = keys[order[:-1]] == keys[order[1:]]
    return repeated if repeated.any() else None


def _without(entries: Entries, dropped: Mask) -> Entries:
    kept = ~dropped
    assert entries.codes is not None
    return entries._replace(
        offsets=np.concatenate(([0], np.cumsum(kept)))[entries.offsets],
        value_starts=entries.value_starts[kept],
        value_lengths=entries.value_lengths[kept],
        codes=entries.codes[kept],
    )


def property_map(entries: Entries) -> pa.MapArray:
    """Return all properties, map<string, string> (n,)."""
    values = valid_text(gather_spans(entries.data, entries.value_starts, entries.value_lengths, pa.string()))
    names = _repeat(entries.names, len(entries.offsets) - 1) if entries.codes is None else _spell(entries)
    offsets = pa.array(entries.offsets.astype(np.int32))
    return pa.MapArray.from_arrays(offsets, names, values).cast(PROPERTIES)


def _repeat(names: list[str], times: int) -> pa.Array:
    """Return the names over and over, string (times * len(names),), by copying bytes only."""
    texts = [name.encode() for name in names]
    lengths = np.cumsum([0] + [len(text) for text in texts], dtype=np.int32)
    rows = np.arange(times, dtype=np.int32)[:, None] * lengths[-1]
    offsets = np.append((rows + lengths[None, :-1]).ravel(), np.int32(times) * lengths[-1])
    data = pa.py_buffer(b"".join(texts) * times)
    return pa.Array.from_buffers(pa.string(), times * len(names), [None, pa.py_buffer(offsets), data])


def _spell(entries: Entries) -> pa.Array:
    return pa.array(entries.names, pa.string()).take(pa.array(entries.codes))


def property_column(entries: Entries, name: str) -> pa.Array:
    """Return one property, string (n,), null where a record has none."""
    n = len(entries.offsets) - 1
    if name not in entries.names:
        return pa.nulls(n, pa.string())
    code = entries.names.index(name)
    if entries.codes is None:
        found = slice(code, None, len(entries.names))
        return valid_text(
            gather_spans(entries.data, entries.value_starts[found], entries.value_lengths[found], pa.string())
        )
    at = np.flatnonzero(entries.codes == code)
    values = valid_text(gather_spans(entries.data, entries.value_starts[at], entries.value_lengths[at], pa.string()))
    if len(at) == n:
        return values
    rows = np.searchsorted(entries.offsets, at, side="right") - 1
    places = np.full(n, -1, np.int64)
    places[rows] = np.arange(len(at))
    return values.take(pa.array(places, mask=places < 0))
