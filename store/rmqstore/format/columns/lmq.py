"""Messages that stand in several queues: which light message queues (LMQ) a record names, and where it stands in each.

The broker writes one record, of the parent topic, and a unit for it into each queue that the record names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import array_bytes, find_byte, gather_spans
from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.heads import Heads
from rmqstore.format.columns.property_decode import Entries, parse_entries
from rmqstore.format.layout import (
    LMQ_PREFIX,
    NAME_VALUE_SEPARATOR,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_QUEUE_OFFSET,
    SCHEDULE_TOPIC,
    Bytes,
    Mask,
    Positions,
)

_SEPARATOR: Final = ord(",")  # Source: MixAll.java#MULTI_DISPATCH_QUEUE_SPLITTER
_MARK: Final = PROPERTY_MULTI_DISPATCH.encode() + bytes([NAME_VALUE_SEPARATOR])
_SEARCHED_BYTES: Final = 64 << 20
_NUMBER: Final = r"^[0-9]{1,18}$"
# Copies of records in these topics carry the names of queues that the original stands in.
# Source: CommitLog.java#isMultiDispatchMsg, MultiDispatchUtils.java#isNeedHandleMultiDispatch.
_NOT_DISPATCHED: Final = (b"%RETRY%", b"rmq_sys_", SCHEDULE_TOPIC.encode())


class Dispatches(NamedTuple):
    """Light message queues that records name, m in all, in the order of the records."""

    rows: Positions  # (m,) the record
    name_starts: Positions  # (m,) in the buffer of the records
    name_lengths: Positions
    queue_offsets: NDArray[np.int64]

    def take(self, rows: Mask) -> Dispatches:
        """Return the chosen ones."""
        return Dispatches(*(column[rows] for column in self))


_NONE: Final = Dispatches(*[np.empty(0, np.int64)] * 4)


def find_dispatches(buf: Bytes, heads: Heads) -> Dispatches:
    """Return which light message queues whole records name.

    Args:
        buf: uint8 (nbytes,), what the heads were read from.
        heads: n whole records.

    Source: ConsumeQueue.java#multiDispatchLmqQueue.
    """
    if not len(heads):
        return _NONE
    low = int(heads.property_starts.min())
    high = int((heads.property_starts + heads.property_lengths).max())
    if high - low <= _SEARCHED_BYTES and _MARK not in buf[low:high].tobytes():
        return _NONE  # as in nearly every store; the properties need not be parsed
    entries = parse_entries(buf, heads.property_starts, heads.property_lengths)
    begins = np.cumsum(heads.property_lengths) - heads.property_lengths  # of each record's string in the entries' data
    names = _pieces(entries, PROPERTY_MULTI_DISPATCH)
    numbers = _pieces(entries, PROPERTY_MULTI_QUEUE_OFFSET)
    n_names, n_numbers = (np.bincount(one.rows, minlength=len(heads)) for one in (names, numbers))
    agree = n_names == n_numbers
    names, numbers = names.take(agree[names.rows]), numbers.take(agree[numbers.rows])
    texts = gather_spans(entries.data, numbers.starts, numbers.lengths, pa.binary()).view(pa.string())
    is_number = _matches(texts)
    spelled = gather_spans(entries.data, names.starts, names.lengths, pa.binary())
    prefixed = pc.starts_with(spelled, LMQ_PREFIX.encode()).to_numpy(zero_copy_only=False)
    kept = is_number & prefixed & _are_dispatched(buf, heads)[names.rows]
    offsets = texts.filter(pa.array(kept)).cast(pa.int64()).to_numpy()
    rows = names.rows[kept]
    starts = names.starts[kept] - begins[rows] + heads.property_starts[rows]
    return Dispatches(rows, starts, names.lengths[kept], offsets)


class _Pieces(NamedTuple):
    """Parts of values between commas: the record of each, and where in the entries' data it is."""

    rows: Positions
    starts: Positions
    lengths: Positions

    def take(self, rows: Mask) -> _Pieces:
        return _Pieces(*(column[rows] for column in self))


def _pieces(entries: Entries, name: str) -> _Pieces:
    """Cut the values of one property at its commas."""
    if name not in entries.names:
        return _Pieces(*[np.empty(0, np.int64)] * 3)
    code, width = entries.names.index(name), len(entries.names)
    if entries.codes is None or entries.rows is None:
        at = np.arange(code, len(entries.value_starts), width)
        rows = at // width
    else:
        at = np.flatnonzero(entries.codes == code)
        rows = entries.rows[at]
    starts, lengths = entries.value_starts[at], entries.value_lengths[at]
    data, offsets = array_bytes(gather_spans(entries.data, starts, lengths, pa.binary()))
    commas = find_byte(data, _SEPARATOR)
    begins = np.sort(np.concatenate((offsets[:-1], commas + 1)))
    ends = np.sort(np.concatenate((commas, offsets[1:])))
    n_commas = np.bincount(np.searchsorted(offsets, commas, side="right") - 1, minlength=len(at))
    value = np.repeat(np.arange(len(at)), n_commas + 1)
    return _Pieces(rows[value], begins - offsets[value] + starts[value], ends - begins)


def _matches(texts: pa.Array) -> Mask:
    """Return which texts are whole numbers, be they UTF-8 or not."""
    is_ascii = pc.match_substring_regex(texts.view(pa.binary()), _NUMBER)
    found: Mask = is_ascii.to_numpy(zero_copy_only=False)
    return found


def _are_dispatched(buf: Bytes, heads: Heads) -> Mask:
    """Return which records are of a topic whose messages are put into the queues that they name."""
    names = topics(buf, heads).view(pa.binary()).dictionary_encode()
    of_name = [not name.startswith(_NOT_DISPATCHED) for name in names.dictionary.to_pylist()]
    found: Mask = np.array(of_name, np.bool_)[names.indices.to_numpy()]
    return found


def lmq_heads(buf: Bytes, heads: Heads) -> Heads:
    """Return a head for every unit that records have in light message queues, in the order of the records.

    Such a head is that of the record, but for topic, queue id and queue offset, which are those of the unit.

    Args:
        buf: uint8 (nbytes,), what the heads were read from.
        heads: whole records, of those that have units.
    """
    found = find_dispatches(buf, heads)
    if not len(found.rows):
        return heads.take(slice(0, 0))
    # Source: MultiDispatchUtils.java: the broker passes over names that could lead out of its folder.
    slashes = pc.find_substring(gather_spans(buf, found.name_starts, found.name_lengths, pa.binary()), "/")
    found = found.take(slashes.to_numpy() < 0)
    named = heads.take(found.rows).placed(np.zeros(len(found.rows), np.int32), found.queue_offsets)
    return replace(
        named, topic_starts=found.name_starts, topic_lengths=found.name_lengths, common_topic=None, _columns={}
    )


def name_queues(buf: Bytes, heads: Heads, expected: pa.Array, queue_offsets: NDArray[np.int64]) -> Mask:
    """Return a mask (n,) of the records that name a light message queue with the offset which its unit has.

    Args:
        buf: what the heads were read from.
        heads: n whole records.
        expected: the queue of each, string (n,).
        queue_offsets: (n,).
    """
    found = find_dispatches(buf, heads)
    names = gather_spans(buf, found.name_starts, found.name_lengths, pa.binary())
    wanted = expected.take(pa.array(found.rows)).view(pa.binary())
    same = pc.equal(names, wanted).to_numpy(zero_copy_only=False)
    same &= found.queue_offsets == queue_offsets[found.rows]
    named = np.zeros(len(heads), np.bool_)
    named[found.rows[same]] = True
    return named
