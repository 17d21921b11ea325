"""Turns columns of messages, as users give them, into columns of records.

This sets properties, ids and delays, and checks limits. Errors name RocketMQ's PutMessageStatus.

Source: DefaultMQProducerImpl.java and SendMessageProcessor.java for what a send adds;
HookUtils.java and MessageExtEncoder.java for what is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time_ns
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError, OptionError
from rmqstore.format.columns.buffers import array_bytes
from rmqstore.format.columns.encode import RecordColumns
from rmqstore.format.columns.hosts import pack_host, pack_hosts
from rmqstore.format.columns.property_encode import (
    find_control_bytes,
    one_property,
    property_entries,
    property_strings,
)
from rmqstore.format.compression import compressor
from rmqstore.format.hashing import java_hashes
from rmqstore.format.layout import (
    DELAY_LEVELS_MS,
    LMQ_PREFIX,
    MAX_PROPERTIES_BYTES,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
    SysFlag,
)
from rmqstore.format.schema import ASSIGNED, WRITE_TYPES
from rmqstore.format.topics import FORBIDDEN_TOPICS
from rmqstore.write.unique_keys import UniqueKeys, are_offset_ids, own_address

# The property that a column sets. The column takes precedence over the column ``properties``.
_PROPERTY_OF: Final = {
    "tags": PROPERTY_TAGS,
    "keys": PROPERTY_KEYS,
    "msgId": PROPERTY_UNIQ_KEY,
    "shardingKey": PROPERTY_SHARDING_KEY,
}

# Source: TopicValidator.java.
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_MAX_TOPIC, _MAX_GROUP_TOPIC = 127, 255
_GROUP_PREFIXES: Final = ("%RETRY%", "%DLQ%")

SELECTORS: Final = ("roundRobin", "hash")


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How messages are made, for all rows of a write.

    Source: MessageStoreConfig.java, DefaultMQProducer.java for the defaults.
    """

    topic: str | None = None
    queue_nums: Mapping[str, int] = field(default_factory=dict)  # of existing topics
    default_queue_nums: int = 4
    queue_selector: str = "roundRobin"
    compression: str = "none"
    compress_over: int = 4096
    store_host: str = "127.0.0.1:10911"
    born_host: str | None = None
    make_uniq_key: bool = True
    allow_system_topics: bool = False
    max_message_size: int = 4 << 20

    def __post_init__(self) -> None:
        """Refuse values out of their domain."""
        if self.queue_selector not in SELECTORS:
            raise OptionError(
                f"queue_selector {self.queue_selector!r}: must be one of {', '.join(SELECTORS)}"
            )
        if self.default_queue_nums < 1:
            raise OptionError(
                f"default_queue_nums {self.default_queue_nums}: must be a positive integer"
            )
        compressor(self.compression)


