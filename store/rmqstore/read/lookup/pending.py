"""Messages on their way: halves of transactions still undecided, delayed and timed messages still waiting.

They lie in topics of the broker's own, and know the topic and queue they are for.

Source: TransactionalMessageServiceImpl.java#check, ScheduleMessageService.java, TimerMessageStore.java.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.layout import FIRST_TIMESTAMP, LAST_TIMESTAMP, SCHEDULE_TOPIC, Mask, Positions
from rmqstore.format.schema import PENDING, TIMESTAMP, select_columns
from rmqstore.format.topics import HALF_TOPIC, OP_TOPIC, TIMER_TOPIC
from rmqstore.query.keys import Wanted
from rmqstore.query.selection import Selection, choose_topics, parse_selection
from rmqstore.read.lookup.finder import Finder
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.spec import DROPMALFORMED, FAILFAST, ReadSpec
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths

logger = logging.getLogger(__name__)
_TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_DECIDED_TAG = "d"  # Source: TransactionalMessageUtil.java#REMOVE_TAG
_QUEUE_ID_DIGITS = 9
_DELETED = "TIMER_DEL_UNIQKEY"
_COLUMNS = ("queueId", "queueOffset", "commitLogOffset", "tags", "body", "properties", "tagsCode")


class PendingSource(Protocol):
    """The part of ``read.session.StoreSession`` that is needed here."""

    paths: StorePaths
    config: BrokerConfig

    def topics(self) -> list[str]: ...
    def queue_ids(self, topic: str) -> list[int]: ...
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def plan_queues(self, selection: Selection, spec: ReadSpec) -> list[QueueSlice]: ...
    def read_queues(self, slices: Sequence[QueueSlice], spec: ReadSpec) -> Iterator[pa.RecordBatch]: ...

    @property
    def finder(self) -> Finder: ...


class PendingRows(NamedTuple):
    """Messages on their way, (n,) each, in the order of the log."""

    places: Positions
    topics: pa.Array  # string, the real ones
    queue_ids: pa.Array  # int32
    kinds: pa.Array  # string: transaction, delay or timer
    due: pa.Array  # int64, ms; null for transactions

    def take(self, rows: Positions | Mask) -> PendingRows:
        """Return the chosen rows."""
        at = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return PendingRows(self.places[at], *(column.take(pa.array(at)) for column in self[1:]))

    @classmethod
    def joined(cls, parts: Sequence[PendingRows]) -> PendingRows:
        """Return the rows of all parts, in the order of the log."""
        places = np.concatenate([part.places for part in parts])
        columns = (pa.concat_arrays(column) for column in zip(*(part[1:] for part in parts), strict=True))
        return cls(places, *columns).take(np.argsort(places, kind="stable"))


# nulls, since array would import pandas where that is installed, in every process that starts
_NONE: Final = PendingRows(
    np.empty(0, np.int64), *(pa.nulls(0, kind) for kind in (pa.string(), pa.int32(), pa.string(), pa.int64()))
)


def find_pending(store: PendingSource, selection: Selection, spec: ReadSpec) -> PendingRows:
    """Return the messages that are on their way to chosen topics and queues.

    What was delivered is told by the offsets that the broker keeps; and, since it writes those down now and then only,
    by a message of the same UNIQ_KEY in the real topic.

    Args:
        store: whose.
        selection: of real topics and queues.
        spec: says what is done with damage; a damaged message of the broker's own topics is on its way to nowhere.
    """
    found = PendingRows.joined([_halves(store, spec), _delayed(store, spec), _timed(store, spec)])
    names = pc.unique(found.topics).to_pylist()
    wanted = pc.is_in(found.topics, value_set=pa.array(choose_topics(selection, names), pa.string()))
    kept: Mask = wanted.to_numpy(zero_copy_only=False)
    for topic, queue_ids in (selection.assign or {}).items():
        of_topic = pc.equal(found.topics, topic).to_numpy(zero_copy_only=False)
        kept &= ~of_topic | np.isin(found.queue_ids.to_numpy(), list(queue_ids))
    return found.take(kept)


def read_pending(
    store: PendingSource, rows: PendingRows, spec: ReadSpec, selection: Selection
) -> Iterator[pa.RecordBatch]:
    """Yield messages that are on their way: topic and queue are the real ones, and there is no queue offset yet.

    Args:
        store: theirs.
        rows: which, see :func:`find_pending`.
        spec: how to read them.
        selection: whose times apply.
    """
    own = {"topic", "queueId", "queueOffset", "tagsCode", *PENDING.names}
    stored = [field for field in spec.schema if field.name not in own and field.name != "commitLogOffset"]
    place = pa.field("commitLogOffset", pa.int64())
    times = LogFilter(start_timestamp=selection.start.timestamp, end_timestamp=selection.end.timestamp)
    for batch in store.finder.read_places(rows.places, replace(spec, schema=pa.schema([*stored, place])), times):
        found = rows.take(np.searchsorted(rows.places, batch.column("commitLogOffset").to_numpy()))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {"topic": found.topics, "queueId": found.queue_ids, "pending": found.kinds}
        columns["queueOffset"] = columns["tagsCode"] = pa.nulls(batch.num_rows, pa.int64())
        is_time = pc.and_(pc.greater_equal(found.due, FIRST_TIMESTAMP), pc.less_equal(found.due, LAST_TIMESTAMP))
        due = pc.if_else(is_time, found.due, None)  # what is no time the broker never delivers
        columns["dueTimestamp"] = pc.multiply(due, 1000).cast(TIMESTAMP)
        yield pa.RecordBatch.from_arrays(
            [columns[field.name].cast(field.type) for field in spec.schema], schema=spec.schema
        )


class _Waiting(NamedTuple):
    """Messages of a topic of the broker's own, with what they say of themselves, (n,) each."""

    table: pa.Table
    topics: pa.Array
    queue_ids: pa.Array
    uniq_keys: pa.Array

    @property
    def places(self) -> Positions:
        found: Positions = self.table.column("commitLogOffset").to_numpy()
        return found

    def property(self, name: str) -> pa.Array:
        return _property(self.table, name)

    def rows(self, kept: Mask, kind: str, due: pa.Array) -> PendingRows:
        """Return those kept that know where they are for."""
        known = pc.and_(self.topics.is_valid(), self.queue_ids.is_valid()).to_numpy(zero_copy_only=False)
        if (kept & ~known).any():
            logger.warning("%d pending messages name no real topic and queue: left out", int((kept & ~known).sum()))
        kinds = pa.array([kind] * len(due), pa.string())
        return PendingRows(self.places, self.topics, self.queue_ids, kinds, due).take(kept & known)


