"""Turns columns of messages, as users give them, into columns of records.

This sets properties, ids and delays, and checks limits. Errors name RocketMQ's PutMessageStatus.

Source: DefaultMQProducerImpl.java and SendMessageProcessor.java for what a send adds;
HookUtils.java and MessageExtEncoder.java for what is refused; LmqDispatch.java and
MultiDispatchUtils.java for light message queues.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import time_ns
from typing import Any, Final, Never, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError, IllegalRowError, OptionError
from rmqstore.format.columns.buffers import (
    array_bytes,
    booleans,
    in_calendar,
    lengths_of,
    mask_of,
    numbers,
    texts,
)
from rmqstore.format.columns.decode import Hosts, hex_rows, offset_ids, pack_host, pack_hosts
from rmqstore.format.columns.dispatch_requests import DispatchProperties, rows_by_queue
from rmqstore.format.columns.encode import Lmqs, RecordColumns, TopicColumn
from rmqstore.format.columns.lmq import is_dispatched, offset_strings, require_short
from rmqstore.format.columns.property_encode import (
    IllegalPropertyError,
    PropertyMaps,
    PropertyStrings,
    property_maps,
    property_strings,
)
from rmqstore.format.compression import compressor
from rmqstore.format.hashing import java_hashes
from rmqstore.format.layout import (
    DELAY_LEVELS_MS,
    LMQ_PREFIX,
    MAX_PROPERTIES_BYTES,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_QUEUE_OFFSET,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
    SysFlag,
)
from rmqstore.format.schema import ASSIGNED, WRITE_TYPES
from rmqstore.format.topics import topic_fault
from rmqstore.storage.broker.broker_run import parse_release
from rmqstore.storage.files.paths import can_have_queue
from rmqstore.storage.queue.next_offsets import NextOffsets

_INNER: Final = "INNER_"  # how the names of these properties begin
_NOT_BLANK: Final = r"\S"

_ABSENT: Final = pa.nulls(1, pa.string())[0]

Refuse = Callable[[int, str, str], Never]

_NO_HOST = "0.0.0.0:0"

# The property that a column sets. The column takes precedence over the column ``properties``.
_PROPERTY_OF: Final = {
    "tags": PROPERTY_TAGS,
    "keys": PROPERTY_KEYS,
    "msgId": PROPERTY_UNIQ_KEY,
    "shardingKey": PROPERTY_SHARDING_KEY,
}

SELECTORS: Final = ("roundRobin", "hash", "random")
# A producer's selector that is refused. Source: SelectMessageQueueByMachineRoom.java.
MACHINE_ROOM_SELECTOR: Final = "machineRoom"


def find_lmqs(
    maps: PropertyMaps, overrides: dict[str, pa.StringArray], topics: TopicColumn, refuse: Refuse
) -> Lmqs | None:
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
    explicit = maps.column(PROPERTY_INNER_NUM)
    if explicit is not None and explicit.null_count < len(explicit):
        reason = f"property {PROPERTY_INNER_NUM} is that of an inner batch, which is not written"
        refuse(int(np.argmax(mask_of(explicit.is_valid()))), "MESSAGE_ILLEGAL", reason)
    named = maps.column(PROPERTY_MULTI_DISPATCH)
    if named is None:
        return None
    # Source: MessageExtBrokerInner.java#needDispatchLMQ.
    is_named = pc.fill_null(pc.match_substring_regex(named, _NOT_BLANK), fill_value=False)
    is_lmq = mask_of(is_named) & topics.where(lambda topic: is_dispatched(topic.encode()))
    if not is_lmq.any():
        return None
    rows = np.flatnonzero(is_lmq)
    lists = pc.split_pattern(named.take(numbers(rows)), ",")
    rows = np.repeat(rows, np.diff(np.from_dlpack(lists.offsets)))
    queues = TopicColumn.of(lists.flatten())
    _require_lmqs(rows, queues, refuse)
    kept = maps.column(PROPERTY_MULTI_QUEUE_OFFSET)
    if kept is not None:
        overrides[PROPERTY_MULTI_QUEUE_OFFSET] = pc.if_else(booleans(is_lmq), _ABSENT, kept)
    return Lmqs(rows, queues)


def _require_lmqs(rows: np.ndarray, queues: TopicColumn, refuse: Refuse) -> None:
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


def with_lmq_offsets(
    columns: RecordColumns, lmqs: Lmqs, offsets: NextOffsets, first_row: int
) -> RecordColumns:
    """Return rows with the next offset of each light message queue that they name.

    Raises:
        IllegalMessageError: the properties of a row become too long.
    """
    queue_offsets = offsets.assign(lmqs.queues, lmqs.queue_ids)
    strings = offset_strings(len(columns), lmqs.rows, queue_offsets)
    properties = columns.properties.extended(strings)
    require_short(properties.lengths, first_row)
    return replace(columns, properties=properties)


class UniqueKeys:
    """Generates UNIQ_KEYs from an address, a process id, a random number, the time and a counter.

    Source: MessageClientIDSetter.java.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._n_made = 0
        own = ipaddress.ip_address(own_address()).packed
        self._head = own + (os.getpid() & 0xFFFF).to_bytes(2) + secrets.token_bytes(4)
        self._started_ms = now_ms()

    def make(self, count: int) -> pa.StringArray:
        """Return new keys, string (count,)."""
        started = datetime.fromtimestamp(self._started_ms / 1000).astimezone()
        month = started.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        numbers = np.arange(self._n_made, self._n_made + count, dtype=np.int64)
        self._n_made += count
        tails = np.empty(count, np.dtype([("time", ">i4"), ("counter", ">u2")]))
        # The counter has 16 bits, so the time advances by a millisecond every 65,536 keys.
        tails["time"] = int((started - month).total_seconds() * 1000) + (numbers >> 16)
        tails["counter"] = numbers & 0xFFFF
        headers = np.broadcast_to(np.frombuffer(self._head, np.uint8), (count, len(self._head)))
        tail_bytes = tails.view(np.uint8).reshape(count, tails.dtype.itemsize)
        return hex_rows(np.hstack((headers, tail_bytes)))