class MessageMaker:
    """Makes columns of records from batches of messages.

    The round robin over queues and the counter of ids go on from batch to batch.

    Args:
        spec: how messages are made.
        turn: the queue at which the round robin begins, another one for each parallel task.
    """

    def __init__(self, spec: WriteSpec, turn: int = 0) -> None:
        self.spec = spec
        self._turns: dict[str, int] = {}
        self._first_turn = turn
        self._ids = UniqueKeys(now_ms)
        self._born_host = spec.born_host or f"{own_address()}:0"
        pack_host(spec.store_host)

    def make(self, batch: pa.RecordBatch, first_row: int = 0) -> RecordColumns:
        """Return the columns of the records for a batch.

        Args:
            batch: columns of WRITE_TYPES, at least body. Columns of ASSIGNED only serve to
                recognise offset message ids.
            first_row: number of the first row, for errors.

        Raises:
            IllegalMessageError: a row cannot be stored; the error names it and RocketMQ's status.
        """
        n = len(batch)
        columns = _checked(batch)
        refuse = _Refusal(first_row)
        topics = self._topics(columns, n, refuse)
        bodies, flags = self._bodies(columns["body"], refuse)
        queue_ids = self._queue_ids(topics, columns, n)
        overrides = {
            name: columns[column] for column, name in _PROPERTY_OF.items() if column in columns
        }
        self._set_uniq_keys(overrides, batch, columns, n)
        topics, queue_ids = _delay(overrides, topics, queue_ids, columns)
        properties = self._property_strings(columns.get("properties"), overrides, n, refuse)
        now = now_ms()
        born = columns.get("bornTimestamp")
        if born is None:
            born_timestamps = np.full(n, now)
        else:
            born_timestamps = _numbers(born.view(pa.int64()), n, now * 1000) // 1000
        return RecordColumns(
            topics=topics,
            queue_ids=queue_ids,
            bodies=bodies,
            properties=properties,
            flags=_numbers(columns.get("flag"), n),
            sys_flags=flags,
            born_timestamps=born_timestamps,
            born_hosts=pack_hosts(_texts(columns.get("bornHost"), n, self._born_host)),
            store_hosts=pack_hosts(_texts(None, n, self.spec.store_host)),
            reconsume_times=_numbers(columns.get("reconsumeTimes"), n),
            prepared_transaction_offsets=np.zeros(n, np.int64),
        )

    def _topics(self, columns: Mapping[str, pa.Array], n: int, refuse: _Refusal) -> pa.StringArray:
        topics = _texts(None, n, self.spec.topic) if self.spec.topic else columns.get("topic")
        if topics is None:
            raise IllegalMessageError(
                "no topic: give a column named topic, or WriteSpec.topic for all rows"
            )
        if topics.null_count:
            refuse(_first_null(topics), "MESSAGE_ILLEGAL", "topic is null")
        encoded = topics.dictionary_encode()
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            reason = topic_fault(topic, allow_system=self.spec.allow_system_topics)
            if reason:
                row = int(np.argmax(encoded.indices.to_numpy() == code))
                refuse(row, "MESSAGE_ILLEGAL", reason)
        return topics

    def _bodies(
        self, bodies: pa.BinaryArray, refuse: _Refusal
    ) -> tuple[pa.BinaryArray, NDArray[np.int32]]:
        flags = np.zeros(len(bodies), np.int32)
        if bodies.null_count:
            refuse(_first_null(bodies), "MESSAGE_ILLEGAL", "body is null")
        pack, flag = compressor(self.spec.compression)
        lengths = np.diff(array_bytes(bodies)[1])
        if pack is not None:
            rows = np.flatnonzero(lengths >= self.spec.compress_over)
            if len(rows):
                flags[rows] = int(SysFlag.COMPRESSED) | flag
                packed = [pack(body) for body in bodies.take(pa.array(rows)).to_pylist()]
                mask = pa.array(flags != 0)
                bodies = pc.replace_with_mask(bodies, mask, pa.array(packed, pa.binary()))
                lengths = np.diff(array_bytes(bodies)[1])
        large = np.flatnonzero(lengths > self.spec.max_message_size)
        if len(large):
            row = int(large[0])
            limit = self.spec.max_message_size
            text = f"a body of {int(lengths[row])} bytes, maxMessageSize is {limit}"
            refuse(row, "MESSAGE_ILLEGAL", text)
        return bodies, flags

    @staticmethod
    def _property_strings(
        given: pa.MapArray | None, overrides: dict[str, pa.StringArray], n: int, refuse: _Refusal
    ) -> pa.BinaryArray:
        entries = property_entries(given, overrides, n)
        bad = find_control_bytes(entries)
        if bad is not None:
            text = (
                "the name or value of a property holds 0x01 or 0x02, the separators of properties"
            )
            refuse(bad, "MESSAGE_ILLEGAL", text)
        strings = property_strings(entries, n)
        lengths = np.diff(array_bytes(strings)[1])
        if (lengths > MAX_PROPERTIES_BYTES).any():
            row = int(lengths.argmax())
            text = (
                f"properties of {int(lengths[row])} bytes, "
                f"at most {MAX_PROPERTIES_BYTES} are allowed"
            )
            refuse(row, "PROPERTIES_SIZE_EXCEEDED", text)
        return strings

    def _queue_ids(
        self, topics: pa.StringArray, columns: Mapping[str, pa.Array], n: int
    ) -> NDArray[np.int32]:
        """Choose queues: the given one, otherwise by sharding key, otherwise round robin."""
        chosen = np.zeros(n, np.int32)
        encoded = topics.dictionary_encode()
        codes = encoded.indices.to_numpy()
        keys = columns.get("shardingKey") if self.spec.queue_selector == "hash" else None
        hashes = None
        keyed = np.zeros(n, np.bool_)
        if keys is not None:
            hashes = java_hashes(*array_bytes(keys.fill_null("").cast(pa.binary())))
            keyed = keys.is_valid().to_numpy(zero_copy_only=False)
        given = columns.get("queueId")
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            count = self.spec.queue_nums.get(topic, self.spec.default_queue_nums)
            rows = np.flatnonzero(codes == code)
            if hashes is not None:
                # Source: SelectMessageQueueByHash.java: the absolute value of Java's remainder.
                chosen[rows] = np.abs(np.fmod(hashes[rows].astype(np.int64), count))
            turning = rows[~keyed[rows]]
            turn = self._turns.get(topic, self._first_turn)
            chosen[turning] = (turn + np.arange(len(turning))) % count
            self._turns[topic] = turn + len(turning)
        if given is not None:
            is_given = given.is_valid().to_numpy(zero_copy_only=False)
            chosen[is_given] = given.fill_null(0).to_numpy()[is_given]
            if (chosen < 0).any():
                raise IllegalMessageError(
                    f"row {int(np.argmin(chosen))}: MESSAGE_ILLEGAL: queueId {int(chosen.min())}"
                )
        return chosen

    def _set_uniq_keys(
        self,
        overrides: dict[str, pa.StringArray],
        batch: pa.RecordBatch,
        columns: Mapping[str, pa.Array],
        n: int,
    ) -> None:
        """Set UNIQ_KEY from msgId or from the properties, and generate it where both lack it.

        A msgId that is an offset message id does not count.
        """
        keys = one_property(columns.get("properties"), PROPERTY_UNIQ_KEY, n)
        ids = columns.get("msgId")
        if ids is not None:
            keys = pc.if_else(are_offset_ids(ids, batch), keys, ids)
        if self.spec.make_uniq_key and keys.null_count:
            made = self._ids.make(keys.null_count)
            keys = pc.replace_with_mask(keys, keys.is_null(), made)
        overrides[PROPERTY_UNIQ_KEY] = keys


