"""Records of Kafka as messages of RocketMQ, and back.

A property is text that is not empty, and RocketMQ keeps some names for itself. What a message has
no place for stands in one more property, :data:`NOTE`, as a JSON object whose members say what the
record has: ``key`` (base64), ``value`` and ``timestamp`` (null), and ``headers`` (all of them, in
order, each a name and base64 or null).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import cache, partial
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.format.batch_headers import Longs, Mask
from kafkalog.format.layout import HEADER, RECORD
from rmqstore.errors import IllegalRowError
from rmqstore.format.columns.buffers import (
    array_bytes,
    booleans,
    in_calendar,
    mask_of,
    numbers,
    texts,
)
from rmqstore.format.schema import RESERVED_PROPERTIES, WRITE_TYPES

NOTE: Final = "KAFKA_RECORD"
# Names with a meaning for brokers besides those that RocketMQ refuses to producers.
_MEANINGFUL: Final = (
    "__SHARDINGKEY", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "TRACE_CONTEXT",
    "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID", "__LITE_TOPIC", "__PRIORITY", "__STARTDELIVERTIME",
)  # fmt: skip
_SEPARATORS: Final = (1, 2)  # of properties and of their names and values
_MESSAGE: Final = ("topic", "queueId", "body", "keys", "properties", "bornTimestamp")
MESSAGES: Final = pa.schema([pa.field(name, WRITE_TYPES[name]) for name in _MESSAGE])
RECORDS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        *(RECORD.field(name) for name in ("key", "value", "timestamp", "headers")),
    ]
)
_LISTS: Final = RECORD.field("headers").type
_NO_VALUE, _NO_TIMESTAMP = 1, 2  # flags, by which notes without a key and headers are looked up


def as_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records as messages that a store can append, in the same order.

    Args:
        batch: the columns topic, partition, key, value, timestamp and headers, others being left
            out, as ``LogDirs.scan`` or Spark's Kafka source give them.

    Returns:
        The columns of :data:`MESSAGES`.

    Raises:
        IllegalRowError: a timestamp is not in the years 1 to 9999, as where a producer of before
            Kafka 3.6 set microseconds.
    """
    keys = batch.column("key").cast(pa.binary())
    values = batch.column("value").cast(pa.binary())
    times = batch.column("timestamp")
    if times.type.unit == "ms":
        millis = times.view(pa.int64()).fill_null(0).to_numpy()
        outside = np.flatnonzero(~in_calendar(millis))
        if len(outside):
            row = int(outside[0])
            text = f"timestamp {millis[row]} ms is not in the years 1 to 9999"
            raise IllegalRowError(row + 1, text)
    times = times.cast(WRITE_TYPES["bornTimestamp"])
    is_none = pc.equal(times.view(pa.int64()), -1000)  # -1 ms stands for no timestamp
    times = pc.if_else(is_none, pa.scalar(None, times.type), times)
    headers = _Headers(batch.column("headers"))
    key_fits = _fits(keys)
    is_odd = mask_of(keys.is_valid()) & ~key_fits
    flags = np.where(mask_of(values.is_null()), _NO_VALUE, 0)
    flags |= np.where(mask_of(times.is_null()), _NO_TIMESTAMP, 0)
    noted = np.flatnonzero(is_odd | headers.is_odd | (flags > 0))
    plain_note = cache(partial(_note, None, None))
    notes = []
    for row in noted.tolist():
        if is_odd[row] or headers.is_odd[row]:
            key = keys[row] if is_odd[row] else None
            notes.append(_note(key, headers.of_odd(row), int(flags[row])))
        else:
            notes.append(plain_note(int(flags[row])))
    arrays = [
        batch.column("topic").cast(pa.string()),
        batch.column("partition").cast(pa.int32()),
        values.fill_null(b"") if values.null_count else values,
        pc.if_else(booleans(key_fits), keys, pa.scalar(None, pa.binary())).cast(pa.string()),
        headers.properties(noted, pa.array(notes, pa.string())),
        times,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages as records, the inverse of :func:`as_messages`.

    Args:
        batch: the columns topic, queueId, body, keys, properties and bornTimestamp, others being
            left out, as a store is read. A message that was never a record of Kafka is one as well:
            its properties but RocketMQ's own are the headers.

    Returns:
        The columns of :data:`RECORDS`.
    """
    properties = batch.column("properties")
    bounds = properties.offsets.to_numpy()
    within = slice(int(bounds[0]), int(bounds[-1]))
    names, values = properties.keys[within], properties.items[within]
    rows = np.repeat(np.arange(batch.num_rows), np.diff(bounds))
    is_note = mask_of(pc.equal(names, NOTE))
    is_header = ~mask_of(pc.is_in(names, value_set=_reserved()))
    offsets = np.concatenate(([0], np.cumsum(is_header)))[bounds - bounds[0]]
    chosen = booleans(is_header)
    pairs = [names.filter(chosen), values.filter(chosen).cast(pa.binary())]
    structs = pa.StructArray.from_arrays(pairs, fields=list(HEADER))
    columns = {
        "topic": batch.column("topic"),
        "partition": batch.column("queueId"),
        "key": batch.column("keys").cast(pa.binary()),
        "value": batch.column("body").cast(pa.binary()),
        "timestamp": batch.column("bornTimestamp").cast(RECORD.field("timestamp").type, safe=False),
        "headers": pa.ListArray.from_arrays(
            numbers(offsets.astype(np.int32)), structs, type=_LISTS
        ),
    }
    noted = map(orjson.loads, values.filter(booleans(is_note)).to_pylist())
    notes = dict(zip(rows[is_note].tolist(), noted, strict=True))
    for name in ("key", "value", "timestamp", "headers"):
        noted_values = {
            row: _decoded(name, note[name]) for row, note in notes.items() if name in note
        }
        if noted_values:
            others = pa.array(list(noted_values.values()), columns[name].type)
            order = np.arange(len(columns[name]))
            order[list(noted_values)] = len(order) + np.arange(len(noted_values))
            columns[name] = pa.concat_arrays([columns[name], others]).take(numbers(order))
    arrays = [columns[name] for name in RECORDS.names]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


class _Headers:
    """The headers of the records of a batch, in one row after the other."""

    def __init__(self, lists: pa.ListArray) -> None:
        entries = lists.flatten()
        self._names: pa.StringArray = entries.field(0).cast(pa.string())
        self._values: pa.BinaryArray = entries.field(1).cast(pa.binary())
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        self._bounds: Longs = np.concatenate(([0], np.cumsum(lengths)))
        self._rows = np.repeat(np.arange(len(lists)), lengths)
        # The headers that can be a property as they are, the last one of each name.
        is_property = _fits(self._values)
        if len(is_property):
            coded = pc.dictionary_encode(self._names)
            distinct = coded.dictionary
            usable = _fits(distinct.cast(pa.binary()))
            usable &= ~mask_of(pc.is_in(distinct, value_set=_reserved()))
            codes = coded.indices.fill_null(0).to_numpy()
            is_property &= usable[codes]
            if self._names.null_count:
                is_property &= mask_of(self._names.is_valid())
            numbers_of = self._rows * len(distinct) + codes  # of row and name
            if (np.diff(numbers_of) <= 0).any():  # a name may be repeated
                _, from_the_end = np.unique(numbers_of[::-1], return_index=True)
                is_last = np.zeros(len(numbers_of), np.bool_)
                is_last[len(numbers_of) - 1 - from_the_end] = True
                is_property &= is_last
        self.is_odd: Mask = np.zeros(len(lists), np.bool_)
        self.is_odd[self._rows[~is_property]] = True
        self._is_property = is_property

    def of_odd(self, row: int) -> list[tuple[str | None, bytes | None]] | None:
        """Return the headers of a row if a property cannot hold one of them."""
        if not self.is_odd[row]:
            return None
        within = slice(int(self._bounds[row]), int(self._bounds[row + 1]))
        names, values = self._names[within], self._values[within]
        return list(zip(names.to_pylist(), values.to_pylist(), strict=True))

    def properties(self, noted: Longs, notes: pa.StringArray) -> pa.MapArray:
        """Return properties, and notes after them in the rows that have one."""
        names, rows = self._names, self._rows
        values = self._values
        if not self._is_property.all():
            kept = booleans(self._is_property)
            names, values, rows = names.filter(kept), values.filter(kept), rows[self._is_property]
        values = values.cast(pa.string())
        if len(noted):
            order = numbers(np.argsort(np.concatenate((rows, noted)), kind="stable"))
            rows = np.concatenate((rows, noted))
            names = pa.concat_arrays([names, texts([NOTE] * len(noted))]).take(order)
            values = pa.concat_arrays([values, notes]).take(order)
            rows = np.sort(rows)
        bounds = np.searchsorted(rows, np.arange(len(self._bounds))).astype(np.int32)
        return pa.MapArray.from_arrays(numbers(bounds), names, values)


def _fits(values: pa.BinaryArray) -> Mask:
    """Return a mask (n,) of the values that a property can hold as text."""
    fits: Mask = mask_of(values.is_valid())
    data, bounds = array_bytes(values)
    fits &= np.diff(bounds) > 0
    data = data[: int(bounds[-1])]
    separators = (data == _SEPARATORS[0]) | (data == _SEPARATORS[1])
    if separators.any():
        fits &= ~_with_any(separators, bounds)
    is_high = data >= 0x80
    if is_high.any():
        for row in np.flatnonzero(fits & _with_any(is_high, bounds)).tolist():
            try:
                data[int(bounds[row]) : int(bounds[row + 1])].tobytes().decode()
            except UnicodeDecodeError:
                fits[row] = False
    return fits


def _with_any(marked: Mask, bounds: Longs) -> Mask:
    """Return which spans of bytes have a marked one, (n,)."""
    counts = np.concatenate(([0], np.cumsum(marked)))
    return counts[bounds[1:]] > counts[bounds[:-1]]


@cache
def _reserved() -> pa.Array:
    return texts([*RESERVED_PROPERTIES, *_MEANINGFUL, NOTE])


def _note(
    key: pa.BinaryScalar | None, headers: list[tuple[str | None, bytes | None]] | None, flags: int
) -> str:
    """Return the note of a record, with what its message has no place for."""
    note: dict[str, Any] = {}
    if key is not None:
        note["key"] = _encoded(key.as_py())
    if flags & _NO_VALUE:
        note["value"] = None
    if flags & _NO_TIMESTAMP:
        note["timestamp"] = None
    if headers is not None:
        note["headers"] = [(name, _encoded(value)) for name, value in headers]
    return orjson.dumps(note).decode()


def _encoded(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _decoded(member: str, said: Any) -> Any:  # noqa: ANN401 - a member of a note
    """Return what a member of a note says, as a value of its column."""
    if said is None:
        return None
    if member == "headers":
        return [{"key": name, "value": _decoded("value", value)} for name, value in said]
    return b64decode(said)
