"""Sends messages to running brokers, in batches, at least once.

A queue has one request on its way at a time, because brokers store those of one connection in any
order. Whether a request was stored whose answer is lost shows in the queue: its messages have
unique keys, which are looked for before it is sent again.

Source: SendMessageProcessor.java; SendMessageRequestHeaderV2.java; MessageDecoder.java;
MessageBatch.java; BrokerFastFailure.java.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    IllegalMessageError,
    MalformedBytesError,
    OptionError,
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
from rmqstore.format.layout import PROPERTY_DELAY, PROPERTY_UNIQ_KEY
from rmqstore.format.schema import RESERVED_PROPERTIES
from rmqstore.live.broker import SUCCESS, SYSTEM_BUSY, LiveBroker
from rmqstore.live.cluster import LiveBrokers
from rmqstore.live.location import LiveLocation
from rmqstore.live.pulls import Pulls
from rmqstore.remoting.client import Answer
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.storage import Closing
from rmqstore.write.messages import MessageMaker, UniqueKeys, WriteSpec, now_ms

logger = logging.getLogger(__name__)

_SEND: Final = 310
_SEND_BATCH: Final = 320
_GET_MAX_OFFSET: Final = 30
_GET_RUNTIME_INFO: Final = 28
_SYSTEM_ERROR: Final = 1
_NOT_DURABLE: Final = {
    10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT",
}  # fmt: skip
_SERVICE_NOT_AVAILABLE: Final = 14
_TOPIC_NOT_EXIST: Final = 17
_GO_AWAY: Final = 1500
_NOT_STORED: Final = (SYSTEM_BUSY, _SERVICE_NOT_AVAILABLE, _GO_AWAY)
_CERTAIN_REMARKS: Final = ("body size exceeded", "in-sync replicas", "create mapped file failed")

_PRODUCER_GROUP: Final = "rmqstore"
_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_length", ">i4")]
)
_BATCH_MESSAGES: Final = 1000
_BATCH_BYTES: Final = 1 << 20
# A broker adds properties of its own, and does not check whether those of a message in a batch
# become too long then: its log would be cut there at the next start.
_MOST_PROPERTIES: Final = 32_767 - 1024
_HELD_BYTES: Final = 32 << 20  # of requests that wait
_PATIENCE_SECONDS: Final = 120.0
_TOPIC_SECONDS: Final = 60.0  # for a topic that no name server knows
_PAUSE_SECONDS: Final = 0.5
_SETTLING_SECONDS: Final = 2.0  # in which a queue shows what was stored last
# What a broker makes of these is for messages that it handles itself. A message that has been
# delivered once is sent as a new one.
_DROPPED: Final = (
    frozenset(RESERVED_PROPERTIES)
    - {"KEYS", "TAGS", "WAIT", PROPERTY_UNIQ_KEY, "BUYER_ID", "INSTANCE_ID", "MSG_TYPE",
       "CORRELATION_ID", "ORIGIN_MESSAGE_ID"}
) | {"INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH"}  # fmt: skip
# Columns that brokers set themselves.
OF_BROKERS: Final = (
    "bornTimestamp", "bornHost", "reconsumeTimes", "sysFlag", "preparedTransactionOffset",
)  # fmt: skip


class RepeatableKeys(UniqueKeys):
    """Unique keys that are the same whenever a task makes its messages again.

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
        heads = np.broadcast_to(np.frombuffer(self._prefix, np.uint8), (count, len(self._prefix)))
        tails = numbers.view(np.uint8).reshape(count, 8)
        return hex_rows(np.hstack((heads, tails)))


@dataclass
class _Request:
    """Messages that are stored all together or not at all."""

    code: int
    fields: dict[str, str]
    body: bytes
    n_messages: int
    mark: bytes  # that only these messages have in their records; empty without a unique key
    is_delayed: bool = False  # a broker keeps it in another topic first


@dataclass
class _Queue:
    """A queue that is written to.

    Attributes:
        base: the queue offset after all messages of ours that are known to be stored.
        waiting: requests in their order.
        sent: the request that is on its way.
    """

    broker: str
    topic: str
    queue_id: int
    base: int
    waiting: deque[_Request] = field(default_factory=deque)
    sent: _Request | None = None


