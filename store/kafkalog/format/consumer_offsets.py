"""Records of ``__consumer_offsets`` and ``__transaction_state``, in all their versions.

Committed offsets are parsed; all others are only shown, as kafka-dump-log shows them.

Source: the messages of group-coordinator and transaction-coordinator, DumpLogSegments.scala.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

from kafkalog.format.varints import read_unsigned
from rmqstore.errors import MalformedBytesError
from rmqstore.format.text import decode_text

Json: TypeAlias = dict[str, Any]

_OFFSET_KEYS: Final = (0, 1)  # types of their records
_EVER: Final = 1 << 15  # more than a version
_NUMBERS: Final = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q"}


class _Field(NamedTuple):
    """A field of a message.

    Attributes:
        name: as JSON has it.
        kind: one of _NUMBERS, string, bytes, uuid, a list of one kind, or the fields of a struct.
        since: first version that has it.
        until: last version that has it.
        tag: its number if it is a tagged field, which a message may lack.
        is_nullable: whether a byte before it says that it is there, as of structs that may be null.
    """

    name: str
    kind: Any
    since: int = 0
    until: int = _EVER
    tag: int | None = None
    is_nullable: bool = False


class _Message(NamedTuple):
    """The fields of a message, its newest version, and from which one on its coding is flexible."""

    fields: tuple[_Field, ...]
    newest: int = 0
    flexible: int = 0


_F = _Field
_OF_MEMBER: Final = (_F("groupId", "string"), _F("memberId", "string"))
_OF_GROUP: Final = (_F("groupId", "string"),)
_BY_ID: Final = (_F("topicId", "uuid"), _F("partitions", ["int32"]))
_BY_NAME: Final = (_F("topic", "string"), _F("partitions", ["int32"]))
_TOPIC_METADATA: Final = (
    _F("topicId", "uuid"), _F("topicName", "string"), _F("numPartitions", "int32"),
    _F("partitionMetadata", [(_F("partition", "int32"), _F("racks", ["string"]))]),
)  # fmt: skip
_MEMBER: Final = (
    _F("memberId", "string"), _F("groupInstanceId", "string", 3), _F("clientId", "string"),
    _F("clientHost", "string"), _F("rebalanceTimeout", "int32", 1), _F("sessionTimeout", "int32"),
    _F("subscription", "bytes"), _F("assignment", "bytes"),
)  # fmt: skip
_CLASSIC_MEMBER: Final = (
    _F("sessionTimeoutMs", "int32"),
    _F("supportedProtocols", [(_F("name", "string"), _F("metadata", "bytes"))]),
)
_OFFSET_VALUE: Final = _Message(
    (
        _F("offset", "int64"), _F("leaderEpoch", "int32", 3), _F("metadata", "string"),
        _F("commitTimestamp", "int64"), _F("expireTimestamp", "int64", 1, 1),
        _F("topicId", "uuid", 4, tag=0),
    ),
    4, 4,
)  # fmt: skip
_GROUP_VALUE: Final = _Message(
    (
        _F("protocolType", "string"), _F("generation", "int32"), _F("protocol", "string"),
        _F("leader", "string"), _F("currentStateTimestamp", "int64", 2), _F("members", [_MEMBER]),
    ),
    4, 4,
)  # fmt: skip
_EPOCH: Final = (_F("epoch", "int32"), _F("metadataHash", "int64", tag=0))
_EPOCH_AND_HASH: Final = (_F("epoch", "int32"), _F("metadataHash", "int64"))
_TOPIC_PARTITIONS: Final = (
    _F("topicId", "uuid"), _F("topicName", "string"), _F("partitions", ["int32"]),
)  # fmt: skip
_KEY_AND_VALUE: Final = (_F("key", "string"), _F("value", "string"))
_TASK_IDS: Final = (_F("subtopologyId", "string"), _F("partitions", ["int32"]))
_TASKS: Final = (
    _F("activeTasks", [_TASK_IDS]), _F("standbyTasks", [_TASK_IDS]), _F("warmupTasks", [_TASK_IDS]),
)  # fmt: skip
_STREAMS_TOPIC: Final = (
    _F("name", "string"), _F("partitions", "int32"), _F("replicationFactor", "int16"),
    _F("topicConfigs", [_KEY_AND_VALUE]),
)  # fmt: skip
_SUBTOPOLOGY: Final = (
    _F("subtopologyId", "string"), _F("sourceTopics", ["string"]),
    _F("sourceTopicRegex", ["string"]), _F("stateChangelogTopics", [_STREAMS_TOPIC]),
    _F("repartitionSinkTopics", ["string"]), _F("repartitionSourceTopics", [_STREAMS_TOPIC]),
    _F("copartitionGroups", [(
        _F("sourceTopics", ["int16"]), _F("sourceTopicRegex", ["int16"]),
        _F("repartitionSourceTopics", ["int16"]),
    )]),
)  # fmt: skip
_MEMBER_STATE: Final = (
    _F("memberEpoch", "int32"), _F("previousMemberEpoch", "int32"), _F("state", "int8"),
    _F("assignedPartitions", [_BY_ID]),
)  # fmt: skip
_OFFSET_KEY: Final = (_F("group", "string"), _F("topic", "string"), _F("partition", "int32"))

# The fields of a key, and the value that belongs to it, by the type of the record.
_GROUP_RECORDS: Final[dict[int, tuple[tuple[_Field, ...], _Message]]] = {
    0: (_OFFSET_KEY, _OFFSET_VALUE),
    1: (_OFFSET_KEY, _OFFSET_VALUE),
    2: ((_F("group", "string"),), _GROUP_VALUE),
    3: (_OF_GROUP, _Message(_EPOCH)),
    4: (_OF_GROUP, _Message((_F("topics", [_TOPIC_METADATA]),))),
    5: (_OF_MEMBER, _Message((
        _F("instanceId", "string"), _F("rackId", "string"), _F("clientId", "string"),
        _F("clientHost", "string"), _F("subscribedTopicNames", ["string"]),
        _F("subscribedTopicRegex", "string"), _F("rebalanceTimeoutMs", "int32"),
        _F("serverAssignor", "string"),
        _F("classicMemberMetadata", _CLASSIC_MEMBER, tag=0),
    ))),
    6: (_OF_GROUP, _Message((_F("assignmentEpoch", "int32"),))),
    7: (_OF_MEMBER, _Message((_F("topicPartitions", [_BY_ID]),))),
    8: (_OF_MEMBER, _Message((*_MEMBER_STATE, _F("partitionsPendingRevocation", [_BY_ID])))),
    9: (_OF_GROUP, _Message((_F("topics", [_TOPIC_METADATA]),))),
    10: (_OF_MEMBER, _Message((
        _F("rackId", "string"), _F("clientId", "string"), _F("clientHost", "string"),
        _F("subscribedTopicNames", ["string"]),
    ))),
    11: (_OF_GROUP, _Message(_EPOCH_AND_HASH)),
    12: (_OF_GROUP, _Message((_F("assignmentEpoch", "int32"),))),
    13: (_OF_MEMBER, _Message((_F("topicPartitions", [_BY_ID]),))),
    14: (_OF_MEMBER, _Message(_MEMBER_STATE)),
    15: (_OF_GROUP, _Message((
        _F("initializingTopics", [_TOPIC_PARTITIONS]), _F("initializedTopics", [_TOPIC_PARTITIONS]),
        _F("deletingTopics", [(_F("topicId", "uuid"), _F("topicName", "string"))]),
    ))),
    16: (
        (_F("groupId", "string"), _F("regularExpression", "string")),
        _Message((_F("topics", ["string"]), _F("version", "int64"), _F("timestamp", "int64"))),
    ),
    17: (_OF_GROUP, _Message(_EPOCH_AND_HASH)),
    19: (_OF_MEMBER, _Message((
        _F("instanceId", "string"), _F("rackId", "string"), _F("clientId", "string"),
        _F("clientHost", "string"), _F("rebalanceTimeoutMs", "int32"),
        _F("topologyEpoch", "int32"), _F("processId", "string"),
        _F("userEndpoint", (_F("host", "string"), _F("port", "uint16")), is_nullable=True),
        _F("clientTags", [_KEY_AND_VALUE]),
    ))),
    20: (_OF_GROUP, _Message((_F("assignmentEpoch", "int32"),))),
    21: (_OF_MEMBER, _Message(_TASKS)),
    22: (_OF_MEMBER, _Message((
        _F("memberEpoch", "int32"), _F("previousMemberEpoch", "int32"), _F("state", "int8"),
        *_TASKS, _F("activeTasksPendingRevocation", [_TASK_IDS]),
        _F("standbyTasksPendingRevocation", [_TASK_IDS]),
        _F("warmupTasksPendingRevocation", [_TASK_IDS]),
    ))),
    23: (_OF_GROUP, _Message((_F("epoch", "int32"), _F("subtopologies", [_SUBTOPOLOGY])))),
}  # fmt: skip
_TRANSACTION_PARTITIONS: Final = (_F("topic", "string"), _F("partitionIds", ["int32"]))
_TRANSACTIONS: Final[dict[int, tuple[tuple[_Field, ...], _Message]]] = {
    0: ((_F("transactionalId", "string"),), _Message(
        (
            _F("producerId", "int64"), _F("previousProducerId", "int64", 1, tag=0),
            _F("nextProducerId", "int64", 1, tag=1), _F("producerEpoch", "int16"),
            _F("transactionTimeoutMs", "int32"), _F("transactionStatus", "int8"),
            _F("transactionPartitions", [_TRANSACTION_PARTITIONS]),
            _F("transactionLastUpdateTimestampMs", "int64"),
            _F("transactionStartTimestampMs", "int64"),
            _F("clientTransactionVersion", "int16", 1, tag=2),
        ),
        1, 1,
    )),
}  # fmt: skip
_CONSUMER_PROTOCOL: Final = {
    "subscription": _Message(
        (
            _F("topics", ["string"]), _F("userData", "bytes"), _F("ownedPartitions", [_BY_NAME], 1),
            _F("generationId", "int32", 2), _F("rackId", "string", 3),
        ),
        3, _EVER,
    ),
    "assignment": _Message(
        (_F("assignedPartitions", [_BY_NAME]), _F("userData", "bytes")), 3, _EVER
    ),
}  # fmt: skip


class OffsetKey(NamedTuple):
    """What an offset is committed for."""

    group: str
    topic: str
    partition: int


class OffsetValue(NamedTuple):
    """What is committed. Times are ms since the epoch; the leader epoch is -1 if unknown."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int