def are_offset_ids(ids: pa.StringArray, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return a mask (n,) of the msgIds that are not a UNIQ_KEY but the row's offset message id.

    Args:
        ids: the msgIds of the rows, (n,).
        batch: the rows. Those that were read from a store have other columns that give the offset
            message id.
    """
    names = set(batch.schema.names)
    if "offsetMsgId" in names:
        return pc.fill_null(pc.equal(ids, batch.column("offsetMsgId")), fill_value=False)
    if not {"storeHost", "commitLogOffset"} <= names:
        return pa.repeat(pa.scalar(value=False), len(ids))
    hosts = batch.column("storeHost")
    offsets = batch.column("commitLogOffset")
    known = pc.and_(hosts.is_valid(), offsets.is_valid())
    own = offset_ids(pack_hosts(hosts.fill_null(_NO_HOST)), offsets.fill_null(0).to_numpy())
    return pc.fill_null(pc.and_(known, pc.equal(ids, own)), fill_value=False)


def own_address() -> str:
    """Return this host's IPv4 address, or the loopback address if it has no other."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How messages are made, for all rows of a write.

    Source: MessageStoreConfig.java, DefaultMQProducer.java for the defaults.
    """

    topic: str | None = None
    # of topics that exist, and the least of those that are made
    queue_nums: Mapping[str, int] = field(default_factory=dict)
    default_queue_nums: int = 4
    queue_selector: str = "roundRobin"
    compression: str = "none"
    compress_over: int = 4096
    store_host: str = "127.0.0.1:10911"
    born_host: str | None = None
    make_uniq_key: bool = True
    allow_system_topics: bool = False
    max_message_size: int = 4 << 20
    # The release of the broker that will open the store, such as 5.3.3; None if only its
    # files show it. Records that an older broker could not read are refused.
    broker_version: str | None = None
    n_delay_levels: int = len(DELAY_LEVELS_MS)  # of the store's broker

    def __post_init__(self) -> None:
        """Refuse values out of their domain."""
        if self.queue_selector == MACHINE_ROOM_SELECTOR:
            raise OptionError(
                "`queue_selector` 'machineRoom': RocketMQ's "
                "SelectMessageQueueByMachineRoom selects no queue, so a send with it "
                "fails, and all queues of a store are of one broker; use one of "
                f"{', '.join(SELECTORS)}, or give queueId"
            )
        if self.queue_selector not in SELECTORS:
            raise OptionError(
                f"`queue_selector` {self.queue_selector!r}: must be one of {', '.join(SELECTORS)}"
            )
        if self.default_queue_nums < 1:
            raise OptionError(
                f"`default_queue_nums` {self.default_queue_nums}: must be a positive integer"
            )
        compressor(self.compression)
        if self.broker_version is not None:
            parse_release(self.broker_version)


class ArrowStream(Protocol):
    """Rows that are offered through Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def record_batches(rows: pa.RecordBatch | ArrowStream) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches, one at a time.

    Args:
        rows: a ``pyarrow.RecordBatch``, or an object with ``__arrow_c_stream__``, such as a
            ``pyarrow.Table``, a pandas or Polars ``DataFrame`` or a DuckDB relation.

    Raises:
        TypeError: ``rows`` is neither.
    """
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(rows)
    else:
        raise TypeError(
            "expected a pyarrow.RecordBatch, or an object with __arrow_c_stream__ "
            f"(a pyarrow Table, a pandas or Polars DataFrame), got {type(rows).__name__}; "
            "pyarrow.table({'topic': [...], 'body': [...]}) makes a table of lists"
        )


class MessageMaker:
    """Makes columns of records from batches of messages.

    The round robin over queues and the counter of ids continue from batch to batch.

    Args:
        spec: how messages are made.
        turn: the queue at which the round robin begins, another one for each parallel task.
        keys: makes the unique keys of messages that have none.
        consequence: what a refused row means for its batch.
    """

    def __init__(
        self,
        spec: WriteSpec,
        turn: int = 0,
        keys: UniqueKeys | None = None,
        *,
        consequence: str = "nothing was written",
    ) -> None:
        self.spec = spec
        self._consequence = consequence
        self._turns: dict[str, int] = {}
        self._first_turn = turn
        self._ids = keys or UniqueKeys(now_ms)
        self._born_host = spec.born_host or f"{own_address()}:0"
        pack_host(spec.store_host)
        self._random = np.random.default_rng()

    def make(self, batch: pa.RecordBatch, first_row: int = 1) -> RecordColumns:
        """Return the columns of the records for a batch.

        Args:
            batch: columns of WRITE_TYPES, at least body. Columns of ASSIGNED only serve to
                recognise offset message ids.
            first_row: number of the first row, for errors, which count rows from 1.

        Raises:
            IllegalMessageError: a row cannot be stored; the error names RocketMQ's status.
        """

        def refuse(row: int, status: str, reason: str) -> Never:
            text = f"{status}: {reason}; {self._consequence}"
            raise IllegalRowError(first_row + row, text)

        n = len(batch)
        columns = _checked(batch)
        topics = self._topics(columns, n, refuse)
        bodies, flags = self._bodies(columns["body"], refuse)
        queue_ids = self._queue_ids(topics, columns, n, refuse)
        try:
            maps = property_maps(columns.get("properties"), n)
        except IllegalPropertyError as err:
            refuse(err.row, "MESSAGE_ILLEGAL", err.reason)
        overrides = {
            name: columns[column] for column, name in _PROPERTY_OF.items() if column in columns
        }
        uniq_keys = self._uniq_keys(maps, batch, columns, n)
        if uniq_keys is not None:
            overrides[PROPERTY_UNIQ_KEY] = uniq_keys
        topics, queue_ids = _delay(
            overrides, maps, topics, queue_ids, columns, self.spec.n_delay_levels
        )
        lmqs = find_lmqs(maps, overrides, topics, refuse)
        # The CRC of a whole record belongs to the record that it was read from.
        maps = maps.without([*overrides, PROPERTY_CRC32])
        properties = self._property_strings(maps, overrides, refuse)
        born_timestamps = self._born_timestamps(columns.get("bornTimestamp"), n, refuse)
        born_hosts = Hosts.constant(self._born_host, n)
        if "bornHost" in columns:
            born_hosts = pack_hosts(columns["bornHost"].fill_null(texts([self._born_host])[0]))
        return RecordColumns(
            topics=topics,
            queue_ids=queue_ids,
            bodies=bodies,
            properties=properties,
            dispatched=DispatchProperties.choose(
                lambda name: overrides[name] if name in overrides else maps.column(name)
            ),
            flags=_numbers(columns.get("flag"), n),
            sys_flags=flags,
            born_timestamps=born_timestamps,
            born_hosts=born_hosts,
            store_hosts=Hosts.constant(self.spec.store_host, n),
            reconsume_times=_numbers(columns.get("reconsumeTimes"), n),
            prepared_transaction_offsets=np.broadcast_to(np.int64(0), n),
            lmqs=lmqs,
        )

    @staticmethod
    def _born_timestamps(
        given: pa.TimestampArray | None, n: int, refuse: Refuse
    ) -> NDArray[np.int64]:
        now = now_ms()
        if given is None:
            return np.broadcast_to(np.int64(now), n)
        times = _numbers(given.view(pa.int64()), n, now * 1000) // 1000
        outside = np.flatnonzero(~in_calendar(times))
        if len(outside):  # a broker would take it, and readers could not show it
            row = int(outside[0])
            text = f"bornTimestamp {times[row]} ms is not in the years 1 to 9999"
            refuse(row, "MESSAGE_ILLEGAL", text)
        return times

    def _topics(self, columns: Mapping[str, pa.Array], n: int, refuse: Refuse) -> TopicColumn:
        given = columns.get("topic")
        if self.spec.topic:
            topics = TopicColumn.constant(self.spec.topic, n)
        elif given is None:
            raise IllegalMessageError(
                "no topic: give a column named topic, or WriteSpec.topic for all rows"
            )
        elif given.null_count:
            refuse(_first_null(given), "MESSAGE_ILLEGAL", "topic is null")
        else:
            topics = TopicColumn.of(given)
        for code, topic in enumerate(topics.names):
            reason = topic_fault(topic, allow_system=self.spec.allow_system_topics)
            if reason:
                refuse(int(np.argmax(topics.codes == code)), "MESSAGE_ILLEGAL", reason)
        return topics

    def _bodies(
        self, bodies: pa.BinaryArray, refuse: Refuse
    ) -> tuple[pa.BinaryArray, NDArray[np.int32]]:
        flags = np.zeros(len(bodies), np.int32)
        if bodies.null_count:
            refuse(_first_null(bodies), "MESSAGE_ILLEGAL", "body is null")
        pack, flag = compressor(self.spec.compression)
        lengths = lengths_of(bodies)
        if pack is not None:
            rows = np.flatnonzero(lengths >= self.spec.compress_over)
            if len(rows):
                flags[rows] = int(SysFlag.COMPRESSED) | flag
                packed = [pack(body) for body in bodies.take(numbers(rows)).to_pylist()]
                mask = booleans(flags != 0)
                bodies = pc.replace_with_mask(bodies, mask, pa.array(packed, pa.binary()))
                lengths = lengths_of(bodies)
        large = np.flatnonzero(lengths > self.spec.max_message_size)
        if len(large):
            row = int(large[0])
            limit = self.spec.max_message_size
            text = f"a body of {int(lengths[row])} bytes, maxMessageSize is {limit}"
            refuse(row, "MESSAGE_ILLEGAL", text)
        return bodies, flags

    @staticmethod
    def _property_strings(
        maps: PropertyMaps, overrides: dict[str, pa.StringArray], refuse: Refuse
    ) -> PropertyStrings:
        try:
            strings = property_strings(maps, overrides)
        except IllegalPropertyError as err:
            refuse(err.row, "MESSAGE_ILLEGAL", err.reason)
        if int(strings.lengths.max(initial=0)) > MAX_PROPERTIES_BYTES:
            row = int(strings.lengths.argmax())
            text = (
                f"properties of {int(strings.lengths[row])} bytes, "
                f"at most {MAX_PROPERTIES_BYTES} are allowed"
            )
            refuse(row, "PROPERTIES_SIZE_EXCEEDED", text)
        return strings

    def _queue_ids(
        self, topics: TopicColumn, columns: Mapping[str, pa.Array], n: int, refuse: Refuse
    ) -> NDArray[np.int32]:
        """Choose queues: the given one, otherwise as the selector says.

        The selector ``hash`` takes rows without a sharding key in turn.
        """
        given = columns.get("queueId")
        chosen = np.empty(n, np.int32)
        keys = columns.get("shardingKey") if self.spec.queue_selector == "hash" else None
        hashes = None
        is_keyed = np.zeros(n, np.bool_)
        if keys is not None:
            is_keyed = mask_of(keys.is_valid())
            hashes = java_hashes(*array_bytes(keys.fill_null("").cast(pa.binary())))
        for rows in rows_by_queue(topics.codes, np.zeros(n, np.int32)):
            topic = topics.names[int(topics.codes[rows[0]])]
            count = self.spec.queue_nums.get(topic, self.spec.default_queue_nums)
            if hashes is not None:
                # Source: SelectMessageQueueByHash.java: the absolute value of Java's remainder.
                chosen[rows] = np.abs(np.fmod(hashes[rows].astype(np.int64), count))
            if self.spec.queue_selector == "random":
                # Source: SelectMessageQueueByRandom.java
                chosen[rows] = self._random.integers(count, size=len(rows))
                continue
            turning = rows[~is_keyed[rows]]
            turn = self._turns.get(topic, self._first_turn)
            chosen[turning] = (turn + np.arange(len(turning))) % count
            self._turns[topic] = turn + len(turning)
        if given is not None:
            is_given = mask_of(given.is_valid())
            chosen[is_given] = _numbers(given, n)[is_given]
            if (chosen < 0).any():
                row = int(np.argmax(chosen < 0))
                refuse(row, "MESSAGE_ILLEGAL", f"queueId {int(chosen[row])}")
        return chosen

    def _uniq_keys(
        self, maps: PropertyMaps, batch: pa.RecordBatch, columns: Mapping[str, pa.Array], n: int
    ) -> pa.StringArray | None:
        """Return UNIQ_KEY from msgId or from the properties, generated where both lack it.

        A msgId that is an offset message id does not count.
        """
        keys = maps.column(PROPERTY_UNIQ_KEY)
        ids = columns.get("msgId")
        if ids is not None:
            others = pa.nulls(n, pa.string()) if keys is None else keys
            keys = pc.if_else(are_offset_ids(ids, batch), others, ids)
        if not self.spec.make_uniq_key or (keys is not None and not keys.null_count):
            return keys
        if keys is None:
            return self._ids.make(n)
        made = self._ids.make(keys.null_count)
        return pc.replace_with_mask(keys, keys.is_null(), made)


def now_ms() -> int:
    """Return the time in epoch ms."""
    return time_ns() // 1_000_000


def _checked(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of a batch, cast to their own types.

    Raises:
        IllegalMessageError: a column is unknown or cannot be cast, or body is missing.
    """
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in ASSIGNED:
            continue
        if name in columns:
            raise IllegalMessageError(f"there are two columns {name}, of which one would be lost")
        kind = WRITE_TYPES.get(name)
        if kind is None:
            raise IllegalMessageError(
                f"column {name} is unknown; a message has {', '.join(WRITE_TYPES)}"
            )
        try:
            columns[name] = column if column.type == kind else column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as err:
            raise IllegalMessageError(
                f"column {name} must be {kind}, not {column.type} ({err})"
            ) from err
    if "body" not in columns:
        raise IllegalMessageError(
            f"column body is missing; there are {', '.join(batch.schema.names) or 'none'}"
        )
    return columns


def _numbers(column: pa.Array | None, n: int, default: int = 0) -> NDArray[Any]:
    if column is None:
        return np.broadcast_to(np.int32(default), n)
    if column.null_count:
        kind = numbers(np.array([default])).cast(column.type)
        column = column.fill_null(kind[0])
    return np.from_dlpack(column)


def _first_null(column: pa.Array) -> int:
    """Return the row of the first null of a column that has one."""
    return int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))