class LiveWriter(Closing):
    """Sends messages to running brokers; a context manager.

    Messages are stored at least once, in the order in which each queue gets them. Those of a batch
    are stored together. :func:`rmqstore.open` makes one of an address with ``mode="a"``.

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
        self._waits = waits
        self._brokers = LiveBrokers(location)
        spec = spec or WriteSpec()
        self._counts: dict[str, int] = {}  # queues by topic
        # A batch has one flag: all of its bodies are compressed, or none.
        spec = replace(
            spec or WriteSpec(), compress_over=1, n_delay_levels=0, queue_nums=self._counts
        )
        self._maker = MessageMaker(
            spec, turn, keys, consequence="of these rows and those after them nothing was sent"
        )
        self._queues: dict[str, list[_Queue]] = {}
        self._on_their_way: dict[str, dict[int, _Queue]] = {}  # by broker and number
        self._n_held = 0  # bytes of requests that wait or are on their way
        self._refused: dict[str, str] = {}  # why a broker takes nothing for now, by broker
        self._failed_at: float | None = None
        self._warned: set[str] = set()
        self.n_sent = 0  # messages that are stored

    def close(self) -> None:
        """Close the connections. What was not flushed may have been sent, or not."""
        self._brokers.close()

    def append(self, batch: pa.RecordBatch, *, first_row: int = 1) -> None:
        """Send messages; :meth:`flush` says that all of them are stored.

        Args:
            batch: columns of ``WRITE_TYPES``, at least body. Those that brokers set are ignored.
            first_row: number of the first row, for errors, which count rows from 1.

        Raises:
            IllegalMessageError: a row cannot be sent. Rows before it may have been.
            OptionError: no broker has the topic.
            BrokerUnreachableError: a broker did not answer for a long time.
            BrokerRefusedError: one refuses.
        """
        self._find_queues(batch)
        columns = self._maker.make(_sendable(batch), first_row)
        encoded = _Encoded.of(columns, _delays(batch))
        for rows in rows_by_queue(columns.topics.codes, columns.queue_ids):
            topic = columns.topics.names[int(columns.topics.codes[rows[0]])]
            index = int(columns.queue_ids[rows[0]])
            queues = self._queues[topic]
            if index >= len(queues):
                raise IllegalMessageError(
                    f"row {first_row + int(rows[0])}: queueId {index}, but {topic} has "
                    f"{len(queues)} queues that can be written to"
                )
            for request in encoded.requests(rows, queues[index]):
                queues[index].waiting.append(request)
                self._n_held += len(request.body)
        while self._n_held > _HELD_BYTES:
            self._exchange()

    def flush(self) -> None:
        """Wait until everything is stored; raises as :meth:`append` does."""
        while any(queue.waiting or queue.sent for each in self._queues.values() for queue in each):
            self._exchange()

    def _find_queues(self, batch: pa.RecordBatch) -> None:
        """Find the queues of the topics of a batch that can be written to."""
        topics = {self._maker.spec.topic} if self._maker.spec.topic else set()
        if not topics and "topic" in batch.schema.names:
            topics = {*pc.unique(batch.column("topic")).to_pylist()} - {None}
        for topic in sorted(topics - self._queues.keys()):
            queues = self._queues[topic] = self.queues_of(topic)
            self._counts[topic] = len(queues)
        for topic in sorted(topics) if _has_values(batch, "queueId") else ():
            if len({queue.broker for queue in self._queues[topic]}) > 1:
                raise IllegalMessageError(
                    f"queueId: several brokers have queues of {topic}; leave the column out, or "
                    "keep an order by shardingKey with queueSelector=hash"
                )

    def queues_of(self, topic: str) -> list[_Queue]:
        """Return the queues of a topic that can be written to, and where each ends.

        Raises:
            OptionError: no broker has the topic, or allows writes to it.
            BrokerUnreachableError: a server does not answer.
        """
        began = time.monotonic()
        while True:
            try:
                return self._queues_now(topic)
            except (OptionError, BrokerUnreachableError) as err:
                if not self._waits or time.monotonic() - began > _TOPIC_SECONDS:
                    raise
                logger.info("%s; waiting", err)
                time.sleep(2 * _PAUSE_SECONDS)
                self._brokers.refresh()

    def _queues_now(self, topic: str) -> list[_Queue]:
        route = self._brokers.route(topic)
        if route is None:
            raise OptionError(
                f"no topic {topic} in {self._brokers.location}: create it (mqadmin updateTopic); "
                "none is made here"
            )
        queues = []
        for name, known in sorted(route.queues.items()):
            if not known.write:
                continue
            ids = range(known.write)
            asked = [{"topic": topic, "queueId": str(queue_id)} for queue_id in ids]
            ends = self._brokers.broker(name, route).offsets(_GET_MAX_OFFSET, asked)
            queues += [_Queue(name, topic, *at) for at in zip(ids, ends, strict=True)]
        if not queues:
            raise OptionError(f"{topic}: no broker allows writes to it")
        return queues

    def _exchange(self) -> None:
        """Send what may be sent, and take one answer of each broker that owes any."""
        for name in dict.fromkeys(q.broker for each in self._queues.values() for q in each):
            try:
                self._send(name)
                self._receive(name)
            except BrokerUnreachableError as err:
                self._recover(name, err)

    def _send(self, name: str) -> None:
        broker = self._brokers.opened(name)
        on_their_way = self._on_their_way.setdefault(name, {})
        if name in self._refused:
            if on_their_way:
                return
            self._pause(BrokerUnreachableError(name, self._refused.pop(name)))
        ready = [
            queue
            for each in self._queues.values()
            for queue in each
            if queue.broker == name and queue.sent is None and queue.waiting
        ]
        for queue in ready:
            queue.sent = queue.waiting.popleft()
            number = broker.client().send(queue.sent.code, queue.sent.fields, queue.sent.body)
            on_their_way[number] = queue

    def _receive(self, name: str) -> None:
        on_their_way = self._on_their_way.get(name)
        if not on_their_way:
            return
        client = self._brokers.opened(name).client()
        by = time.monotonic() + client.timeout
        while (answer := client.receive(by)).opaque not in on_their_way:
            pass
        queue = on_their_way.pop(answer.opaque)
        request, queue.sent = queue.sent, None
        assert request is not None, "it was on its way"
        if answer.code == SUCCESS or answer.code in _NOT_DURABLE:
            self._failed_at = None
            self._store(queue, request, self._offset_of(name, answer))
            if answer.code in _NOT_DURABLE:
                self._warn(f"{name}: stored, but {_NOT_DURABLE[answer.code]}")
            return
        queue.waiting.appendleft(request)
        remark = answer.remark or f"code {answer.code}"
        if answer.code in _NOT_STORED:
            self._refused[name] = remark  # one pause for all that are refused together
        elif answer.code == _SYSTEM_ERROR and not any(text in remark for text in _CERTAIN_REMARKS):
            queue.waiting.popleft()
            queue.sent = request  # it may have been stored
            raise BrokerUnreachableError(name, remark)
        elif answer.code == _TOPIC_NOT_EXIST:
            raise OptionError(f"{name} has no topic {queue.topic}: {remark}")
        else:
            raise BrokerRefusedError(name, answer.code, remark)

    @staticmethod
    def _offset_of(name: str, answer: Answer) -> int:
        try:
            return answer.number("queueOffset")
        except MalformedBytesError as err:
            raise BrokerUnreachableError(name, err.reason) from err

    def _store(self, queue: _Queue, request: _Request, queue_offset: int) -> None:
        """Note that a request is stored."""
        if not request.is_delayed:
            queue.base = max(queue.base, queue_offset + request.n_messages)
        self._n_held -= len(request.body)
        self.n_sent += request.n_messages

    def _recover(self, name: str, err: BrokerUnreachableError) -> None:
        """Wait for a broker, and find out which requests it has stored of those on their way.

        Raises:
            BrokerUnreachableError: it did not come back for a long time.
        """
        self._refused.pop(name, None)
        queues = [*self._on_their_way.pop(name, {}).values()]
        queues += [
            queue
            for each in self._queues.values()
            for queue in each
            if queue.broker == name and queue.sent is not None and queue not in queues
        ]
        while True:
            self._pause(err)
            try:
                broker = self._reconnected(name)
                for queue in [queue for queue in queues if queue.sent is not None]:
                    self._settle(broker, queue)
            except BrokerUnreachableError as again:
                err = again
            else:
                self._failed_at = None
                return

    def _reconnected(self, name: str) -> LiveBroker:
        """Return a broker on a new connection, at the address where it is now."""
        self._brokers.opened(name).close()
        self._brokers.refresh()
        topic = next(
            topic for topic, each in self._queues.items() if any(q.broker == name for q in each)
        )
        route = self._brokers.route(topic)
        if route is None or name not in route.queues:
            raise BrokerUnreachableError(name, "no name server knows it at the moment")
        broker = self._brokers.broker(name, route)
        _wait_for_queues(broker)
        return broker

    def _settle(self, broker: LiveBroker, queue: _Queue) -> None:
        """Find out whether the request that was on its way to a queue is stored."""
        request = queue.sent
        assert request is not None, "a request was on its way"
        found = _find(broker, queue, request)
        if found is None:
            time.sleep(_SETTLING_SECONDS / 2)
            found = _find(broker, queue, request)
        queue.sent = None
        if found is None:
            queue.waiting.appendleft(request)
        else:
            logger.info("%s: %s-%d has what was sent", broker, queue.topic, queue.queue_id)
            self._store(queue, request, found)

    def _pause(self, err: BrokerUnreachableError) -> None:
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        if now - self._failed_at > _PATIENCE_SECONDS:
            raise err
        logger.info("%s; trying again", err)
        time.sleep(_PAUSE_SECONDS)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)


def _wait_for_queues(broker: LiveBroker) -> None:
    """Wait until the queues of a broker show all that its log holds."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            (answer,) = broker.ask(_GET_RUNTIME_INFO, [{}])
            behind = int(json.loads(answer.body)["table"]["dispatchBehindBytes"])
        except (BrokerRefusedError, ValueError, KeyError, TypeError):
            time.sleep(_SETTLING_SECONDS)
            return
        if behind <= 0:
            return
        time.sleep(_PAUSE_SECONDS)


