"""The light message queues that rows name in INNER_MULTI_DISPATCH, and the offsets of copies there.

Source: LmqDispatch.java, MultiDispatchUtils.java.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.columns.buffers import booleans, mask_of, numbers
from rmqstore.format.columns.encode import LightQueues, RecordColumns, TopicColumn
from rmqstore.format.columns.light_queue_encode import offset_strings, require_short
from rmqstore.format.columns.lmq import is_dispatched
from rmqstore.format.columns.property_encode import PropertyMaps
from rmqstore.format.layout import (
    LMQ_PREFIX,
    PROPERTY_INNER_NUM,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_QUEUE_OFFSET,
    Mask,
)
from rmqstore.storage.files.paths import can_have_queue
from rmqstore.storage.queue.next_offsets import NextOffsets

_INNER: Final = "INNER_"  # how the names of these properties begin
_NOT_BLANK: Final = r"\S"

Refuse = Callable[[int, str, str], Never]


def find_light_queues(
    maps: PropertyMaps, overrides: dict[str, pa.StringArray], topics: TopicColumn, refuse: Refuse
) -> LightQueues | None:
    """Return the light message queues that rows name, None if no row does.

    Rows that name some lose the property INNER_MULTI_QUEUE_OFFSET, which may come from the store
    that they were read from.

    Args:
        maps: the properties of n rows.
        overrides: values that replace properties, which this adds to.
        topics: the topic of each row.
        refuse: raises an error, given a row, a status and a reason.

    Raises:
        IllegalMessageError: a name is not one of a light message queue, or a row is not an inner
            batch although its properties say so.
    """
    if not maps.mentions(_INNER):
        return None
    stated = maps.column(PROPERTY_INNER_NUM)
    if stated is not None and stated.null_count < len(stated):
        reason = f"property {PROPERTY_INNER_NUM} is that of an inner batch, which is not written"
        refuse(int(np.argmax(mask_of(stated.is_valid()))), "MESSAGE_ILLEGAL", reason)
    named = maps.column(PROPERTY_MULTI_DISPATCH)
    if named is None:
        return None
    is_light = _are_light(named, topics)
    if not is_light.any():
        return None
    rows = np.flatnonzero(is_light)
    lists = pc.split_pattern(named.take(numbers(rows)), ",")
    rows = np.repeat(rows, np.diff(np.from_dlpack(lists.offsets)))
    queues = TopicColumn.of(lists.flatten())
    _require_light(rows, queues, refuse)
    kept = maps.column(PROPERTY_MULTI_QUEUE_OFFSET)
    if kept is not None:
        absent = pa.nulls(1, pa.string())[0]
        overrides[PROPERTY_MULTI_QUEUE_OFFSET] = pc.if_else(booleans(is_light), absent, kept)
    return LightQueues(rows, queues)


def _are_light(named: pa.StringArray, topics: TopicColumn) -> Mask:
    """Return a mask (n,) of the rows that a broker dispatches to light message queues.

    Source: MessageExtBrokerInner.java#needDispatchLMQ.
    """
    is_named = pc.fill_null(pc.match_substring_regex(named, _NOT_BLANK), fill_value=False)
    by_topic = np.array([is_dispatched(topic.encode()) for topic in topics.names], np.bool_)
    mask: Mask = mask_of(is_named) & by_topic[topics.codes]
    return mask


def _require_light(rows: np.ndarray, queues: TopicColumn, refuse: Refuse) -> None:
    for code, name in enumerate(queues.names):
        reason = None
        if not name.startswith(LMQ_PREFIX):
            # A broker would write no offset for it, which stops its dispatch.
            reason = f"names of light message queues begin with {LMQ_PREFIX}"
        elif not can_have_queue(name, 0):
            reason = "it cannot name a folder of queues"
        if reason is not None:
            row = int(rows[np.argmax(queues.codes == code)])
            text = f"{PROPERTY_MULTI_DISPATCH} names {name!r}: {reason}"
            refuse(row, "MESSAGE_ILLEGAL", text)
    pairs = rows * len(queues.names) + queues.codes
    distinct, firsts = np.unique(pairs, return_index=True)
    if len(distinct) < len(pairs):
        again = int(np.setdiff1d(np.arange(len(pairs)), firsts)[0])
        name = queues.names[int(queues.codes[again])]
        # A broker would count two offsets for one unit.
        text = f"{PROPERTY_MULTI_DISPATCH} names {name!r} twice"
        refuse(int(rows[again]), "MESSAGE_ILLEGAL", text)


def with_light_offsets(
    columns: RecordColumns, light_queues: LightQueues, offsets: NextOffsets, first_row: int
) -> RecordColumns:
    """Return rows with the next offset of each light message queue that they name.

    Raises:
        IllegalMessageError: the properties of a row become too long.
    """
    queue_offsets = offsets.assign(light_queues.queues, light_queues.queue_ids)
    strings = offset_strings(len(columns), light_queues.rows, queue_offsets)
    properties = columns.properties.extended(strings)
    require_short(properties.lengths, first_row)
    return columns.with_properties(properties)