def parse_offset_key(key: bytes) -> OffsetKey | None:
    """Return the key of a committed offset; None if the record is of another type.

    Raises:
        MalformedBytesError: the key contradicts its version.
    """
    reader = _Reader(key)
    if reader.number(">h") not in _OFFSET_KEYS:
        return None
    fields = reader.fields(_OFFSET_KEY, 0)
    if fields["group"] is None or fields["topic"] is None:
        raise MalformedBytesError(0, "the key of a committed offset has no group or no topic")
    return OffsetKey(**fields)


def parse_offset_value(value: bytes) -> OffsetValue:
    """Return the value of a committed offset.

    Raises:
        MalformedBytesError: the value contradicts its version, or the version is unknown.
    """
    _, fields = _Reader(value).message(_OFFSET_VALUE)
    if fields["metadata"] is None:
        raise MalformedBytesError(0, "a committed offset has no metadata")
    epoch = fields.get("leaderEpoch", -1)
    return OffsetValue(fields["offset"], epoch, fields["metadata"], fields["commitTimestamp"])


class _Reader:
    """Reads the fields of a message, one after the other."""

    def __init__(self, data: bytes, *, is_flexible: bool = False) -> None:
        self._data = data
        self._at = 0
        self.is_flexible = is_flexible

    def number(self, form: str) -> int:
        (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(number)

    def message(self, message: _Message) -> tuple[int, Json]:
        """Return the version of a message, and its fields, bytes in base64 as JSON has them."""
        version = self.number(">h")
        if not 0 <= version <= message.newest:
            raise MalformedBytesError(0, f"version {version} of a record is unknown")
        self.is_flexible = version >= message.flexible
        return version, self.fields(message.fields, version)

    def fields(self, fields: tuple[_Field, ...], version: int) -> Json:
        present = [field for field in fields if field.since <= version <= field.until]
        found: Json = {}
        for field in present:
            if field.tag is not None:
                continue
            if field.is_nullable and self.number(">b") < 0:
                found[field.name] = None
            else:
                found[field.name] = self._value(field.kind, version)
        known = {field.tag: field for field in present if field.tag is not None}
        for _ in range(self._unsigned() if self.is_flexible else 0):
            tag, n_bytes = self._unsigned(), self._unsigned()
            inside = _Reader(self._take(n_bytes), is_flexible=True)
            if tag in known:
                field = known[tag]
                is_null = isinstance(field.kind, tuple) and not inside._unsigned()
                found[field.name] = None if is_null else inside._value(field.kind, version)
        return {field.name: found[field.name] for field in present if field.name in found}

    def _value(self, kind: Any, version: int) -> Any:  # noqa: ANN401 - as the kind is
        if isinstance(kind, tuple):
            return self.fields(kind, version)
        if isinstance(kind, list):
            count = self._length(">i")
            if count is not None and count > len(self._data) - self._at:
                raise MalformedBytesError(self._at, f"a list has {count} entries")
            return None if count is None else [self._value(kind[0], version) for _ in range(count)]
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == "uuid":
            return base64.urlsafe_b64encode(self._take(16)).decode().rstrip("=")
        length = self._length(">h" if kind == "string" else ">i")
        if length is None:
            return None
        content = self._take(length)
        return decode_text(content) if kind == "string" else base64.b64encode(content).decode()

    def _length(self, form: str) -> int | None:
        length = self._unsigned() - 1 if self.is_flexible else self.number(form)
        return length if length >= 0 else None

    def _unsigned(self) -> int:
        number, self._at = read_unsigned(self._data, self._at)
        return number

    def _take(self, n_bytes: int) -> bytes:
        start, end = self._at, self._at + n_bytes
        if end > len(self._data):
            raise MalformedBytesError(start, f"a field of {n_bytes} bytes is cut off")
        self._at = end
        return self._data[start:end]


class Decoded(NamedTuple):
    """What a record of one of Kafka's own topics says, as kafka-dump-log shows it.

    Attributes:
        key: type and fields of the key; None if they are not known.
        value: version and fields of the value; None for a deletion, whose value is null.
        reason: why key or value is not known; None if both are, and for a deletion.
    """

    key: Json | None
    value: Json | None
    reason: str | None = None


Decode: TypeAlias = Callable[[bytes | None, bytes | None], Decoded]


def _decode(
    records: dict[int, tuple[tuple[_Field, ...], _Message]], key: bytes | None, value: bytes | None
) -> Decoded:
    """Return what a record says."""
    if key is None:
        return Decoded(None, None, "the record has no key")
    shown = None
    try:
        reader = _Reader(key)
        kind = reader.number(">h")
        if kind not in records:
            return Decoded(None, None, f"records of type {kind} are not known")
        fields, message = records[kind]
        shown = {"type": str(kind), "data": reader.fields(fields, 0)}
        if value is None:
            return Decoded(shown, None)
        version, content = _Reader(value).message(message)
    except MalformedBytesError as err:
        return Decoded(shown, None, f"cannot be decoded: {err.reason}")
    if content.get("protocolType") == "consumer":
        # what each consumer subscribed to and was given; where that cannot be read, the bytes stay
        protocol = _CONSUMER_PROTOCOL.items()
        for member, (name, message) in product(content["members"] or (), protocol):
            with suppress(MalformedBytesError):
                reader = _Reader(base64.b64decode(member[name] or ""))
                newest = min(reader.number(">h"), message.newest)
                member[name] = reader.fields(message.fields, newest)
    return Decoded(shown, {"version": str(version), "data": content})


decode_group_record: Final[Decode] = partial(_decode, _GROUP_RECORDS)
decode_transaction_record: Final[Decode] = partial(_decode, _TRANSACTIONS)
