"""Properties as columns to property strings; ``columns.property_decode`` is the inverse.

Maps that all have the same names in the same order, as one producer sends them, become parts of
the record as they are. Other maps become strings first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.buffers import (
    Part,
    are_filled,
    array_bytes,
    as_binary,
    booleans,
    bounded,
    join,
    lengths_of,
    mask_of,
    numbers,
    texts,
)
from rmqstore.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, Mask, Positions

_EQUALS, _STOP = bytes([NAME_VALUE_SEPARATOR]), bytes([PROPERTY_SEPARATOR])
_MAX_REGULAR = 32  # names; each costs a column


_SEPARATED = "the name or value of a property holds 0x01 or 0x02, the separators of properties"


class IllegalPropertyError(IllegalMessageError):
    """A property cannot be stored, or would be lost.

    Attributes:
        row: the first message with such a property.
        reason: what is wrong with it.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


class PropertyStrings(NamedTuple):
    """The property strings of n messages, in parts; see ``buffers.join``."""

    parts: tuple[Part, ...]
    lengths: NDArray[np.int64]  # (n,), of the strings

    @classmethod
    def stored(cls, strings: pa.BinaryArray) -> PropertyStrings:
        """Return property strings that are there already, binary (n,)."""
        return cls((strings,), lengths_of(strings))

    def extended(self, strings: pa.BinaryArray) -> PropertyStrings:
        """Return the strings with others after them, binary (n,)."""
        return PropertyStrings((*self.parts, strings), self.lengths + lengths_of(strings))

    def take(self, rows: slice) -> PropertyStrings:
        """Return consecutive rows."""
        parts = (part if isinstance(part, bytes) else part[rows] for part in self.parts)
        return PropertyStrings(tuple(parts), self.lengths[rows])

    def joined(self) -> pa.BinaryArray:
        """Return the strings, binary (n,)."""
        return join(self.parts, len(self.lengths))


@dataclass(frozen=True, slots=True)
class RegularMaps:
    """The properties of n maps that all have the same names in the same order, none of it empty."""

    names: list[str]  # distinct ones
    values: pa.StringArray  # of all names, map by map
    columns: dict[str, int]  # the names that count, and the ordinal of each in its map

    def __len__(self) -> int:
        return len(self.values) // len(self.names)

    def mentions(self, text: str) -> bool:
        """Return whether the name of a property may hold a text; if False, none does."""
        return any(text in name for name in self.columns)

    def without(self, names: Collection[str]) -> RegularMaps:
        """Return the maps without some properties."""
        kept = {name: column for name, column in self.columns.items() if name not in names}
        return replace(self, columns=kept)

    def column(self, name: str) -> pa.StringArray | None:
        """Return one property, string (n,); None if no map has it."""
        if name not in self.columns:
            return None
        n, width = len(self), len(self.names)
        positions = np.arange(self.columns[name], n * width, width, dtype=np.int32)
        return self.values.take(numbers(positions))


@dataclass(frozen=True, slots=True)
class IrregularMaps:
    """The m properties of n maps, map by map, none of them with an empty name or value."""

    names: pa.StringArray  # (m,)
    values: pa.StringArray  # (m,)
    rows: Positions  # (m,), the map of each property, never falling
    n_maps: int

    def __len__(self) -> int:
        return self.n_maps

    def mentions(self, text: str) -> bool:
        """Return whether the name of a property may hold a text; if False, none does."""
        data, bounds = array_bytes(self.names)
        return text.encode() in data[int(bounds[0]) : int(bounds[-1])].tobytes()

    def without(self, names: Collection[str]) -> IrregularMaps:
        """Return the maps without some properties."""
        is_kept = ~mask_of(pc.is_in(self.names, value_set=texts([*names])))
        kept = booleans(is_kept)
        return IrregularMaps(
            self.names.filter(kept), self.values.filter(kept), self.rows[is_kept], self.n_maps
        )

    def column(self, name: str) -> pa.StringArray | None:
        """Return one property, string (n,), null where a map lacks it; None if no map has it."""
        matches = np.flatnonzero(mask_of(pc.equal(self.names, texts([name])[0])))
        if not len(matches):
            return None
        entry_of_map = np.full(self.n_maps, -1, np.int64)
        entry_of_map[self.rows[matches]] = matches
        return self.values.take(numbers(entry_of_map, entry_of_map >= 0))


PropertyMaps = RegularMaps | IrregularMaps


