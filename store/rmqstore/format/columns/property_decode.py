"""The property strings of many records as columns.

The plain form is ``text.parse_properties``.

Two parsers give the same entries. The *template* parser serves records with the same names in the
same order, as one producer sends them: it only looks for the end of each value, and compares names
in place. The *general* parser serves all other records.

A message that a group fails to consume is stored again, with its body, its born time and its
properties: the unique key is the same in all copies. There are four kinds of topics for copies:

==================== ================================================================
``%RETRY%g``         retries of group ``g`` of any topic
``%RETRY%g_t``       retries of group ``g`` that consumes topic ``t`` by POP; since both names may
                     have underscores, the name alone does not say where it is to be split
``%RETRY%g+t``       the same with ``enableRetryTopicV2``
``%DLQ%g``           dead letters of group ``g``, after the last attempt
==================== ================================================================

A copy in ``%RETRY%g`` or ``%DLQ%g`` has property RETRY_TOPIC, the topic of the first message that
was sent back, and ORIGIN_MESSAGE_ID, the id of that message: its offset message id if the broker
made the copy, its unique key if the client sent it. A retry of POP has neither, but 1ST_POP_TIME.
A dead letter of POP has the topic and the id of a retry. While a retry waits for its delay, it lies
in the topic of delayed messages, and REAL_TOPIC is where it is to be delivered.

The field ``reconsumeTimes`` of a copy is the number of attempts that have failed.

Source: AbstractSendMessageProcessor.java#consumerSendMsgBack,
SendMessageProcessor.java#handleRetryAndDLQ, PopReviveService.java#reviveRetry, KeyBuilder.java,
DefaultMQPushConsumerImpl.java#sendMessageBackAsNormalMessage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import (
    array_bytes,
    bits,
    booleans,
    bounded,
    codes_of,
    find_byte,
    gather_spans,
    numbers,
    valid_text,
    windows,
)
from rmqstore.format.layout import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SEPARATOR,
    SCHEDULE_TOPIC,
    Bytes,
    Mask,
    Positions,
)
from rmqstore.format.text import decode_text
from rmqstore.format.topics import DLQ_PREFIX, RETRY_PREFIX, TIMER_TOPIC

PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
# These two are set by servers that are not open source; RocketMQ's proxy prefers them.
PROPERTY_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

ORIGIN_TOPIC_PROPERTIES: Final = (PROPERTY_DLQ_ORIGIN_TOPIC, PROPERTY_RETRY_TOPIC)
ORIGIN_ID_PROPERTIES: Final = (PROPERTY_DLQ_ORIGIN_MESSAGE_ID, PROPERTY_ORIGIN_MESSAGE_ID)

_POP_SEPARATOR, _POP_SEPARATOR_V2 = "_", "+"

_EQUALS, _STOP = bytes([NAME_VALUE_SEPARATOR]), bytes([PROPERTY_SEPARATOR])
# Names in a bit set. A record has at most 2^14 properties, so a sum of its bits fits an int64.
_CODE_BITS = 48


class Origin(NamedTuple):
    """Where a retried or dead message comes from.

    Attributes:
        is_dead: whether the copy is a dead letter; otherwise it is a retry.
        is_waiting: whether the copy is a retry that waits for its delay.
        group: the consumer group that failed to consume the message.
        topic: the topic that the message was sent to; None if nothing names it.
        message_id: the offset message id or the unique key of the message that was sent back first;
            None if the copy does not have it, as for retries of POP.
    """

    is_dead: bool
    is_waiting: bool
    group: str
    topic: str | None
    message_id: str | None


class KnownNames(NamedTuple):
    """The names by which ``%RETRY%g_t`` is split; more of them are better, but none is needed.

    Attributes:
        groups: names of consumer groups.
        topics: names of topics.
    """

    groups: Collection[str] = frozenset()
    topics: Collection[str] = frozenset()


NO_NAMES: Final = KnownNames()


def is_copy_topic(topic: str) -> bool:
    """Return whether a topic holds retries or dead letters."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def may_hold_copies(topic: str, group: str) -> bool:
    """Return whether a topic may have retries or dead letters of a group; the messages decide."""
    names = (f"{RETRY_PREFIX}{group}", f"{DLQ_PREFIX}{group}")
    return topic in names or topic.startswith(
        (f"{names[0]}{_POP_SEPARATOR}", f"{names[0]}{_POP_SEPARATOR_V2}")
    )


def origin_of(
    topic: str, properties: Mapping[str, str], known: KnownNames = NO_NAMES
) -> Origin | None:
    """Return where a message comes from, if it is a retry or a dead letter.

    Args:
        topic: the topic of the message.
        properties: its properties.
        known: names of groups and topics, for retries of POP.

    Returns:
        None for every other message.
    """
    is_waiting = topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
    if is_waiting:
        topic = properties.get(PROPERTY_REAL_TOPIC, "")
    if not is_copy_topic(topic):
        return None
    noted = first_property(properties, ORIGIN_TOPIC_PROPERTIES)
    group, named = group_and_topic(topic, has_origin=noted is not None, known=known)
    return Origin(
        is_dead=topic.startswith(DLQ_PREFIX),
        is_waiting=is_waiting,
        group=group,
        topic=named if noted is None else unwrapped_topic(noted, group),
        message_id=first_property(properties, ORIGIN_ID_PROPERTIES),
    )


