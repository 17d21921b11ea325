"""The history of one message: its records in all topics, and the groups that have passed it.

A copy that a broker or a client makes of a message keeps its unique key: retries, dead letters,
and what waits for its delay or for the end of its transaction. Copies of a message without that key
are found by the id of their origin, which takes reading all retries and dead letters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmqstore.errors import MessageNotFoundError, OffsetOutOfRangeError, RmqStoreError
from rmqstore.format.columns.property_decode import KnownNames, is_copy_topic, origin_of
from rmqstore.format.layout import PROPERTY_UNIQ_KEY, SCHEDULE_TOPIC
from rmqstore.format.schema import ALL_COLUMNS
from rmqstore.format.topics import (
    DLQ_PREFIX,
    HALF_TOPIC,
    ROCKSDB_HALF_TOPIC,
    TIMER_TOPIC,
)
from rmqstore.progress import Progress, ignore_progress
from rmqstore.query.arguments import TopicArguments
from rmqstore.query.selection import is_offset_id
from rmqstore.read.pending import delivered_offsets
from rmqstore.read.views.dead_letters import known_names
from rmqstore.storage.broker.config_files import OFFSETS, warn_if_unknown
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_LEAST_ID_DIGITS: Final = 32  # ids may be decimal by chance, but no offset is as long

_OF_RECORD: Final = (
    "topic", "queueId", "queueOffset", "storeTimestamp", "reconsumeTimes", "msgId", "offsetMsgId",
    "commitLogOffset",
)  # fmt: skip
COLUMNS: Final = pa.schema(
    [
        ("kind", pa.string()),
        *(ALL_COLUMNS.field(name) for name in _OF_RECORD[:5]),
        ("consumerGroup", pa.string()),
        ("consumerOffset", pa.int64()),
        ("state", pa.string()),
        *(ALL_COLUMNS.field(name) for name in _OF_RECORD[5:]),
    ]
)
MESSAGE = "message"
RETRY = "retry"
DEAD_LETTER = "deadLetter"
DELAYED = "delayed"
TIMED = "timed"
PREPARED = "prepared"

CONSUMED = "consumed"
NOT_CONSUMED = "not consumed"
UNKNOWN = "unknown"
DELIVERED = "delivered"
WAITING = "waiting"
_KINDS: Final = {
    SCHEDULE_TOPIC: DELAYED,
    TIMER_TOPIC: TIMED,
    HALF_TOPIC: PREPARED,
    ROCKSDB_HALF_TOPIC: PREPARED,
}
_MAX_ROUNDS: Final = 4  # a copy leads to its origin, and that to its other copies

Row = dict[str, Any]
Offsets = Mapping[str, Mapping[tuple[str, int], int]]  # by group, topic and queue id


class FoundMessages(NamedTuple):
    """What some ids name.

    Attributes:
        rows: the messages, as rows by column name, in the order of the ids. An id that several
            records have, such as a message and its retries, gives all of them, oldest first.
        missing: why there is no message, by id.
    """

    rows: list[dict[str, Any]]
    missing: dict[str, str]

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return the messages with some of their columns."""
        return pa.Table.from_pylist(self.rows, schema=schema)


def find_messages(
    store: MessageStore,
    ids: Sequence[str],
    topics: TopicArguments | None = None,
    progress: Progress = ignore_progress,
) -> FoundMessages:
    """Find the messages that some ids name, whatever kind of id each of them is.

    The host in an offset message id is ignored if no message has that very id, so an id is valid
    for a copy too.

    Args:
        store: the store.
        ids: physical offsets in decimal, offset message ids, or unique keys.
        topics: the topics in which unique keys are looked up; all topics by default.
        progress: called with the bytes of the log that are read, and their total.

    Raises:
        CorruptRecordError: the record of one is damaged.
    """
    store.parts.warn_of_messages_elsewhere()
    rows: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    of_copies: dict[str, dict[str, Any]] = {}
    looked_up = []
    for name in dict.fromkeys(ids):
        is_offset = name.isdecimal() and len(name) < _LEAST_ID_DIGITS
        if not is_offset and (store.parts.is_tiered or not is_offset_id(name)):
            looked_up.append(name)
            continue
        if is_offset:
            store.parts.require("looking up a physical offset")
        try:
            message = store.get(int(name) if is_offset else name)
        except (MessageNotFoundError, OffsetOutOfRangeError) as err:
            if is_offset:
                missing[name] = str(err)
            else:  # a unique key has the form of an offset message id, too
                looked_up.append(name)
            continue
        row = message._asdict() | {"properties": list(message.properties.items())}
        if is_offset or row["offsetMsgId"] == name.upper():
            rows[name] = [row]
        else:
            looked_up.append(name)
            of_copies[name] = row
    for name, found in _look_up(store, looked_up, topics, progress).items():
        if found:
            rows[name] = found
        elif name in of_copies:
            rows[name] = [of_copies[name]]
        else:
            missing[name] = "no message has this id"
    return FoundMessages([row for name in ids for row in rows.get(name, ())], missing)


