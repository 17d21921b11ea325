"""Properties as columns to property strings; ``property_decode`` is the inverse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.columns.buffers import array_bytes
from rmqstore.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, Positions


class PropertyEntries(NamedTuple):
    """The m properties of n messages, message by message."""

    rows: Positions  # (m,) the message of each property, never falling
    names: pa.StringArray  # (m,)
    values: pa.StringArray  # (m,)


def one_property(properties: pa.MapArray | None, name: str, n: int) -> pa.StringArray:
    """Return one property, string (n,), null where a message lacks it.

    If a message has several of the name, the last one counts.
    """
    if properties is None:
        return pa.nulls(n, pa.string())
    return pc.map_lookup(properties, pa.scalar(name), "last").cast(pa.string())


def property_entries(
    properties: pa.MapArray | None, overrides: Mapping[str, pa.StringArray], n: int
) -> PropertyEntries:
    """Return the properties of the map in its order, then those that columns set.

    Properties with an empty name or value are left out.

    Args:
        properties: map (n,).
        overrides: by name the values that replace those of the map, string (n,); null removes the
            property.
        n: number of messages.
    """
    rows, names, values = _map_entries(properties, overrides, n)
    for name, column in overrides.items():
        with_value = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        rows.append(with_value)
        names.append(pa.repeat(pa.scalar(name), len(with_value)))
        values.append(column.drop_null())
    if not rows:
        no_texts = pa.array([], pa.string())
        return PropertyEntries(np.empty(0, np.int64), no_texts, no_texts)
    all_rows = np.concatenate(rows)
    all_names = pa.concat_arrays(names)
    all_values = pa.concat_arrays(values)
    has_value = pc.binary_length(all_values).to_numpy() > 0
    has_name = pc.binary_length(all_names).to_numpy() > 0
    filled = np.flatnonzero(has_value & has_name)
    order = filled[np.argsort(all_rows[filled], kind="stable")]
    indices = pa.array(order)
    return PropertyEntries(all_rows[order], all_names.take(indices), all_values.take(indices))


def _map_entries(
    properties: pa.MapArray | None, overrides: Mapping[str, pa.StringArray], n: int
) -> tuple[list[Positions], list[pa.StringArray], list[pa.StringArray]]:
    """Return rows, names and values of the map's entries that no column overrides."""
    if properties is None:
        return [], [], []
    pair = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())])
    lists = properties.cast(pa.list_(pair))
    entries = pc.list_flatten(lists)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    rows = np.repeat(np.arange(n), counts)
    names, values = entries.field("key"), entries.field("value")
    is_overridden = pc.is_in(names, value_set=pa.array(list(overrides), pa.string()))
    mask = pc.and_not(values.is_valid(), is_overridden)
    return [rows[mask.to_numpy(zero_copy_only=False)]], [names.filter(mask)], [values.filter(mask)]


def find_control_bytes(entries: PropertyEntries) -> int | None:
    """Return the first message whose properties hold one of the two separators, or None."""
    rows = []
    for column in (entries.names, entries.values):
        data, bounds = array_bytes(column)
        used = data[int(bounds[0]) : int(bounds[-1])]
        matches = np.flatnonzero((used == NAME_VALUE_SEPARATOR) | (used == PROPERTY_SEPARATOR))
        if len(matches):
            first = int(matches[0]) + int(bounds[0])
            entry = int(np.searchsorted(bounds, first, side="right")) - 1
            rows.append(int(entries.rows[entry]))
    return min(rows, default=None)


def property_strings(entries: PropertyEntries, n: int) -> pa.BinaryArray:
    """Return the property strings, binary (n,), each with a last separator.

    RocketMQ writes this separator from 5.2 on.

    Source: MessageDecoder.java#messageProperties2String.
    """
    equals = pa.scalar(bytes([NAME_VALUE_SEPARATOR]), pa.binary())
    stop = pa.scalar(bytes([PROPERTY_SEPARATOR]), pa.binary())
    between = pa.scalar(b"", pa.binary())
    names = entries.names.cast(pa.binary())
    values = entries.values.cast(pa.binary())
    stored = pc.binary_join_element_wise(names, equals, values, stop, between)
    data, ends = array_bytes(stored)
    bounds = ends[np.searchsorted(entries.rows, np.arange(n + 1))].astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