def _delay(
    overrides: dict[str, pa.StringArray],
    maps: PropertyMaps,
    topics: TopicColumn,
    queue_ids: NDArray[np.int32],
    columns: Mapping[str, pa.Array],
    n_levels: int,
) -> tuple[TopicColumn, NDArray[np.int32]]:
    """Send delayed messages to the schedule topic.

    Their properties keep their own topic and queue.

    Source: HookUtils.java#transformDelayLevelMessage.
    """
    given = columns.get("delayTimeLevel")
    if given is None:
        return topics, queue_ids
    n = len(queue_ids)
    levels = np.minimum(_numbers(given, n), n_levels)
    delayed = levels > 0
    mask = booleans(delayed)
    overrides[PROPERTY_DELAY] = pc.if_else(mask, numbers(levels).cast(pa.string()), _ABSENT)
    if not delayed.any():
        return topics, queue_ids
    names = texts(topics.names).take(numbers(topics.codes))
    for name, own in (
        (PROPERTY_REAL_TOPIC, names),
        (PROPERTY_REAL_QUEUE_ID, numbers(queue_ids).cast(pa.string())),
    ):
        # a message that was delayed before, and is not now, keeps what its properties say
        kept = maps.column(name)
        overrides[name] = pc.if_else(mask, own, _ABSENT if kept is None else kept)
    schedule_queue_ids = np.where(delayed, levels - 1, queue_ids).astype(np.int32)
    distinct = [*dict.fromkeys([*topics.names, SCHEDULE_TOPIC])]
    codes = np.where(delayed, distinct.index(SCHEDULE_TOPIC), topics.codes).astype(np.int32)
    return TopicColumn(distinct, codes), schedule_queue_ids