def _find(broker: LiveBroker, queue: _Queue, request: _Request) -> int | None:
    """Return a queue offset of a request's messages, None if the queue does not have them.

    That of the answer is not known; the one returned is at or after that of the first message.
    """
    asked = [{"topic": queue.topic, "queueId": str(queue.queue_id)}]
    (end,) = broker.offsets(_GET_MAX_OFFSET, asked)
    if not request.mark or end <= queue.base:
        return None
    wanted = QueueSlice(queue.topic, queue.queue_id, queue.base, end)
    for pulled in Pulls(broker, [wanted]):
        if request.mark in pulled.records:
            return pulled.start
    return None


def _has_values(batch: pa.RecordBatch, name: str) -> bool:
    return name in batch.schema.names and batch.column(name).null_count < len(batch)


def _delays(batch: pa.RecordBatch) -> NDArray[np.int32]:
    """Return the levels of delay of the rows, (n,), 0 for none."""
    if not _has_values(batch, "delayTimeLevel"):
        return np.zeros(len(batch), np.int32)
    levels = batch.column("delayTimeLevel").cast(pa.int32()).fill_null(0)
    return np.asarray(levels)


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
    """

    columns: RecordColumns
    joined: pa.BinaryArray
    delays: NDArray[np.int32]

    @classmethod
    def of(cls, columns: RecordColumns, delays: NDArray[np.int32]) -> _Encoded:
        """Encode messages. Source: MessageDecoder.java#encodeMessage."""
        n = len(columns)
        heads = np.zeros(n, _HEAD)
        body_lengths = lengths_of(columns.bodies)
        heads["size"] = _HEAD.itemsize + body_lengths + 2 + columns.properties.lengths
        heads["flag"], heads["body_length"] = columns.flags, body_lengths
        property_lengths = columns.properties.lengths.astype(">i2").view(np.uint8)
        pieces = [
            fixed_width(heads.view(np.uint8).reshape(n, _HEAD.itemsize)),
            columns.bodies,
            fixed_width(property_lengths.reshape(n, 2)),
            *columns.properties.pieces,
        ]
        return cls(columns, join(pieces, n), delays)

    def requests(self, rows: NDArray[np.int64], queue: _Queue) -> Iterator[_Request]:
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
                mark = self._mark(int(rows[low]))
                yield _Request(_SEND_BATCH, fields, body, high - low, mark)

    def _single(self, row: int, queue: _Queue) -> _Request:
        columns = self.columns
        properties = columns.properties.take(slice(row, row + 1)).joined()[0].as_py().decode()
        level = int(self.delays[row])
        if level > 0:
            properties += f"{PROPERTY_DELAY}\x01{level}\x02"
        fields = _fields(queue, int(columns.sys_flags[row]))
        fields |= {"h": str(int(columns.flags[row])), "i": properties, "m": "false"}
        body = columns.bodies[row].as_py()
        if not body:
            raise IllegalMessageError("a delayed message, or one of large properties, has no body")
        return _Request(_SEND, fields, body, 1, self._mark(row), is_delayed=level > 0)

    def _mark(self, row: int) -> bytes:
        keys = self.columns.dispatched.uniq_keys
        key = None if keys is None else keys[row].as_py()
        return f"{PROPERTY_UNIQ_KEY}\x01{key}\x02".encode() if key else b""


def _fields(queue: _Queue, sys_flag: int) -> dict[str, str]:
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
