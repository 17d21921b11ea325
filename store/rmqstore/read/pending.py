"""Pending messages: half messages of open transactions, and messages that are not due yet.

They lie in system topics of the broker, and name the topic and queue of their delivery. Timed
messages are found by the timer wheel and its log, and a record that the broker has not entered into
the wheel yet waits too. Without a wheel, they are found in the timer topic.

Source: TransactionalMessageServiceImpl.java#check, ScheduleMessageService.java,
TimerMessageStore.java.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.columns.buffers import mask_of
from rmqstore.format.layout import (
    FIRST_TIMESTAMP,
    LAST_TIMESTAMP,
    SCHEDULE_TOPIC,
    TIMER_PRECISIONS_MS,
    Mask,
    Positions,
)
from rmqstore.format.schema import PENDING, TIMESTAMP, select_columns
from rmqstore.format.topics import (
    HALF_TOPIC,
    OP_TOPIC,
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OP_TOPIC,
    TIMER_TOPIC,
)
from rmqstore.query.damage import DROPMALFORMED, FAILFAST
from rmqstore.query.selection import LookupKeys, Selection, choose_topics, parse_selection
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import read_copies, read_queues, read_records
from rmqstore.read.record_filter import ALL_RECORDS, LogFilter
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.timer import TimerUnits, pending_units

logger = logging.getLogger(__name__)

_QUEUE_ID_DIGITS = 9
_STORED = ("topic", "queueId", "queueOffset", "commitLogOffset", "properties")
_QUEUED = {OP_TOPIC: ("tags", "body"), SCHEDULE_TOPIC: ("tagsCode",)}  # besides

_DELETED = "TIMER_DEL_UNIQKEY"

_TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_DECIDED_TAG = "d"  # Source: TransactionalMessageUtil.java#REMOVE_TAG
_DECIDED_OFFSET = "TRANS_OFFSET"  # Source: MessageConst.java#PROPERTY_TRANS_OFFSET


class PendingRows(NamedTuple):
    """Pending messages, (n,) each, in the order of the log."""

    physical_offsets: Positions
    topics: pa.Array  # string, the real topics
    queue_ids: pa.Array  # int32
    kinds: pa.Array  # string: transaction, delay or timer
    due: pa.Array  # int64, ms; null for transactions

    def take(self, rows: Positions | Mask | slice) -> PendingRows:
        """Return the chosen rows."""
        numbers = np.arange(len(self.physical_offsets))[rows]
        columns = (column.take(pa.array(numbers)) for column in self[1:])
        return PendingRows(self.physical_offsets[numbers], *columns)

    @classmethod
    def joined(cls, parts: Sequence[PendingRows]) -> PendingRows:
        """Return the rows of all parts, in the order of the log."""
        physical_offsets = np.concatenate([part.physical_offsets for part in parts])
        columns = (
            pa.concat_arrays(column) for column in zip(*(part[1:] for part in parts), strict=True)
        )
        return cls(physical_offsets, *columns).take(np.argsort(physical_offsets, kind="stable"))


class Waiting(NamedTuple):
    """Messages of a system topic, and what their properties say about delivery, (n,) each."""

    table: pa.Table
    topics: pa.Array
    queue_ids: pa.Array
    uniq_keys: pa.Array

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """Return the messages of a table."""
        table = table.combine_chunks()
        queue_ids = integers(_property(table, "REAL_QID"), _QUEUE_ID_DIGITS).cast(pa.int32())
        return cls(table, _property(table, "REAL_TOPIC"), queue_ids, _property(table, "UNIQ_KEY"))

    @property
    def physical_offsets(self) -> Positions:
        physical_offsets: Positions = self.table.column("commitLogOffset").to_numpy()
        return physical_offsets

    def property(self, name: str) -> pa.Array:
        return _property(self.table, name)

    def rows(self, is_pending: Mask, kind: str, due: pa.Array) -> PendingRows:
        """Return the pending messages among these.

        Those that name no real topic and queue are logged and left out.
        """
        is_addressed = mask_of(pc.and_(self.topics.is_valid(), self.queue_ids.is_valid()))
        n_lost = np.count_nonzero(is_pending & ~is_addressed)
        if n_lost:
            logger.warning("%d pending messages name no real topic and queue: left out", n_lost)
        kinds = pa.array([kind] * len(due), pa.string())
        rows = PendingRows(self.physical_offsets, self.topics, self.queue_ids, kinds, due)
        return rows.take(is_pending & is_addressed)


def read_waiting(store: StoreParts, topic: str, starts: dict[int, int], spec: ReadSpec) -> Waiting:
    """Read a system topic, each queue from the offset up to which the broker has delivered."""
    own = _own_spec(spec, (*_STORED, *_QUEUED.get(topic, ())))
    if topic not in store.store_queues.topics():
        return Waiting.of(own.schema.empty_table())
    offsets = {}
    for queue_id in store.store_queues.ids(topic):
        low, high = store.queue_range(topic, queue_id)
        offsets[queue_id] = min(max(starts.get(queue_id, 0), low), high)
    selection = parse_selection(subscribe=[topic], starting_offsets={topic: offsets})
    slices = [*store.ranges.resolve(selection, own)]
    return Waiting.of(pa.Table.from_batches(read_queues(store, slices, own), own.schema))


def read_waiting_at(
    store: StoreParts, topic: str, physical_offsets: Positions, spec: ReadSpec
) -> Waiting:
    """Read records of a system topic at physical offsets (n,), rising.

    Where there is none, any more or at all, nothing is read.
    """
    own = _own_spec(spec, _STORED)
    batches = read_records(store, physical_offsets, own, ALL_RECORDS)
    table = pa.Table.from_batches(batches, own.schema)
    return Waiting.of(table.filter(pc.equal(table.column("topic"), topic)))


def _own_spec(spec: ReadSpec, columns: Sequence[str]) -> ReadSpec:
    return replace(
        spec,
        schema=select_columns(columns),
        mode=FAILFAST if spec.mode == FAILFAST else DROPMALFORMED,
        tags=None,
        filter=None,
    )


def _property(table: pa.Table, name: str) -> pa.Array:
    values = pc.map_lookup(table.column("properties"), name, "last")
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def integers(texts: pa.Array, digits: int = 18) -> pa.Array:
    """Return integers of at most ``digits`` digits, int64 (n,); null for any other text."""
    is_integer = pc.match_substring_regex(texts, f"^[0-9]{{1,{digits}}}$")
    return pc.if_else(is_integer, texts, None).cast(pa.int64())


def are_newest(waiting: Waiting) -> Mask:
    """Return a mask (n,) of the newest message of each UNIQ_KEY.

    Checks of transactions and rolls of the timer store a message again.
    """
    newest = np.zeros(len(waiting.physical_offsets), np.bool_)
    seen = set[str]()
    for row in np.argsort(-waiting.physical_offsets, kind="stable").tolist():
        key = waiting.uniq_keys[row].as_py()
        newest[row] = key is None or key not in seen
        if key is not None:
            seen.add(key)
    return newest


def have_copies(
    store: StoreParts, waiting: Waiting, candidates: Mask, spec: ReadSpec, *, later: bool = True
) -> Mask:
    """Return a mask (n,) of the candidates whose UNIQ_KEY a later record of their real topic has.

    Args:
        store: the store to read from.
        waiting: the messages of the system topic.
        candidates: mask (n,) of those to look up.
        spec: says what to do where the log is gone.
        later: whether that record must be later than the candidate itself; if not, than the first
            of all messages.
    """
    are_delivered = np.zeros(len(waiting.physical_offsets), np.bool_)
    rows = np.flatnonzero(candidates & waiting.uniq_keys.is_valid().to_numpy(zero_copy_only=False))
    keys = set(waiting.uniq_keys.take(pa.array(rows)).to_pylist())
    topics = sorted(set(waiting.topics.take(pa.array(rows)).drop_null().to_pylist()))
    if not keys or not topics:
        return are_delivered
    latest: dict[tuple[str, str], int] = {}
    first = int(waiting.physical_offsets.min())
    named = LookupKeys(msg_ids=frozenset(keys))
    fails = spec.fail_on_data_loss
    for batch in read_copies(store, named, topics, first, fail_on_data_loss=fails):
        for row in batch.to_pylist():
            key = row["topic"], row["msgId"]
            latest[key] = max(latest.get(key, -1), row["commitLogOffset"])
    for row in rows.tolist():
        key = (waiting.topics[row].as_py(), waiting.uniq_keys[row].as_py())
        are_delivered[row] = latest.get(key, -1) > (
            waiting.physical_offsets[row] if later else first
        )
    return are_delivered


def timed(store: StoreParts, spec: ReadSpec) -> PendingRows:
    """Return the messages that wait for their second of delivery.

    With timerRocksDBEnable a broker keeps no timer log. Then the timer topic shows what waits,
    though the database ``rocksdbstore`` has it as well.

    Source: TimerMessageStore.java#recover, #reviseQueueOffset.
    """
    progress = store.config.timer_progress()
    units = pending_units(store.paths, progress)
    if units is None:  # without a wheel, the timer topic alone shows them
        messages = read_waiting(store, TIMER_TOPIC, {}, spec)
        part = _Timed.waiting(messages, TIMER_PRECISIONS_MS[-1])
        is_late = mask_of(pc.less(part.due, progress.read_time).fill_null(fill_value=False))
        is_pending = are_newest(messages) & ~is_late & ~_are_cancelled(part, [part])
        is_pending &= ~have_copies(store, messages, is_pending, spec)
        return messages.rows(is_pending, "timer", part.due)
    # The record after that of the last unit is the one that a broker enters next when it starts.
    last = read_waiting_at(store, TIMER_TOPIC, np.array([units.last_physical_offset]), spec)
    named = last.table.column("queueOffset").to_pylist()
    following = named[0] + 1 if named else progress.queue_offset
    entered = read_waiting_at(store, TIMER_TOPIC, units.physical_offsets, spec)
    waiting = read_waiting(store, TIMER_TOPIC, {0: following}, spec)
    # a second entry of a record that is in the wheel would be the same message
    has_unit = np.isin(waiting.physical_offsets, units.physical_offsets)
    waiting = Waiting.of(waiting.table.filter(pa.array(~has_unit)))
    parts = [_Timed.entered(entered, units), _Timed.waiting(waiting, units.precision)]
    rows = []
    for part in parts:
        is_pending = ~_are_cancelled(part, parts)
        if not part.are_entered or store.paths.has_abort:
            # Of a store that was not closed, the wheel may be older than what was delivered.
            is_pending &= are_newest(part.messages)
            is_pending &= ~have_copies(store, part.messages, is_pending, spec)
        rows.append(part.messages.rows(is_pending, "timer", part.due))
    return PendingRows.joined(rows)


class _Timed(NamedTuple):
    """Messages of the timer topic, cancellations among them, (n,) each."""

    messages: Waiting
    due: pa.Array  # int64, ms
    finals: pa.Array  # int64, the seconds that they are due in, in units of the precision
    seconds: pa.Array  # int64, the seconds of their slots: an earlier one if they are due far ahead
    are_entered: bool  # whether they are in the wheel

    @classmethod
    def entered(cls, messages: Waiting, units: TimerUnits) -> _Timed:
        """Return the messages of units."""
        due = integers(messages.property("TIMER_OUT_MS"))
        rows = np.searchsorted(units.physical_offsets, messages.physical_offsets)
        seconds = pa.array(units.seconds[rows])
        are_final = pa.array(~units.are_rolled[rows])
        finals = pc.if_else(are_final, seconds, pc.divide(due, units.precision))
        return cls(messages, due, finals, seconds, are_entered=True)

    @classmethod
    def waiting(cls, messages: Waiting, precision: int) -> _Timed:
        """Return messages that are in no slot yet."""
        due = integers(messages.property("TIMER_OUT_MS"))
        seconds = pc.divide(due, precision)
        return cls(messages, due, seconds, seconds, are_entered=False)

    @property
    def deletes(self) -> pa.Array:
        """What each message cancels: a UNIQ_KEY, after "topic+" in some versions; else null."""
        return self.messages.property(_DELETED)


def are_cancelled(messages: Waiting, precision: int) -> Mask:
    """Return a mask (n,) of messages that others of the same second cancel, and of the latter."""
    part = _Timed.waiting(messages, precision)
    return _are_cancelled(part, [part])


def _are_cancelled(part: _Timed, others: list[_Timed]) -> Mask:
    """Return a mask (n,) of the cancelled messages and of their cancellations.

    A cancellation holds for messages of its own slot alone. Slots of messages that are due far
    ahead are in between: such a message meets all those of the same final second in the end.

    Args:
        others: all messages that may cancel them.

    Source: TimerMessageStore.java#dequeue, #TimerDequeueGetMessageService.
    """
    cancelled = part.deletes.is_valid()
    topics, uniq_keys = part.messages.topics, part.messages.uniq_keys
    names = (uniq_keys, pc.binary_join_element_wise(topics, uniq_keys, "+"))
    for other in others:
        in_last_slot = pc.equal(other.seconds, other.finals)
        in_slot = pc.if_else(in_last_slot, other.seconds, None)
        for own, of_other in ((part.finals, other.finals), (part.seconds, in_slot)):
            targets = _joined(other.deletes, of_other).drop_null()
            for name in names:
                found = pc.is_in(_joined(name, own), value_set=targets, skip_nulls=True)
                cancelled = pc.or_(cancelled, found)
    return mask_of(cancelled)


def _joined(names: pa.Array, seconds: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(seconds.cast(pa.string()), names, "@")


def find_pending(store: StoreParts, selection: Selection, spec: ReadSpec) -> PendingRows:
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
    is_chosen = mask_of(pc.is_in(pending.topics, value_set=chosen_topics))
    for topic, queue_ids in (selection.assign or {}).items():
        of_topic = pc.equal(pending.topics, topic).to_numpy(zero_copy_only=False)
        is_chosen &= ~of_topic | np.isin(pending.queue_ids.to_numpy(), list(queue_ids))
    return pending.take(is_chosen)


def read_pending(
    store: StoreParts, rows: PendingRows, spec: ReadSpec, selection: Selection
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
    physical_offset = pa.field("commitLogOffset", pa.int64())
    times = LogFilter(
        start_timestamp=selection.start.timestamp, end_timestamp=selection.end.timestamp
    )
    record_spec = replace(spec, schema=pa.schema([*stored, physical_offset]))
    for batch in read_records(store, rows.physical_offsets, record_spec, times):
        physical_offsets = batch.column("commitLogOffset").to_numpy()
        pending = rows.take(np.searchsorted(rows.physical_offsets, physical_offsets))
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


def _halves(store: StoreParts, spec: ReadSpec) -> PendingRows:
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
    is_pending = np.ones(len(halves.physical_offsets), np.bool_)
    queue_offsets = halves.table.column("queueOffset").to_numpy()
    queue_ids = halves.table.column("queueId").to_numpy()
    decisions = ops.table.filter(pc.equal(ops.table.column("tags"), _DECIDED_TAG))
    for queue_id in pc.unique(decisions.column("queueId")).to_pylist():
        of_queue = decisions.filter(pc.equal(decisions.column("queueId"), queue_id))
        texts = b",".join(of_queue.column("body").to_pylist()).split(b",")
        decided = [int(text) for text in texts if text.isdigit() and len(text) < 19]
        is_pending &= ~((queue_ids == queue_id) & np.isin(queue_offsets, decided))
    # The broker stores a half message again when it checks the transaction; a decision on either
    # copy counts.
    keys = halves.uniq_keys.filter(pa.array(~is_pending)).drop_null()
    is_pending &= ~mask_of(pc.is_in(halves.uniq_keys, value_set=keys, skip_nulls=True))
    is_pending &= are_newest(halves) & ~have_copies(store, halves, is_pending, spec, later=False)
    return halves.rows(is_pending, "transaction", pa.nulls(len(is_pending), pa.int64()))


def _rocksdb_halves(store: StoreParts, spec: ReadSpec) -> PendingRows:
    """Return the half messages of undecided transactions of a broker that keeps them in RocksDB.

    The log shows them too: an op record names the physical offset of the half that it decides. Only
    a half that the broker no longer asks for is gone from RocksDB without an op record.

    Source: TransMessageRocksDBStore.java#deletePrepareMessage.
    """
    halves = read_waiting(store, ROCKSDB_HALF_TOPIC, {}, spec)
    ops = read_waiting(store, ROCKSDB_OP_TOPIC, {}, spec)
    decided = integers(ops.property(_DECIDED_OFFSET)).drop_null()
    is_pending = ~np.isin(halves.physical_offsets, decided.to_numpy())
    is_pending &= ~have_copies(store, halves, is_pending, spec)
    return halves.rows(is_pending, "transaction", pa.nulls(len(is_pending), pa.int64()))


def delay_levels(store: StoreParts) -> dict[int, tuple[int, int]]:
    """Return the next queue offset to deliver by delay level, and the end of its queue.

    A broker that starts sets an offset after the end back to it, and never delivers what waits
    before it.

    Source: ScheduleMessageService.java#correctDelayOffset.
    """
    with_queue = store.store_queues.ids(SCHEDULE_TOPIC)
    levels = {}
    for level, queue_offset in store.config.delay_offsets().items():
        has_queue = level - 1 in with_queue
        end = store.queue_range(SCHEDULE_TOPIC, level - 1)[1] if has_queue else 0
        levels[level] = queue_offset, end
    return levels


def delivered_offsets(store: StoreParts) -> dict[int, int]:
    """Return the next queue offset to deliver by delay level, without those after their queue."""
    known = {}
    for level, (queue_offset, end) in delay_levels(store).items():
        if queue_offset <= end:
            known[level] = queue_offset
            continue
        logger.warning(
            "%s: the offset %d of delay level %d lies after the end of its queue, %d: what was "
            "delivered is found by the messages themselves; a broker that starts delivers none of "
            "the level that is there",
            store.paths.config / "delayOffset.json",
            queue_offset,
            level,
            end,
        )
    return known


def _delayed(store: StoreParts, spec: ReadSpec) -> PendingRows:
    """Return the delayed messages after the delivered offset of their level.

    The messages of a level are in queue ``level - 1``.
    """
    levels = delivered_offsets(store)
    starts = {level - 1: queue_offset for level, queue_offset in levels.items()}
    waiting = read_waiting(store, SCHEDULE_TOPIC, starts, spec)
    # The offsets of a store that was not closed may be out of date, and the file may lack a level.
    own_levels = waiting.table.column("queueId").to_numpy() + 1
    unsure = ~np.isin(own_levels, list(levels)) | store.paths.has_abort
    is_pending = ~have_copies(store, waiting, unsure, spec)
    return waiting.rows(is_pending, "delay", waiting.table.column("tagsCode").combine_chunks())