def first_property(properties: Mapping[str, str], names: Collection[str]) -> str | None:
    """Return the value of the first of some properties that a message has."""
    return next((properties[name] for name in names if name in properties), None)


def group_and_topic(
    topic: str, *, has_origin: bool, known: KnownNames = NO_NAMES
) -> tuple[str, str | None]:
    """Return the group of a topic of retries or dead letters, and the topic that its name has.

    A retry of POP whose name is ``g_t`` is split where most of group and topic are known. With
    a single underscore there is only one split, which needs no known name unless all of the rest is
    the name of a group.

    For example, ``shop_orders_paid`` with the known topic ``paid`` is group ``shop_orders`` and
    topic ``paid``. With neither a group nor a topic known it is not split.

    Args:
        topic: a topic for which :func:`is_copy_topic` holds.
        has_origin: whether a property of the message names its origin: it is no retry of POP then.
        known: names by which ``%RETRY%g_t`` is split.

    Returns:
        The rest of the name and None if the name has no second part, or nothing shows where that
        begins, as where several splits are as good.
    """
    if topic.startswith(DLQ_PREFIX):
        return topic.removeprefix(DLQ_PREFIX), None
    rest = topic.removeprefix(RETRY_PREFIX)
    parts = rest.split(_POP_SEPARATOR_V2)
    if len(parts) == 2 and all(parts):  # neither name can have this separator
        return parts[0], parts[1]
    if has_origin:
        return rest, None
    splits = [
        (rest[:index], rest[index + 1 :])
        for index in range(1, len(rest) - 1)
        if rest[index] == _POP_SEPARATOR
    ]
    scores = [(group in known.groups) + (topic in known.topics) for group, topic in splits]
    best = max(scores, default=0)
    if best == 0 and (rest in known.groups or len(splits) != 1):
        return rest, None
    chosen = [split for split, score in zip(splits, scores, strict=True) if score == best]
    return chosen[0] if len(chosen) == 1 else (rest, None)


def unwrapped_topic(topic: str, group: str) -> str:
    """Return the origin topic of a dead letter of POP, whose RETRY_TOPIC is that of a retry.

    Other topics are returned as they are.
    """
    for separator in (_POP_SEPARATOR_V2, _POP_SEPARATOR):
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix) and topic != prefix:
            return topic.removeprefix(prefix)
    return topic


class Entries(NamedTuple):
    """The m properties of n records that RocketMQ's parser keeps, record by record.

    Attributes:
        data: the property strings of all records, one after the other.
        offsets: (n + 1,), where the entries of each record begin among the m.
        value_starts: (m,), in ``data``.
        value_lengths: (m,).
        names: distinct names.
        codes: (m,), the index of each name in ``names``. None if every record has exactly these
            names in this order; then ``rows`` and ``entry_names`` are None too.
        rows: (m,), the record of each entry.
        entry_names: the name of each entry, string (m,).
    """

    data: Bytes
    offsets: Positions
    value_starts: Positions
    value_lengths: Positions
    names: list[str]
    codes: NDArray[np.int32] | None
    rows: Positions | None
    entry_names: pa.Array | None

    def spans_of(self, name: str) -> tuple[Positions, Positions, Positions]:
        """Return the records that have a property, rising, and the spans of its values in data.

        Args:
            name: one of the names.
        """
        code = self.names.index(name)
        if self.codes is None or self.rows is None:
            every = slice(code, None, len(self.names))
            rows = np.arange(len(self.offsets) - 1)
            return rows, self.value_starts[every], self.value_lengths[every]
        matches = np.flatnonzero(self.codes == code)
        return self.rows[matches], self.value_starts[matches], self.value_lengths[matches]


