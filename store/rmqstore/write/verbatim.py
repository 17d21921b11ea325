"""Batches of records as stored, for exact copies, to the columns that are encoded."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.buffers import array_bytes, booleans, codes_of, gather_spans
from rmqstore.format.columns.decode import pack_hosts
from rmqstore.format.columns.dispatch_requests import DispatchProperties, have_units, topic_names
from rmqstore.format.columns.encode import Lmqs, RecordColumns, TopicColumn
from rmqstore.format.columns.inner_batch import explicit_counts
from rmqstore.format.columns.lmq import dispatches_of, is_dispatched
from rmqstore.format.columns.property_decode import parse_entries
from rmqstore.format.columns.property_encode import PropertyStrings
from rmqstore.format.layout import PROPERTY_MULTI_DISPATCH, SysFlag
from rmqstore.format.schema import VERBATIM
from rmqstore.storage.queue.next_offsets import NextOffsets


def verbatim_columns(batch: pa.RecordBatch) -> RecordColumns:
    """Return the columns of records from a batch that holds them as stored.

    Raises:
        IllegalMessageError: a column is missing, of another type, or has nulls.
    """
    _require_columns(batch)

    strings = batch.column("properties")
    data, bounds = array_bytes(strings)
    entries = parse_entries(data, bounds[:-1], np.diff(bounds))
    topics = TopicColumn.of(batch.column("topic"))
    lmqs: Lmqs | None = None
    if PROPERTY_MULTI_DISPATCH in entries.names:
        are_dispatched = topics.where(lambda topic: is_dispatched(topic.encode()))
        dispatches = dispatches_of(entries, are_dispatched)
        names = gather_spans(
            entries.data, dispatches.name_starts, dispatches.name_lengths, pa.binary()
        )
        # Source: MultiDispatchUtils.java: the broker ignores names that could lead out of its
        # folder.
        is_kept = pc.find_substring(names, "/").to_numpy() < 0
        encoded = names.filter(booleans(is_kept)).dictionary_encode()
        queues = TopicColumn(topic_names(encoded), codes_of(encoded))
        lmqs = Lmqs(dispatches.rows[is_kept], queues, dispatches.queue_offsets[is_kept])
    return RecordColumns(
        topics=topics,
        queue_ids=batch.column("queueId").to_numpy(),
        bodies=batch.column("body"),
        properties=PropertyStrings.stored(strings),
        dispatched=DispatchProperties.of(entries),
        flags=batch.column("flag").to_numpy(),
        sys_flags=batch.column("sysFlag").to_numpy(),
        born_timestamps=millis(batch, "bornTimestamp"),
        born_hosts=pack_hosts(batch.column("bornHost")),
        store_hosts=pack_hosts(batch.column("storeHost")),
        reconsume_times=batch.column("reconsumeTimes").to_numpy(),
        prepared_transaction_offsets=batch.column("preparedTransactionOffset").to_numpy(),
        lmqs=lmqs,
    )


def _require_columns(batch: pa.RecordBatch) -> None:
    """Refuse a batch that lacks a column of records as they are stored."""
    for field in VERBATIM:
        if field.name == "commitLogOffset":
            continue
        if field.name not in batch.schema.names:
            raise IllegalMessageError(f"verbatim: column {field.name} is missing")
        given = batch.schema.field(field.name).type
        if given != field.type:
            raise IllegalMessageError(
                f"verbatim: column {field.name} must be {field.type}, got {given}"
            )
        if batch.column(field.name).null_count:
            text = f"verbatim: column {field.name} has nulls"
            if field.name == "bornTimestamp":
                text += ": the client's time is not in the years 1 to 9999; copy the whole store"
            raise IllegalMessageError(text)


def claim_offsets(
    offsets: NextOffsets,
    columns: RecordColumns,
    queue_offsets: NDArray[np.int64],
    batch_topics: Collection[str],
    first_row: int = 1,
) -> bool:
    """Claim the queue offsets that records bring: their own, and those in light message queues.

    An inner batch in a batch topic claims an offset for each of its messages.

    Returns:
        Whether each record has one unit, and no record is in a light message queue.

    Raises:
        IllegalMessageError: an offset is not the next one of its queue.
    """
    has_unit = have_units(columns.sys_flags)
    numbers = np.arange(first_row, first_row + len(columns))
    in_batches = columns.topics.where(lambda topic: topic in batch_topics)
    is_inner = in_batches & (columns.sys_flags & np.int32(SysFlag.INNER_BATCH) != 0)
    if not is_inner.any():
        offsets.claim(columns.topics, columns.queue_ids, queue_offsets, has_unit, numbers)
    else:
        counts = explicit_counts(columns.properties.joined(), is_inner)
        rows = np.repeat(np.arange(len(counts)), counts)
        ranks = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        topics = TopicColumn(columns.topics.names, columns.topics.codes[rows])
        claimed = queue_offsets[rows] + ranks
        offsets.claim(topics, columns.queue_ids[rows], claimed, has_unit[rows], numbers[rows])
    lmqs = columns.lmqs
    if lmqs is not None and lmqs.queue_offsets is not None:
        is_there = has_unit[lmqs.rows] & ~in_batches[lmqs.rows]
        lmq_numbers = numbers[lmqs.rows]
        offsets.claim(lmqs.queues, lmqs.queue_ids, lmqs.queue_offsets, is_there, lmq_numbers)
    return lmqs is None and not is_inner.any()


def millis(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """Return a column of times, timestamp[us], as epoch ms, int64 (n,)."""
    micros: NDArray[np.int64] = batch.column(name).view(pa.int64()).to_numpy()
    return micros // 1000
