"""Finds and reads pending messages.

These are half messages of undecided transactions, and delayed and timed messages that are not yet
due. They lie in system topics of the broker, and name the topic and queue of their delivery.

Source: TransactionalMessageServiceImpl.java#check, ScheduleMessageService.java,
TimerMessageStore.java.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.layout import FIRST_TIMESTAMP, LAST_TIMESTAMP, SCHEDULE_TOPIC, Mask
from rmqstore.format.schema import PENDING, TIMESTAMP
from rmqstore.format.topics import HALF_TOPIC, OP_TOPIC, ROCKSDB_HALF_TOPIC, ROCKSDB_OP_TOPIC
from rmqstore.query.selection import Selection, choose_topics
from rmqstore.read.lookup.timers import timed
from rmqstore.read.lookup.waiting import (
    NOTHING_PENDING,
    PendingRows,
    PendingSource,
    are_newest,
    have_copies,
    integers,
    read_waiting,
)
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.spec import ReadSpec

_TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_DECIDED_TAG = "d"  # Source: TransactionalMessageUtil.java#REMOVE_TAG
_DECIDED_OFFSET = "TRANS_OFFSET"  # Source: MessageConst.java#PROPERTY_TRANS_OFFSET


def find_pending(store: PendingSource, selection: Selection, spec: ReadSpec) -> PendingRows:
    """Return the messages that are pending for the chosen topics and queues.

    The offsets that the broker keeps show which messages it has delivered. It saves them only now
    and then, so a message of the same UNIQ_KEY in the real topic shows it too.

    Args:
        store: the store to read from.
        selection: real topics and queues.
        spec: says what to do with damage. A damaged message is pending for no topic.
    """
    kinds = (_halves, _rocksdb_halves, _delayed, timed)
    pending = PendingRows.joined([kind(store, spec) for kind in kinds])
    names = pc.unique(pending.topics).to_pylist()
    chosen_topics = pa.array(choose_topics(selection, names), pa.string())
    in_topics = pc.is_in(pending.topics, value_set=chosen_topics)
    is_chosen: Mask = in_topics.to_numpy(zero_copy_only=False)
    for topic, queue_ids in (selection.assign or {}).items():
        of_topic = pc.equal(pending.topics, topic).to_numpy(zero_copy_only=False)
        is_chosen &= ~of_topic | np.isin(pending.queue_ids.to_numpy(), list(queue_ids))
    return pending.take(is_chosen)


def read_pending(
    store: PendingSource, rows: PendingRows, spec: ReadSpec, selection: Selection
) -> Iterator[pa.RecordBatch]:
    """Yield pending messages with their real topic and queue. They have no queue offset yet.

    Args:
        store: the store to read from.
        rows: the messages, from :func:`find_pending`.
        spec: how to read them.
        selection: its start and end times apply.
    """
    own = {"topic", "queueId", "queueOffset", "tagsCode", *PENDING.names}
    stored = [
        field for field in spec.schema if field.name not in own and field.name != "commitLogOffset"
    ]
    place = pa.field("commitLogOffset", pa.int64())
    times = LogFilter(
        start_timestamp=selection.start.timestamp, end_timestamp=selection.end.timestamp
    )
    record_spec = replace(spec, schema=pa.schema([*stored, place]))
    for batch in store.finder.read_places(rows.places, record_spec, times):
        places = batch.column("commitLogOffset").to_numpy()
        pending = rows.take(np.searchsorted(rows.places, places))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {"topic": pending.topics, "queueId": pending.queue_ids, "pending": pending.kinds}
        columns["queueOffset"] = columns["tagsCode"] = pa.nulls(batch.num_rows, pa.int64())
        is_time = pc.and_(
            pc.greater_equal(pending.due, FIRST_TIMESTAMP),
            pc.less_equal(pending.due, LAST_TIMESTAMP),
        )
        # The broker never delivers a message whose time is out of range.
        due = pc.if_else(is_time, pending.due, None)
        columns["dueTimestamp"] = pc.multiply(due, 1000).cast(TIMESTAMP)
        yield pa.RecordBatch.from_arrays(
            [columns[field.name].cast(field.type) for field in spec.schema], schema=spec.schema
        )


def _halves(store: PendingSource, spec: ReadSpec) -> PendingRows:
    """Return the half messages of undecided transactions.

    No op record names them, and no commit followed.
    """
    starts: dict[str, dict[int, int]] = {HALF_TOPIC: {}, OP_TOPIC: {}}
    committed = store.config.consumer_offsets(_TRANSACTION_GROUP)
    for (topic, queue_id), queue_offset in committed.items():
        if topic in starts:
            starts[topic][queue_id] = queue_offset
    halves = read_waiting(store, HALF_TOPIC, starts[HALF_TOPIC], spec)
    ops = read_waiting(store, OP_TOPIC, starts[OP_TOPIC], spec)
    if halves is None:
        return NOTHING_PENDING
    is_pending = np.ones(len(halves.places), np.bool_)
    queue_offsets = halves.table.column("queueOffset").to_numpy()
    queue_ids = halves.table.column("queueId").to_numpy()
    if ops is not None:
        decisions = ops.table.filter(pc.equal(ops.table.column("tags"), _DECIDED_TAG))
        for queue_id in pc.unique(decisions.column("queueId")).to_pylist():
            of_queue = decisions.filter(pc.equal(decisions.column("queueId"), queue_id))
            texts = b",".join(of_queue.column("body").to_pylist()).split(b",")
            decided = [int(text) for text in texts if text.isdigit() and len(text) < 19]
            is_pending &= ~((queue_ids == queue_id) & np.isin(queue_offsets, decided))
        # The broker stores a half message again when it checks the transaction; a decision on
        # either copy counts.
        keys = halves.uniq_keys.filter(pa.array(~is_pending)).drop_null()
        is_pending &= ~pc.is_in(halves.uniq_keys, value_set=keys, skip_nulls=True).to_numpy(
            zero_copy_only=False
        )
    is_pending &= are_newest(halves) & ~have_copies(store, halves, is_pending, later=False)
    return halves.rows(is_pending, "transaction", pa.nulls(len(is_pending), pa.int64()))


def _rocksdb_halves(store: PendingSource, spec: ReadSpec) -> PendingRows:
    """Return the half messages of undecided transactions of a broker that keeps them in RocksDB.

    The log tells them too: an op record names the physical offset of the half that it decides. Only
    a half that the broker no longer asks for is gone from RocksDB without an op record.

    Source: TransMessageRocksDBStore.java#deletePrepareMessage.
    """
    halves = read_waiting(store, ROCKSDB_HALF_TOPIC, {}, spec)
    if halves is None:
        return NOTHING_PENDING
    is_pending = np.ones(len(halves.places), np.bool_)
    ops = read_waiting(store, ROCKSDB_OP_TOPIC, {}, spec)
    if ops is not None:
        decided = integers(ops.property(_DECIDED_OFFSET)).drop_null()
        is_pending &= ~np.isin(halves.places, decided.to_numpy())
    is_pending &= ~have_copies(store, halves, is_pending)
    return halves.rows(is_pending, "transaction", pa.nulls(len(is_pending), pa.int64()))


def _delayed(store: PendingSource, spec: ReadSpec) -> PendingRows:
    """Return the delayed messages after the delivered offset of their level.

    The messages of a level are in queue ``level - 1``.
    """
    levels = store.config.delay_offsets()
    starts = {level - 1: queue_offset for level, queue_offset in levels.items()}
    waiting = read_waiting(store, SCHEDULE_TOPIC, starts, spec)
    if waiting is None:
        return NOTHING_PENDING
    # The offsets of a store that was not closed may be out of date, and the file may lack a level.
    own_levels = waiting.table.column("queueId").to_numpy() + 1
    unsure = ~np.isin(own_levels, list(levels)) | store.paths.has_abort
    is_pending = ~have_copies(store, waiting, unsure)
    return waiting.rows(is_pending, "delay", waiting.table.column("tagsCode").combine_chunks())