def _read(store: PendingSource, topic: str, starts: dict[int, int], spec: ReadSpec) -> _Waiting | None:
    """Read a topic of the broker's own, each queue from where the broker says it is."""
    if topic not in store.topics():
        return None
    spans = {queue_id: store.queue_range(topic, queue_id) for queue_id in store.queue_ids(topic)}
    begun = {queue_id: min(max(starts.get(queue_id, 0), low), high) for queue_id, (low, high) in spans.items()}
    own = replace(
        spec, schema=select_columns(_COLUMNS), mode=FAILFAST if spec.mode == FAILFAST else DROPMALFORMED,
        tags=None, filter=None,
    )  # fmt: skip
    slices = store.plan_queues(parse_selection(subscribe=[topic], starting_offsets={topic: begun}), own)
    table = pa.Table.from_batches(store.read_queues(slices, own), own.schema).combine_chunks()
    if not table.num_rows:
        return None
    queue_ids = _integers(_property(table, "REAL_QID"), _QUEUE_ID_DIGITS).cast(pa.int32())
    return _Waiting(table, _property(table, "REAL_TOPIC"), queue_ids, _property(table, "UNIQ_KEY"))


def _property(table: pa.Table, name: str) -> pa.Array:
    found = pc.map_lookup(table.column("properties"), name, "last")
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _integers(texts: pa.Array, digits: int = 18) -> pa.Array:
    """Return whole numbers of so many digits at most, int64 (n,); null for what is none."""
    is_one = pc.match_substring_regex(texts, f"^[0-9]{{1,{digits}}}$")
    return pc.if_else(is_one, texts, None).cast(pa.int64())