def _look_up(
    store: MessageStore,
    ids: Sequence[str],
    topics: TopicArguments | None,
    progress: Progress,
) -> dict[str, list[dict[str, Any]]]:
    """Return the messages with unique keys or offset message ids, by id."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ids}
    if not ids:
        return found
    chosen: TopicArguments = topics or {"include_system_topics": True}
    names = [name for name in ALL_COLUMNS.names if name != "tagsCode"]
    # Damage, which a warning names, must not hide what is intact.
    scan = store.scan(
        msg_id=list(ids), columns=names, mode="PERMISSIVE", progress=progress, **chosen
    )
    for batch in scan:
        for row in batch.to_pylist():
            damage = row.pop("_corrupt_record")
            if damage is not None:
                logger.warning("%s", damage)
            for name in ids:
                upper = name.upper() if is_offset_id(name) else name
                if row["msgId"] in (name, upper) or row["offsetMsgId"] == upper:
                    found[name].append(row)
    return found


def trace(store: MessageStore, message_id: str, progress: Progress = ignore_progress) -> pa.Table:
    """Return what became of a message, with the columns :data:`COLUMNS`, oldest record first.

    Each record has a row for each consumer group that has committed an offset of its topic, and at
    least one row. ``state`` says of a group whether its offset has passed the record, unknown if
    it has none of the queue; of a delayed message whether the broker has delivered it.

    Args:
        store: the store.
        message_id: any id of any record of the message; see :func:`find_messages`.
        progress: called with the bytes of the log that are read, and their total.

    Raises:
        MessageNotFoundError: no message has the id.
        CorruptRecordError: a record is damaged.
    """
    found = find_messages(store, [message_id], progress=progress)
    if not found.rows:
        raise MessageNotFoundError(f"{message_id}: {found.missing[message_id]}")
    records = _records_of_message(store, message_id, found.rows, progress)
    # Each queue in tiered storage has a log of its own.
    order = "storeTimestamp" if store.parts.is_tiered else "commitLogOffset"
    oldest_first = sorted(records.values(), key=lambda row: (row[order], _identity(row)))
    offsets: Offsets = {}
    delays: Mapping[int, int] = {}
    try:
        warn_if_unknown(store.paths, OFFSETS)
        offsets = store.parts.config.committed_offsets()
        delays = delivered_offsets(store.parts)
    except (RmqStoreError, OSError) as err:
        logger.warning("%s; what groups have consumed is not known", err)
    known = known_names(store.parts)
    traced = [row for record in oldest_first for row in _rows(record, offsets, delays, known)]
    return pa.Table.from_pylist(traced, schema=COLUMNS)


def _records_of_message(
    store: MessageStore, message_id: str, rows: list[Row], progress: Progress
) -> dict[tuple[Any, ...], Row]:
    """Return the records that an id names, their origins and all copies, by their identity."""
    records: dict[tuple[Any, ...], Row] = {}
    seen = {message_id}
    for _ in range(_MAX_ROUNDS):
        records |= {_identity(row): row for row in rows}
        origins = [origin_of(row["topic"], dict(row["properties"])) for row in rows]
        named = {*map(_unique_key, rows), *(one.message_id for one in origins if one is not None)}
        ids = {name for name in named if name} - seen
        seen |= ids
        if not ids:
            break
        rows = find_messages(store, sorted(ids), progress=progress).rows
    without_key = [row["offsetMsgId"] for row in records.values() if not _unique_key(row)]
    if without_key:  # their retries and dead letters name them as their origin
        names = ", ".join(f"'{origin_id}'" for origin_id in without_key)
        copies = store.view(
            "deadLetters",
            columns=["commitLogOffset", "msgId"],
            where=f"originMsgId IN ({names})",
        )
        by = "msgId" if store.parts.is_tiered else "commitLogOffset"
        found_copies = [str(copy[by]) for copy in copies.to_arrow().to_pylist()]
        for row in find_messages(store, found_copies, progress=progress).rows:
            records[_identity(row)] = row
    return records


def _identity(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("commitLogOffset", "topic", "queueId", "queueOffset"))


def _unique_key(row: Row) -> str | None:
    return dict(row["properties"]).get(PROPERTY_UNIQ_KEY)


def _rows(
    record: Row, offsets: Offsets, delays: Mapping[int, int], known: KnownNames
) -> Iterator[Row]:
    """Yield the rows of one record."""
    topic = record["topic"]
    queue_id = record["queueId"]
    origin = origin_of(topic, dict(record["properties"]), known)
    row = {name: record[name] for name in _OF_RECORD}
    row["kind"] = _KINDS.get(topic, MESSAGE)
    if is_copy_topic(topic):
        row["kind"] = DEAD_LETTER if topic.startswith(DLQ_PREFIX) else RETRY
    row["consumerGroup"] = None if origin is None else origin.group
    if topic == SCHEDULE_TOPIC:
        next_offset = delays.get(queue_id + 1)  # the queue of a delay level
        yield row | {"state": _state(record, next_offset, DELIVERED, WAITING)}
        return
    if row["kind"] in (TIMED, PREPARED):  # only the broker consumes these
        yield row
        return
    consumers = {
        group: of_group.get((topic, queue_id))
        for group, of_group in sorted(offsets.items())
        if any(name == topic for name, _ in of_group)
    }
    if row["kind"] == RETRY and origin is not None:
        consumers.setdefault(origin.group, None)
    for group, offset in consumers.items():
        state = _state(record, offset, CONSUMED, NOT_CONSUMED)
        yield row | {"consumerGroup": group, "consumerOffset": offset, "state": state}
    if not consumers:
        yield row


def _state(record: Row, next_offset: int | None, passed: str, not_passed: str) -> str:
    if next_offset is None:
        return UNKNOWN
    return passed if next_offset > record["queueOffset"] else not_passed
