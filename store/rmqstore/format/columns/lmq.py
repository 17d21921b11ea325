"""Light message queues (LMQ), in which one record of a parent topic is a message of several queues.

The broker writes the record once, and a unit into each queue that the record names together with
its queue offset there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import IllegalRowError
from rmqstore.format.columns.buffers import (
    array_bytes,
    bounded,
    find_byte,
    gather_spans,
    join,
    lengths_of,
    numbers,
)
from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.encode import Lmqs, Records, TopicColumn, scatter
from rmqstore.format.columns.property_decode import Entries, parse_entries
from rmqstore.format.columns.property_encode import one_property
from rmqstore.format.columns.record_headers import RecordHeaders, read_headers
from rmqstore.format.layout import (
    LMQ_PREFIX,
    MAX_PROPERTIES_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_QUEUE_OFFSET,
    SCHEDULE_TOPIC,
    Bytes,
    Mask,
    Positions,
)

_NAME: Final = PROPERTY_MULTI_DISPATCH.encode() + bytes([NAME_VALUE_SEPARATOR])
_SEARCHED_BYTES: Final = 64 << 20
_NUMBER: Final = r"^[0-9]{1,18}$"
# Records in these topics are copies, which still name the queues that only the original is in.
# Source: CommitLog.java#isMultiDispatchMsg, MultiDispatchUtils.java#isNeedHandleMultiDispatch.
_NOT_DISPATCHED: Final = (b"%RETRY%", b"rmq_sys_", SCHEDULE_TOPIC.encode())

# Source: MixAll.java#MULTI_DISPATCH_QUEUE_SPLITTER, #LMQ_DISPATCH_SEPARATOR.
_COMMA: Final = ","


class Dispatches(NamedTuple):
    """The m light message queues that records name, in the order of the records."""

    rows: Positions  # (m,) the record that names the queue
    name_starts: Positions  # (m,) in the buffer of the records
    name_lengths: Positions  # (m,)
    queue_offsets: NDArray[np.int64]  # (m,)

    def take(self, rows: Mask) -> Dispatches:
        """Return the chosen rows."""
        return Dispatches(*(column[rows] for column in self))


_NONE: Final = Dispatches(*[np.empty(0, np.int64)] * 4)


def find_dispatches(
    buf: Bytes, headers: RecordHeaders, batch_topics: Collection[str] = ()
) -> Dispatches:
    """Return the light message queues that records name.

    Args:
        buf: uint8 (nbytes,), the buffer that ``record_headers`` was read from.
        headers: n whole records.
        batch_topics: the topics whose queues are BatchConsumeQueues, whose records are dispatched
            to no other queue.

    Source: ConsumeQueue.java#multiDispatchLmqQueue;
    BatchConsumeQueue.java#putMessagePositionInfoWrapper, which dispatches none.
    """
    if not len(headers):
        return _NONE
    low = int(headers.property_starts.min())
    high = int((headers.property_starts + headers.property_lengths).max())
    if high - low <= _SEARCHED_BYTES and _NAME not in buf[low:high].tobytes():
        return _NONE  # as in nearly every store: the properties need not be parsed
    entries = parse_entries(buf, headers.property_starts, headers.property_lengths)
    topic_column = topics(buf, headers).view(pa.binary()).dictionary_encode()
    in_batches = {topic.encode() for topic in batch_topics}
    by_topic = [
        is_dispatched(topic) and topic not in in_batches
        for topic in topic_column.dictionary.to_pylist()
    ]
    are_dispatched = np.array(by_topic, np.bool_)[topic_column.indices.to_numpy()]
    dispatches = dispatches_of(entries, are_dispatched)
    # The entries' data holds the property strings one after the other: back to positions in buf.
    begins = np.cumsum(headers.property_lengths) - headers.property_lengths
    rows = dispatches.rows
    name_starts = dispatches.name_starts - begins[rows] + headers.property_starts[rows]
    return dispatches._replace(name_starts=name_starts)


def dispatches_of(entries: Entries, are_dispatched: Mask) -> Dispatches:
    """Return the light message queues that records name; the names lie in the entries' data.

    Args:
        entries: the properties of n records.
        are_dispatched: (n,), the records that the broker dispatches to queues, by their topic.
    """
    n = len(are_dispatched)
    names = _split_values(entries, PROPERTY_MULTI_DISPATCH)
    numbers = _split_values(entries, PROPERTY_MULTI_QUEUE_OFFSET)
    # A broker dispatches no record whose lists differ in length.
    n_names = np.bincount(names.rows, minlength=n)
    n_numbers = np.bincount(numbers.rows, minlength=n)
    names = names.take((n_names == n_numbers)[names.rows])
    numbers = numbers.take((n_names == n_numbers)[numbers.rows])
    name_bytes = gather_spans(entries.data, names.starts, names.lengths, pa.binary())
    number_bytes = gather_spans(entries.data, numbers.starts, numbers.lengths, pa.binary())
    has_prefix = pc.starts_with(name_bytes, LMQ_PREFIX.encode()).to_numpy(zero_copy_only=False)
    is_dispatched = are_dispatched[names.rows]
    is_number = pc.match_substring_regex(number_bytes, _NUMBER)
    is_valid = is_number.to_numpy(zero_copy_only=False) & has_prefix & is_dispatched
    valid_numbers = number_bytes.view(pa.string()).filter(pa.array(is_valid))
    queue_offsets = valid_numbers.cast(pa.int64()).to_numpy()
    return Dispatches(
        names.rows[is_valid], names.starts[is_valid], names.lengths[is_valid], queue_offsets
    )


class _CommaValues(NamedTuple):
    """The parts of property values between commas, m in all."""

    rows: Positions  # (m,) the record of each part
    starts: Positions  # (m,) in the entries' data
    lengths: Positions  # (m,)

    def take(self, rows: Mask) -> _CommaValues:
        return _CommaValues(*(column[rows] for column in self))


def _split_values(entries: Entries, name: str) -> _CommaValues:
    """Split the values of one property at their commas, without the empty parts at their ends.

    Source: String.java#split of the JDK.
    """
    if name not in entries.names:
        return _CommaValues(*[np.empty(0, np.int64)] * 3)
    rows, starts, lengths = entries.spans_of(name)
    data, offsets = array_bytes(gather_spans(entries.data, starts, lengths, pa.binary()))
    commas = find_byte(data, ord(_COMMA))
    begins = np.sort(np.concatenate((offsets[:-1], commas + 1)))
    ends = np.sort(np.concatenate((commas, offsets[1:])))
    value_of_comma = np.searchsorted(offsets, commas, side="right") - 1
    n_commas = np.bincount(value_of_comma, minlength=len(rows))
    value = np.repeat(np.arange(len(rows)), n_commas + 1)
    parts = _CommaValues(rows[value], begins - offsets[value] + starts[value], ends - begins)
    filled = np.flatnonzero(parts.lengths)
    last_filled = np.full(len(rows), -1, np.int64)
    last_filled[value[filled]] = filled  # of repeated values, the last part stays
    return parts.take(np.arange(len(value)) <= last_filled[value])


def is_dispatched(topic: bytes) -> bool:
    """Return whether the broker dispatches records of a topic to the LMQs that they name.

    Source: MixAll.java#topicAllowsLMQ.
    """
    return not topic.startswith(_NOT_DISPATCHED)


def lmq_headers(buf: Bytes, headers: RecordHeaders, batch_topics: Collection[str]) -> RecordHeaders:
    """Return a head for every unit in light message queues, in the order of the records.

    Such a head is that of the record, with the topic, queue id and queue offset of the unit.

    Args:
        buf: uint8 (nbytes,), the buffer that ``record_headers`` was read from.
        headers: whole records, of those that have units.
        batch_topics: the topics whose queues are BatchConsumeQueues.
    """
    dispatches = find_dispatches(buf, headers, batch_topics)
    if not len(dispatches.rows):
        return headers.take(slice(0, 0))
    # Source: MultiDispatchUtils.java: the broker ignores names that could lead out of its folder.
    names = gather_spans(buf, dispatches.name_starts, dispatches.name_lengths, pa.binary())
    dispatches = dispatches.take(pc.find_substring(names, "/").to_numpy() < 0)
    queue_ids = np.zeros(len(dispatches.rows), np.int32)
    record_headers = headers.take(dispatches.rows)
    return replace(
        record_headers.placed(queue_ids, dispatches.queue_offsets),
        topic_starts=dispatches.name_starts,
        topic_lengths=dispatches.name_lengths,
        common_topic=None,
        _columns={},
    )


def offsets_in_queues(buf: Bytes, headers: RecordHeaders, expected: pa.Array) -> NDArray[np.int64]:
    """Return the queue offsets that records name for a queue, (n,); -1 of one that names none.

    Args:
        buf: the buffer that ``record_headers`` was read from.
        headers: n whole records.
        expected: the light message queue of each record, string (n,).
    """
    dispatches = find_dispatches(buf, headers)
    names = gather_spans(buf, dispatches.name_starts, dispatches.name_lengths, pa.binary())
    expected_names = expected.take(pa.array(dispatches.rows)).view(pa.binary())
    is_match = pc.equal(names, expected_names).to_numpy(zero_copy_only=False)
    offsets = np.full(len(headers), -1)
    offsets[dispatches.rows[is_match]] = dispatches.queue_offsets[is_match]
    return offsets


def have_torn_properties(buf: Bytes, headers: RecordHeaders) -> Mask:
    """Return a mask (n,) of the records whose properties hold a zero byte, as of another page.

    Args:
        buf: the buffer that ``record_headers`` was read from.
        headers: n whole records.
    """
    properties = gather_spans(buf, headers.property_starts, headers.property_lengths, pa.binary())
    mask: Mask = pc.find_substring(properties, b"\0").to_numpy(zero_copy_only=False) >= 0
    return mask


def offset_strings(n: int, rows: Positions, queue_offsets: NDArray[np.int64]) -> pa.BinaryArray:
    """Return the property INNER_MULTI_QUEUE_OFFSET of n records, binary (n,).

    Args:
        rows: (m,), the record of each offset, never falling.
        queue_offsets: (m,).

    Source: LmqDispatch.java#wrapLmqDispatch.
    """
    bounds = np.searchsorted(rows, np.arange(n + 1)).astype(np.int32)
    lists = pa.ListArray.from_arrays(numbers(bounds), numbers(queue_offsets).cast(pa.string()))
    return one_property(PROPERTY_MULTI_QUEUE_OFFSET, pc.binary_join(lists, _COMMA))


def require_short(lengths: NDArray[np.int64], first_row: int = 1) -> None:
    """Refuse property strings, of these lengths, that are longer than a record can say.

    Raises:
        IllegalRowError: one is.
    """
    if int(lengths.max(initial=0)) > MAX_PROPERTIES_BYTES:
        row = int(lengths.argmax())
        raise IllegalRowError(
            first_row + row,
            f"PROPERTIES_SIZE_EXCEEDED: properties of {int(lengths[row])} bytes with the offsets "
            f"in light message queues, at most {MAX_PROPERTIES_BYTES} are allowed; "
            "nothing was written",
        )


def require_plain_parents(
    topics: TopicColumn,
    lmqs: Lmqs,
    batch_topics: Collection[str],
    first_row: int = 1,
) -> None:
    """Refuse rows of batch topics that name light message queues.

    Raises:
        IllegalRowError: there is one. A broker would count an offset in these queues, and write
            no unit.
    """
    in_batches = topics.where(lambda topic: topic in batch_topics)
    wrong = lmqs.rows[in_batches[lmqs.rows]]
    if len(wrong):
        row = int(wrong[0])
        raise IllegalRowError(
            first_row + row,
            f"MESSAGE_ILLEGAL: {topics.names[int(topics.codes[row])]} has BatchConsumeQueues, "
            "whose messages are in no light message queue; nothing was written",
        )


def extend_properties(records: Records, strings: pa.BinaryArray) -> Records:
    """Return records with further properties at the end of theirs.

    Args:
        records: n records, whose properties end with a separator.
        strings: property strings, binary (n,), empty where a record gets none.

    Raises:
        IllegalRowError: the properties of a record become too long.
    """
    sizes = np.diff(records.starts)
    headers, _ = read_headers(records.data, records.starts[:-1])
    lengths = headers.property_lengths + lengths_of(strings)
    require_short(lengths)
    stored = bounded(pa.binary(), records.starts.astype(np.int32), records.data)
    data, bounds = array_bytes(join([stored, strings], len(strings)))
    starts = bounds.astype(np.int64)
    scatter(data, starts[:-1], (sizes + lengths_of(strings)).astype(">i4"))
    length_fields = headers.property_starts - headers.starts - PROPERTIES_LENGTH_BYTES
    scatter(data, starts[:-1] + length_fields, lengths.astype(">i2"))
    return Records(data[: int(starts[-1])], starts, records.sys_flags)