def _halves(store: PendingSource, spec: ReadSpec) -> PendingRows:
    """Return the halves that no one has decided on: no op record names them, and no commit came of them."""
    offsets = store.config.consumer_offsets(_TRANSACTION_GROUP)
    starts = {topic: {queue: at for (name, queue), at in offsets.items() if name == topic} for topic in (
        HALF_TOPIC, OP_TOPIC)}  # fmt: skip
    halves, ops = (_read(store, topic, starts[topic], spec) for topic in (HALF_TOPIC, OP_TOPIC))
    if halves is None:
        return _NONE
    kept = np.ones(len(halves.places), np.bool_)
    queue_offsets = halves.table.column("queueOffset").to_numpy()
    queue_ids = halves.table.column("queueId").to_numpy()
    if ops is not None:
        named = ops.table.filter(pc.equal(ops.table.column("tags"), _DECIDED_TAG))
        for queue_id in pc.unique(named.column("queueId")).to_pylist():
            bodies = named.filter(pc.equal(named.column("queueId"), queue_id)).column("body").to_pylist()
            decided = [int(text) for text in b",".join(bodies).split(b",") if text.isdigit() and len(text) < 19]
            kept &= ~((queue_ids == queue_id) & np.isin(queue_offsets, decided))
        # A half that was asked about again is there twice, and decided when one of the two is.
        keys = halves.uniq_keys.filter(pa.array(~kept)).drop_null()
        kept &= ~pc.is_in(halves.uniq_keys, value_set=keys, skip_nulls=True).to_numpy(zero_copy_only=False)
    kept &= _are_newest(halves) & ~_have_copies(store, halves, kept, later=False)
    return halves.rows(kept, "transaction", pa.nulls(len(kept), pa.int64()))


def _delayed(store: PendingSource, spec: ReadSpec) -> PendingRows:
    """Return the messages that wait for their delay: queue ``level - 1`` of their topic, by the offsets delivered."""
    levels = store.config.delay_offsets()
    waiting = _read(store, SCHEDULE_TOPIC, {level - 1: at for level, at in levels.items()}, spec)
    if waiting is None:
        return _NONE
    kept = np.ones(len(waiting.places), np.bool_)
    # Of a store that was not closed the offsets are as old as their file; those of a level may be in none.
    unsure = ~np.isin(waiting.table.column("queueId").to_numpy() + 1, list(levels)) | store.paths.has_abort
    kept &= ~_have_copies(store, waiting, unsure)
    return waiting.rows(kept, "delay", waiting.table.column("tagsCode").combine_chunks())


def _timed(store: PendingSource, spec: ReadSpec) -> PendingRows:
    """Return the messages that wait in the timer wheel."""
    waiting = _read(store, TIMER_TOPIC, {}, spec)
    if waiting is None:
        return _NONE
    due = _integers(waiting.property("TIMER_OUT_MS"))
    late = pc.less(due, store.config.timer_read_time()).fill_null(False)  # noqa: FBT003 - Arrow's name for a value
    kept = _are_newest(waiting) & ~late.to_numpy(zero_copy_only=False)
    deletes = waiting.property(_DELETED)  # names a UNIQ_KEY, in some versions behind "topic+"
    named = pc.binary_join_element_wise(waiting.topics, waiting.uniq_keys, "+")
    gone = deletes.is_valid()
    for keys in (waiting.uniq_keys, named):
        gone = pc.or_(gone, pc.is_in(keys, value_set=deletes.drop_null(), skip_nulls=True))
    kept &= ~gone.to_numpy(zero_copy_only=False)
    kept &= ~_have_copies(store, waiting, kept)
    return waiting.rows(kept, "timer", due)


def _are_newest(waiting: _Waiting) -> Mask:
    """Return a mask (n,) of the newest of each UNIQ_KEY: checks and rolls put a message in again."""
    newest = np.zeros(len(waiting.places), np.bool_)
    seen = set[str]()
    for row in np.argsort(-waiting.places, kind="stable").tolist():
        key = waiting.uniq_keys[row].as_py()
        newest[row] = key is None or key not in seen
        if key is not None:
            seen.add(key)
    return newest


def _have_copies(store: PendingSource, waiting: _Waiting, asked: Mask, *, later: bool = True) -> Mask:
    """Return a mask (n,) of those whose UNIQ_KEY a later record of their real topic has; only of those asked for.

    Args:
        later: than they are themselves; else than the first of them.
    """
    found = np.zeros(len(waiting.places), np.bool_)
    rows = np.flatnonzero(asked & waiting.uniq_keys.is_valid().to_numpy(zero_copy_only=False))
    keys = set(waiting.uniq_keys.take(pa.array(rows)).to_pylist())
    topics = sorted(set(waiting.topics.take(pa.array(rows)).drop_null().to_pylist()))
    if not keys or not topics:
        return found
    latest: dict[tuple[str, str], int] = {}
    first = int(waiting.places.min())
    for batch in store.finder.copies(Wanted(keys=frozenset(keys)), topics, first):
        for row in batch.to_pylist():
            latest[row["topic"], row["msgId"]] = row["commitLogOffset"]  # rising
    for row in rows.tolist():
        key = (waiting.topics[row].as_py(), waiting.uniq_keys[row].as_py())
        found[row] = latest.get(key, -1) > (waiting.places[row] if later else first)
    return found
