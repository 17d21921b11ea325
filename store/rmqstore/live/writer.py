"""Sends messages to running brokers, in batches, at least once.

Source: SendMessageRequestHeaderV2.java; MessageDecoder.java; MessageBatch.java.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import (
    BrokerUnreachableError,
    IllegalMessageError,
    OptionError,
    RmqStoreError,
    StoreStateError,
)
from rmqstore.format.columns.buffers import (
    array_bytes,
    fixed_width,
    join,
    lengths_of,
    mask_of,
    numbers,
)
from rmqstore.format.columns.decode import hex_rows
from rmqstore.format.columns.dispatch_requests import rows_by_queue
from rmqstore.format.columns.encode import RecordColumns
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.layout import (
    INNER_HEAD,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_DELAY,
    PROPERTY_UNIQ_KEY,
)
from rmqstore.format.schema import RESERVED_PROPERTIES
from rmqstore.format.topics import RETRY_PREFIX, is_system_topic
from rmqstore.live.broker import LiveBroker
from rmqstore.live.cluster import LiveBrokers
from rmqstore.live.location import LiveLocation
from rmqstore.live.patience import Patience
from rmqstore.live.sending import Sender, SendQueue, SendRequest
from rmqstore.remoting import RequestCode
from rmqstore.spans import QueueKey
from rmqstore.storage.files.lifetime import OpenedInTurns, Turns, in_turn
from rmqstore.write.messages import (
    ArrowStream,
    MessageMaker,
    UniqueKeys,
    WriteSpec,
    now_ms,
    record_batches,
)

logger = logging.getLogger(__name__)

_PRODUCER_GROUP: Final = "rmqstore"
_BATCH_MESSAGES: Final = 1000
_BATCH_BYTES: Final = 1 << 20
# A broker adds properties of its own, and does not check whether those of a message in a batch
# become too long then: its log would be cut there at the next start.
_MOST_PROPERTIES: Final = 32_767 - 1024
_BUFFERED_BYTES: Final = 32 << 20  # of requests that wait
# What a broker makes of these is for messages that it handles itself. A message that has been
# delivered once is sent as a new one.
_DROPPED: Final = (
    frozenset(RESERVED_PROPERTIES)
    - {"KEYS", "TAGS", "WAIT", PROPERTY_UNIQ_KEY, "BUYER_ID", "INSTANCE_ID", "MSG_TYPE",
       "CORRELATION_ID", "ORIGIN_MESSAGE_ID"}
) | {"INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "TIMER_DELAY_MS"}  # fmt: skip
# Columns that brokers set themselves.
OF_BROKERS: Final = (
    "bornTimestamp", "bornHost", "reconsumeTimes", "sysFlag", "preparedTransactionOffset",
)  # fmt: skip


class RepeatableKeys(UniqueKeys):
    """Unique keys that are the same whenever a task makes its messages again in the same order.

    Args:
        prefix: of the task, at most 16 bytes.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._n_made = 0

    def make(self, count: int) -> pa.StringArray:
        """Return the next keys, string (count,)."""
        numbers = np.arange(self._n_made, self._n_made + count, dtype=">u8")
        self._n_made += count
        headers = np.broadcast_to(np.frombuffer(self._prefix, np.uint8), (count, len(self._prefix)))
        tails = numbers.view(np.uint8).reshape(count, 8)
        return hex_rows(np.hstack((headers, tails)))