def now_ms() -> int:
    """Return the time in epoch ms."""
    return time_ns() // 1_000_000


class _Refusal:
    """Raises errors that name a row as the user counts rows."""

    def __init__(self, first_row: int) -> None:
        self._first_row = first_row

    def __call__(self, row: int, status: str, reason: str) -> None:
        raise IllegalMessageError(
            f"row {self._first_row + row}: {status}: {reason}; nothing was written"
        )


def topic_fault(topic: str, *, allow_system: bool) -> str | None:
    """Return why messages cannot be sent to a topic, or None. Source: TopicValidator.java."""
    longest = _MAX_GROUP_TOPIC if topic.startswith(_GROUP_PREFIXES) else _MAX_TOPIC
    if not _TOPIC.fullmatch(topic):
        return f"topic {topic!r} may only hold letters, digits and % | _ -"
    if len(topic) > longest:
        return f"topic {topic!r} has {len(topic)} characters, at most {longest} are allowed"
    if topic.startswith(LMQ_PREFIX):
        return (
            f"topic {topic} is a light message queue, whose units point to records of other topics"
        )
    if topic in FORBIDDEN_TOPICS and not allow_system:
        return (
            f"topic {topic} belongs to the broker; "
            "allow_system_topics=True writes to it all the same"
        )
    return None


def _checked(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of a batch, cast to their own types.

    Raises:
        IllegalMessageError: a column is unknown or cannot be cast, or body is missing.
    """
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in ASSIGNED:
            continue
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
        return np.full(n, default, np.int32)
    numbers: NDArray[Any] = column.fill_null(default).to_numpy()
    return numbers


def _first_null(column: pa.Array) -> int:
    """Return the row of the first null of a column that has one."""
    return int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))


def _texts(column: pa.Array | None, n: int, default: str) -> pa.StringArray:
    return pa.repeat(pa.scalar(default), n) if column is None else column.fill_null(default)


def _delay(
    overrides: dict[str, pa.StringArray],
    topics: pa.StringArray,
    queue_ids: NDArray[np.int32],
    columns: Mapping[str, pa.Array],
) -> tuple[pa.StringArray, NDArray[np.int32]]:
    """Send delayed messages to the schedule topic.

    Their properties keep their own topic and queue.

    Source: HookUtils.java#transformDelayLevelMessage.
    """
    if "delayTimeLevel" not in columns:
        return topics, queue_ids
    levels = np.minimum(columns["delayTimeLevel"].fill_null(0).to_numpy(), len(DELAY_LEVELS_MS))
    delayed = levels > 0
    if not delayed.any():
        return topics, queue_ids
    mask = pa.array(delayed)

    def where_delayed(values: pa.Array) -> pa.Array:
        return pc.if_else(mask, values, pa.scalar(None, pa.string()))

    overrides[PROPERTY_DELAY] = where_delayed(pa.array(levels).cast(pa.string()))
    overrides[PROPERTY_REAL_TOPIC] = where_delayed(topics)
    overrides[PROPERTY_REAL_QUEUE_ID] = where_delayed(pa.array(queue_ids).cast(pa.string()))
    schedule_queue_ids = np.where(delayed, levels - 1, queue_ids).astype(np.int32)
    return pc.if_else(mask, pa.scalar(SCHEDULE_TOPIC), topics), schedule_queue_ids