def parse_entries(buf: Bytes, starts: Positions, lengths: Positions) -> Entries:
    """Find the properties of records whose property strings are the given spans of ``buf``.

    Source: MessageDecoder.java#string2messageProperties.
    """
    data, ends = array_bytes(gather_spans(buf, starts, lengths, pa.binary()))
    stops = find_byte(data, PROPERTY_SEPARATOR)
    filled_ends = ends[1:][ends[1:] > ends[:-1]]
    open_ends = filled_ends[data[filled_ends - 1] != PROPERTY_SEPARATOR]
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
    by_template = _parse_by_template(data, ends, begins, stops)
    if by_template is not None:
        return by_template
    # Each property is split at its first 0x01, and dropped if its name or value is empty.
    splits = find_byte(data, NAME_VALUE_SEPARATOR)
    if len(splits) != len(stops) or (splits < begins).any() or (splits > stops).any():
        splits = np.append(splits, len(data))[np.searchsorted(splits, begins)]
    offsets = np.searchsorted(begins, ends)
    rows = np.repeat(np.arange(len(ends) - 1), np.diff(offsets))
    is_entry = (splits > begins) & (splits < stops - 1)
    if not is_entry.all():
        offsets = np.concatenate(([0], np.cumsum(is_entry)))[offsets]
        begins = begins[is_entry]
        splits = splits[is_entry]
        stops = stops[is_entry]
        rows = rows[is_entry]
    entry_names = valid_text(gather_spans(data, begins, splits - begins, pa.string()))
    encoded = entry_names.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = codes_of(encoded)
    is_last = _are_last(codes, rows, offsets, len(names))
    if not is_last.all():
        offsets = np.concatenate(([0], np.cumsum(is_last)))[offsets]
        splits = splits[is_last]
        stops = stops[is_last]
        codes = codes[is_last]
        rows = rows[is_last]
        entry_names = entry_names.filter(booleans(is_last))
    value_lengths = stops - splits - 1
    return Entries(data, offsets, splits + 1, value_lengths, names, codes, rows, entry_names)


def _parse_by_template(
    data: Bytes, ends: Positions, begins: Positions, stops: Positions
) -> Entries | None:
    """Parse records that all have the names of the first one in its order; None if they do not."""
    n = len(ends) - 1
    first = data[: ends[1]].tobytes().removesuffix(_STOP).split(_STOP) if n and ends[1] else []
    headers = [entry.partition(_EQUALS)[0] + _EQUALS for entry in first]
    width = len(headers)
    if not width or len(stops) != n * width or len(set(headers)) < width or _EQUALS in headers:
        return None
    begins = begins.reshape(n, width)
    stops = stops.reshape(n, width)
    if (begins[:, 0] != ends[:-1]).any():
        return None
    value_starts = begins + np.array([len(head) for head in headers])
    value_lengths = stops - value_starts
    if (value_lengths <= 0).any():
        return None
    for column, head in enumerate(headers):
        if windows(data, len(head))[begins[:, column]].tobytes() != head * n:
            return None
    names = [decode_text(head[:-1]) for head in headers]
    if len(set(names)) < width:
        return None
    offsets = np.arange(0, n * width + 1, width)
    values = value_starts.ravel(), value_lengths.ravel()
    return Entries(data, offsets, *values, names, codes=None, rows=None, entry_names=None)


def _are_last(codes: NDArray[np.int32], rows: Positions, offsets: Positions, n_names: int) -> Mask:
    """Return a mask (m,) of the entries that no later one of the same name and record replaces.

    Args:
        codes, rows, offsets: as in :class:`Entries`.
        n_names: number of distinct names.
    """
    mask = np.ones(len(codes), np.bool_)
    if n_names <= _CODE_BITS:
        filled = offsets[:-1][offsets[1:] > offsets[:-1]]
        bits = np.left_shift(np.int64(1), codes.astype(np.int64))
        if (np.add.reduceat(bits, filled) == np.bitwise_or.reduceat(bits, filled)).all():
            return mask
    keys = rows * n_names + codes
    order = np.argsort(keys, kind="stable")
    mask[order[:-1]] = keys[order[:-1]] != keys[order[1:]]
    return mask


def property_map(entries: Entries) -> pa.MapArray:
    """Return all properties, map<string, string> (n,)."""
    names = entries.entry_names
    if names is None:  # the same of each record: their bytes are copied
        n = len(entries.offsets) - 1
        encoded = [name.encode() for name in entries.names]
        bounds = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
        begins = np.arange(n, dtype=np.int32)[:, None] * bounds[-1]
        name_offsets = np.append((begins + bounds[None, :-1]).ravel(), np.int32(n) * bounds[-1])
        names = bounded(pa.string(), name_offsets, b"".join(encoded) * n)
    values = gather_spans(entries.data, entries.value_starts, entries.value_lengths, pa.string())
    offsets = numbers(entries.offsets.astype(np.int32))
    return pa.MapArray.from_arrays(offsets, names, valid_text(values))


def property_column(entries: Entries, name: str) -> pa.Array:
    """Return one property, string (n,), null where a record lacks it."""
    n = len(entries.offsets) - 1
    if name not in entries.names:
        return pa.nulls(n, pa.string())
    rows, value_starts, value_lengths = entries.spans_of(name)
    if len(rows) == n:
        return valid_text(gather_spans(entries.data, value_starts, value_lengths, pa.string()))
    starts = np.zeros(n, np.int64)
    lengths = np.zeros(n, np.int64)
    starts[rows] = value_starts
    lengths[rows] = value_lengths
    values = gather_spans(entries.data, starts, lengths, pa.string())
    # A value is never empty, so length 0 means that there is no value.
    values = pa.Array.from_buffers(pa.string(), n, [bits(lengths > 0), *values.buffers()[1:]])
    return valid_text(values)