def property_maps(properties: pa.MapArray | None, n: int) -> PropertyMaps:
    """Return the properties of n maps, map<string, string>.

    Raises:
        IllegalPropertyError: a property has no name or no value. Readers drop such a property, and
            clients refuse it. Or a map has a name twice.

    Source: Message.java#putUserProperty, MessageDecoder.java#string2messageProperties.
    """
    if properties is None or not n:
        no_texts = pa.nulls(0, pa.string())
        return IrregularMaps(no_texts, no_texts, np.empty(0, np.int64), n)
    bounds = np.frombuffer(properties.buffers()[1], np.int32)
    bounds = bounds[properties.offset : properties.offset + n + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    entries = properties.values  # unlike keys and items, with the offset of the entries
    names, values = entries.field(0)[first:last], entries.field(1)[first:last]
    counts = np.diff(bounds)
    has_value = are_filled(values)
    if has_value.all() and not properties.null_count:
        regular = _regular(names, values, counts)
        if regular is not None:
            return regular
    rows = np.repeat(np.arange(n), counts)
    if properties.null_count:  # a map that is null may hide properties
        is_kept = mask_of(properties.is_valid())[rows]
        kept = booleans(is_kept)
        names, values = names.filter(kept), values.filter(kept)
        rows, has_value = rows[is_kept], has_value[is_kept]
    has_name = lengths_of(names) > 0
    faulty = np.flatnonzero(~(has_name & has_value))
    if len(faulty):
        entry = int(faulty[0])
        reason = "a property has no name"
        if has_name[entry]:
            name = as_binary(names)[entry].as_py().decode(errors="replace")
            reason = f"the value of property {name!r} is null or empty"
        raise IllegalPropertyError(
            int(rows[entry]), f"{reason}; RocketMQ drops such a property, and its client refuses it"
        )
    coded = as_binary(names).dictionary_encode()
    keys = np.sort(rows * len(coded.dictionary) + coded.indices.to_numpy(), kind="stable")
    repeated = np.flatnonzero(keys[1:] == keys[:-1])
    if len(repeated):
        row, code = divmod(int(keys[repeated[0]]), len(coded.dictionary))
        name = coded.dictionary[code].as_py().decode(errors="replace")
        raise IllegalPropertyError(row, f"property {name!r} is there twice; readers take the last")
    return IrregularMaps(names, values, rows, n)


def _regular(
    names: pa.StringArray, values: pa.StringArray, counts: NDArray[np.int32]
) -> RegularMaps | None:
    """Return maps that have the same names in the same order, otherwise None."""
    n, width = len(counts), int(counts[0])
    if not 0 < width <= _MAX_REGULAR or (counts != width).any():
        return None
    data, offsets = array_bytes(names)
    name_bytes = int(offsets[width] - offsets[0])
    if int(offsets[-1] - offsets[0]) != n * name_bytes:
        return None
    lengths = np.diff(offsets).reshape(n, width)
    rows = data[int(offsets[0]) : int(offsets[-1])].reshape(n, name_bytes)
    if (lengths != lengths[0]).any() or (rows != rows[0]).any():
        return None
    try:
        first = names[:width].to_pylist()
    except UnicodeDecodeError:
        return None
    columns = {name: column for column, name in enumerate(first)}
    return RegularMaps(first, values, columns) if len(columns) == width and all(first) else None


def property_strings(
    maps: PropertyMaps, overrides: Mapping[str, pa.StringArray]
) -> PropertyStrings:
    """Return property strings: the properties of the maps in their order, then those of columns.

    Each string ends with a separator, as RocketMQ writes it from 5.2 on.

    Args:
        maps: the properties of n messages.
        overrides: the values of further properties by name, string (n,); a message has none where
            the value is null or empty.

    Raises:
        IllegalPropertyError: a name or value holds one of the two separators.

    Source: MessageDecoder.java#messageProperties2String.
    """
    parts: list[Part] = []
    lengths = np.zeros(len(maps), np.int64)
    if isinstance(maps, RegularMaps):
        for name in maps.columns:
            _add(parts, lengths, name, maps.column(name))
    elif len(maps.rows):
        for texts_of_maps in (maps.names, maps.values):
            _require_no_separator(texts_of_maps, maps.rows)
        stored = join(
            [as_binary(maps.names), _EQUALS, as_binary(maps.values), _STOP], len(maps.names)
        )
        data, ends = array_bytes(stored)
        bounds = ends[np.searchsorted(maps.rows, np.arange(len(maps) + 1))].astype(np.int32)
        strings = bounded(pa.binary(), bounds, data)
        parts.append(strings)
        lengths += lengths_of(strings)
    for name, column in overrides.items():
        is_filled = are_filled(column)
        if is_filled.all():
            _add(parts, lengths, name, column)
        elif is_filled.any():
            strings = _partial(name, column, is_filled)
            parts.append(strings)
            lengths += lengths_of(strings)
    return PropertyStrings(tuple(parts), lengths)


def one_property(name: str, values: pa.StringArray) -> pa.BinaryArray:
    """Return one property as a string for each message, empty where the value is, binary (n,)."""
    return _partial(name, values, lengths_of(values) > 0)


def _add(parts: list[Part], lengths: NDArray[np.int64], name: str, values: pa.StringArray) -> None:
    """Add a property that every message has."""
    head = _head(name)
    _require_no_separator(values)
    lengths += lengths_of(values) + (len(head) + len(_STOP))
    parts += [head, as_binary(values), _STOP]


def _head(name: str) -> bytes:
    stored = name.encode()
    if _EQUALS in stored or _STOP in stored:
        raise IllegalPropertyError(0, _SEPARATED)
    return stored + _EQUALS


def _partial(name: str, values: pa.StringArray, is_filled: Mask) -> pa.BinaryArray:
    """Return one property as a string for each message, empty for messages that lack it."""
    rows = np.flatnonzero(is_filled)
    filled = values.take(numbers(rows))
    _require_no_separator(filled, rows)
    data, ends = array_bytes(join([_head(name), as_binary(filled), _STOP], len(rows)))
    bounds = ends[np.concatenate(([0], np.cumsum(is_filled)))].astype(np.int32)
    return bounded(pa.binary(), bounds, data)


def _require_no_separator(values: pa.Array, rows: Positions | None = None) -> None:
    """Refuse texts that hold a separator.

    Args:
        values: (m,).
        rows: (m,), the message of each value; None if the values are those of messages 0, 1, ….

    Raises:
        IllegalPropertyError: one does.
    """
    data, bounds = array_bytes(values)
    used = data[int(bounds[0]) : int(bounds[-1])]
    if not len(used) or used.min() > PROPERTY_SEPARATOR:
        return
    matches = np.flatnonzero((used == NAME_VALUE_SEPARATOR) | (used == PROPERTY_SEPARATOR))
    if len(matches):
        value = int(np.searchsorted(bounds, matches[0] + bounds[0], side="right")) - 1
        raise IllegalPropertyError(value if rows is None else int(rows[value]), _SEPARATED)