class LiveWriter(OpenedInTurns):
    """Sends messages to running brokers; a context manager.

    Messages are stored at least once, in the order in which each queue gets them.
    :func:`rmqstore.open` makes one of an address with ``mode="a"``. It takes one call at a time,
    and may be used as long as a ``StoreWriter``. :meth:`close` flushes, unless a request failed. If
    an error leaves the ``with`` block, what was not flushed may have been sent, or not.

    Args:
        location: the name servers.
        spec: how messages are made.
        keys: makes the unique keys of messages that have none.
        turn: the queue at which the round robin begins, another one for each parallel task.
        waits: whether topics that no name server knows at the moment are waited for, as they are
            while a broker is started again.
    """

    def __init__(
        self,
        location: LiveLocation,
        spec: WriteSpec | None = None,
        *,
        keys: UniqueKeys | None = None,
        turn: int = 0,
        waits: bool = False,
    ) -> None:
        self.turns = Turns(f"the writer to {location}", "open it again with mode='a' to send")
        self._waits = waits
        self._brokers = LiveBrokers(location)
        self._counts: dict[str, int] = {}  # queues by topic
        # A batch has one flag: all of its bodies are compressed, or none.
        spec = replace(
            spec or WriteSpec(), compress_over=1, n_delay_levels=0, queue_nums=self._counts
        )
        self._maker = MessageMaker(
            spec, turn, keys, consequence="of these rows and those after them nothing was sent"
        )
        self._queues: dict[str, list[SendQueue]] = {}  # by topic
        self._senders: dict[str, Sender] = {}  # by broker
        self._error: RmqStoreError | None = None

    def _close(self, *, completes: bool) -> None:
        try:
            if completes and self._error is None:
                self._flush()
        finally:
            for sender in self._senders.values():
                sender.close()
            self._brokers.close()

    @property
    def n_sent(self) -> int:
        """The number of messages that are stored."""
        return sum(sender.n_sent for sender in self._senders.values())

    @in_turn
    def append(self, rows: pa.RecordBatch | ArrowStream, *, first_row: int = 1) -> None:
        """Send messages; :meth:`flush` says that all of them are stored.

        Args:
            rows: a ``pyarrow.RecordBatch``, or anything with ``__arrow_c_stream__`` (a Table, a
                RecordBatchReader, a pandas or Polars DataFrame). Its columns are of
                ``WRITE_TYPES``, at least body. Those that brokers set are ignored.
            first_row: number of the first row, for errors, which count rows from 1.

        Raises:
            TypeError: the rows are not Arrow data.
            IllegalMessageError: a row cannot be sent. Rows before it may have been.
            OptionError: no broker has the topic.
            BrokerUnreachableError: a broker did not answer for a long time.
            BrokerRefusedError: one refuses.
        """
        self._require_usable()
        for batch in record_batches(rows):
            self._find_queues(batch, first_row)
            columns = self._maker.make(_sendable(batch), first_row)
            delays = np.zeros(len(batch), np.int32)
            if _has_values(batch, "delayTimeLevel"):
                delays = np.asarray(batch.column("delayTimeLevel").cast(pa.int32()).fill_null(0))
            encoded = _Encoded.of(columns, delays, first_row)
            for row_numbers in rows_by_queue(columns.topics.codes, columns.queue_ids):
                topic = columns.topics.names[int(columns.topics.codes[row_numbers[0]])]
                index = int(columns.queue_ids[row_numbers[0]])
                queues = self._queues[topic]
                if index >= len(queues):
                    raise IllegalMessageError(
                        f"row {first_row + int(row_numbers[0])}: queueId {index}, but {topic} has "
                        f"{len(queues)} queues that can be written to"
                    )
                queue = queues[index]
                for request in encoded.requests(row_numbers, queue):
                    self._senders[queue.broker].put(queue, request)
            while sum(sender.n_buffered for sender in self._senders.values()) > _BUFFERED_BYTES:
                self._exchange()
            first_row += len(batch)

    @in_turn
    def flush(self) -> None:
        """Wait until everything is stored, and can be read; raises as :meth:`append` does.

        A broker dispatches what it has stored to its queues a moment later. One that does not say
        where its queues end, or has not come there for some seconds, is not waited for.
        """
        self._flush()

    def _flush(self) -> None:
        self._require_usable()
        while any(sender.n_buffered for sender in self._senders.values()):
            self._exchange()
        for sender in self._senders.values():
            sender.wait_until_dispatched()

    def _exchange(self) -> None:
        """Let each broker store something; an error ends the writer."""
        try:
            for sender in self._senders.values():
                sender.exchange()
        except RmqStoreError as err:
            self._error = err
            raise

    def _require_usable(self) -> None:
        if self._error is not None:
            raise StoreStateError(
                f"an earlier request failed, and what follows it was not sent: {self._error}"
            ) from self._error

    def _find_queues(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Find the queues of the topics of a batch that can be written to."""
        topics = {self._maker.spec.topic} if self._maker.spec.topic else set()
        if not topics and "topic" in batch.schema.names:
            topics = {*pc.unique(batch.column("topic")).to_pylist()} - {None}
        new = sorted(topics - self._queues.keys())
        for topic in new:
            if is_system_topic(topic) and not topic.startswith(RETRY_PREFIX):
                index = 0
                if not self._maker.spec.topic:
                    index = pc.index(batch.column("topic"), topic).as_py()
                raise IllegalMessageError(
                    f"row {first_row + index}: topic {topic} belongs to brokers, and no messages "
                    "are sent to it here"
                )
        for topic, queues in self._queues_of(new).items():
            self._queues[topic] = queues
            self._counts[topic] = len(queues)
            for queue in queues:
                name = queue.broker
                if name not in self._senders:
                    find = partial(self._find_broker, name, topic)
                    self._senders[name] = Sender(self._brokers.opened(name), find)
                self._senders[name].queues.append(queue)
        for topic in sorted(topics) if _has_values(batch, "queueId") else ():
            if len({queue.broker for queue in self._queues[topic]}) > 1:
                raise IllegalMessageError(
                    f"queueId: several brokers have queues of {topic}; leave the column out, or "
                    "keep an order by shardingKey with queueSelector=hash"
                )

    @in_turn
    def queues_of(self, topics: Sequence[str]) -> dict[str, list[SendQueue]]:
        """Return the writable queues of topics, and the end of each.

        Raises:
            OptionError: no broker has a topic, or allows writes to it.
            BrokerUnreachableError: a server does not answer.
        """
        return self._queues_of(topics)

    def _queues_of(self, topics: Sequence[str]) -> dict[str, list[SendQueue]]:
        patience = Patience()
        while True:
            try:
                return self._queues_now(topics)
            except (OptionError, BrokerUnreachableError) as err:
                if not self._waits:
                    raise
                patience.pause(err)
                self._brokers.refresh()

    def _queues_now(self, topics: Sequence[str]) -> dict[str, list[SendQueue]]:
        routes = self._brokers.routes(topics)
        by_broker: dict[str, list[QueueKey]] = {}
        for topic in topics:
            if topic not in routes:
                raise OptionError(
                    f"no topic {topic} in {self._brokers.location}: create it (mqadmin "
                    "updateTopic); none is made here"
                )
            counts = {name: known.write for name, known in routes[topic].queues.items()}
            if not any(counts.values()):
                raise OptionError(f"{topic}: no broker allows writes to it")
            for name, count in counts.items():
                if count:
                    self._brokers.broker(name, routes[topic])
                    by_broker.setdefault(name, []).extend((topic, id_) for id_ in range(count))
        found: dict[str, list[SendQueue]] = {topic: [] for topic in topics}
        for name, queues in sorted(by_broker.items()):
            broker = self._brokers.opened(name)
            ends = broker.ends(queues)
            if unknown := sorted({key[0] for key in queues if key not in ends}):
                logger.warning(
                    "%s does not let us ask where queues of %s end; requests whose answers are "
                    "lost are sent again without a check",
                    broker,
                    ", ".join(unknown),
                )
            for key in queues:
                end = ends.get(key, -1)
                found[key[0]].append(SendQueue(name, *key, end, end))
        return found

    def _find_broker(self, name: str, topic: str) -> LiveBroker:
        """Return a broker at the address where it is now."""
        self._brokers.refresh()
        route = self._brokers.routes([topic]).get(topic)
        if route is None or name not in route.queues:
            raise BrokerUnreachableError(name, "no name server knows it at the moment")
        return self._brokers.broker(name, route)


def _has_values(batch: pa.RecordBatch, name: str) -> bool:
    return name in batch.schema.names and batch.column(name).null_count < len(batch)


def _sendable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without what brokers set themselves."""
    names = [name for name in batch.schema.names if name not in (*OF_BROKERS, "delayTimeLevel")]
    batch = batch.select(names)
    if "properties" not in names:
        return batch
    column = batch.column("properties")
    if not pa.types.is_map(column.type):
        return batch
    kept = pc.invert(pc.is_in(column.keys, value_set=pa.array(sorted(_DROPPED))))
    mask = mask_of(kept)
    if mask.all():
        return batch
    counts = np.concatenate(([0], np.cumsum(mask)))
    offsets = pa.array(counts[np.asarray(column.offsets)].astype(np.int32))
    changed = pa.MapArray.from_arrays(
        offsets, column.keys.filter(kept), column.items.filter(kept), mask=column.is_null()
    )
    return batch.set_column(names.index("properties"), "properties", changed)


class _Encoded(NamedTuple):
    """The messages of a batch as brokers take them, (n,) each.

    Attributes:
        columns: what they are made of.
        joined: each message as it stands in a batch, binary.
        delays: levels of delay.
        first_row: number of the first row, for errors.
    """

    columns: RecordColumns
    joined: pa.BinaryArray
    delays: NDArray[np.int32]
    first_row: int

    @classmethod
    def of(cls, columns: RecordColumns, delays: NDArray[np.int32], first_row: int) -> _Encoded:
        """Encode messages. Source: MessageDecoder.java#encodeMessage."""
        n = len(columns)
        headers = np.zeros(n, INNER_HEAD)
        body_lengths = lengths_of(columns.bodies)
        sizes = INNER_HEAD.itemsize + body_lengths + PROPERTIES_LENGTH_BYTES
        headers["total_size"] = sizes + columns.properties.lengths
        headers["flag"] = columns.flags
        headers["body_length"] = body_lengths
        property_lengths = columns.properties.lengths.astype(">i2").view(np.uint8)
        parts = [
            fixed_width(headers.view(np.uint8).reshape(n, INNER_HEAD.itemsize)),
            columns.bodies,
            fixed_width(property_lengths.reshape(n, 2)),
            *columns.properties.parts,
        ]
        return cls(columns, join(parts, n), delays, first_row)

    def requests(self, rows: NDArray[np.int64], queue: SendQueue) -> Iterator[SendRequest]:
        """Yield the requests that send rows of one queue, in their order."""
        columns = self.columns
        data, bounds = array_bytes(self.joined.take(numbers(rows)))
        sizes = np.diff(bounds)
        is_single = self.delays[rows] > 0
        is_single |= columns.properties.lengths[rows] > _MOST_PROPERTIES
        is_single |= sizes > _BATCH_BYTES
        flags = columns.sys_flags[rows]
        kinds = flags.astype(np.int64) << 1 | is_single
        firsts = np.concatenate(([0], np.flatnonzero(np.diff(kinds)) + 1))
        for first, stop in pairwise([*firsts.tolist(), len(rows)]):
            if is_single[first]:
                for row in rows[first:stop].tolist():
                    yield self._single(row, queue)
                continue
            for part in cut_batches(sizes[first:stop], _BATCH_MESSAGES, _BATCH_BYTES):
                low, high = first + part.start, first + part.stop
                fields = _fields(queue, int(flags[low])) | {"h": "0", "i": "", "m": "true"}
                body = data[bounds[low] : bounds[high]].tobytes()
                key = self._uniq_key(int(rows[high - 1]))
                yield SendRequest(RequestCode.SEND_BATCH_MESSAGE, fields, body, high - low, key)

    def _single(self, row: int, queue: SendQueue) -> SendRequest:
        columns = self.columns
        properties = columns.properties.take(slice(row, row + 1)).joined()[0].as_py().decode()
        level = int(self.delays[row])
        if level > 0:
            properties += f"{PROPERTY_DELAY}\x01{level}\x02"
        fields = _fields(queue, int(columns.sys_flags[row]))
        fields |= {"h": str(int(columns.flags[row])), "i": properties, "m": "false"}
        body = columns.bodies[row].as_py()
        if not body:
            raise IllegalMessageError(
                f"row {self.first_row + row}: body is empty, and brokers take no such message "
                "outside a batch, as delayed ones and those of large properties are sent"
            )
        return SendRequest(
            RequestCode.SEND_MESSAGE_V2, fields, body, 1, self._uniq_key(row), is_delayed=level > 0
        )

    def _uniq_key(self, row: int) -> bytes:
        keys = self.columns.dispatched.uniq_keys
        key = None if keys is None else keys[row].as_py()
        return f"{PROPERTY_UNIQ_KEY}\x01{key}\x02".encode() if key else b""


def _fields(queue: SendQueue, sys_flag: int) -> dict[str, str]:
    """Return the fields of a request, which names no topic to make the topic from."""
    return {
        "a": _PRODUCER_GROUP,
        "b": queue.topic,
        "c": "",
        "d": "0",
        "e": str(queue.queue_id),
        "f": str(sys_flag),
        "g": str(now_ms()),
        "j": "0",
        "k": "false",
        "n": queue.broker,
    }
