"""The columns of a message: their names, Arrow types and order; ``Message`` is one row."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.notebook import table

_MAX_SHOWN: Final = 300  # characters of a value in a notebook

# Columns that the store assigns. Rows that were read may have them; writing ignores them.
ASSIGNED: Final = (
    "queueOffset", "commitLogOffset", "storeTimestamp", "storeHost", "storeSize", "bodyCRC",
    "sysFlag", "preparedTransactionOffset", "brokerName", "offsetMsgId", "tagsCode", "pending",
    "dueTimestamp",
)  # fmt: skip

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())


class Message(NamedTuple):
    """One message with the default columns in their order.

    The field names are those of RocketMQ's MessageExt.
    """

    topic: str
    queueId: int
    queueOffset: int
    body: bytes
    tags: str | None
    keys: str | None
    msgId: str
    properties: dict[str, str]
    bornTimestamp: datetime | None  # None where the client's is not in the years 1 to 9999
    storeTimestamp: datetime
    bornHost: str
    storeHost: str
    flag: int
    sysFlag: int
    reconsumeTimes: int
    bodyCRC: int
    preparedTransactionOffset: int
    commitLogOffset: int
    storeSize: int
    brokerName: str | None
    offsetMsgId: str

    def _repr_html_(self) -> str:
        """Return the columns and their values as a table, for a notebook."""
        rows = self._asdict().items()
        return table(("column", "value"), rows, max_characters=_MAX_SHOWN)


# Properties that are RocketMQ's own; a producer cannot set them as its own.
# Source: MessageConst.java#STRING_HASH_SET, and the checksum of a whole record.
RESERVED_PROPERTIES: Final = (
    "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC",
    "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID",
    "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY",
    "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME",
    "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO", "EXTEND_UNIQ_INFO", "INSTANCE_ID", "CORRELATION_ID",
    "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE",
    "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
    "TIMER_DELAY_LEVEL", "__BORNHOST", "BORN_TIMESTAMP", "__CRC32#",
)  # fmt: skip


# fmt: off
_TYPES: Final[dict[str, pa.DataType]] = {
    "topic":                     pa.string(),
    "queueId":                   pa.int32(),
    "queueOffset":               pa.int64(),
    "body":                      pa.binary(),    # decompressed; may be read as string
    "tags":                      pa.string(),    # property TAGS
    "keys":                      pa.string(),    # property KEYS
    "msgId":                     pa.string(),    # property UNIQ_KEY, otherwise offsetMsgId
    "properties":                PROPERTIES,     # may be read as string: as stored
    "bornTimestamp":             TIMESTAMP,
    "storeTimestamp":            TIMESTAMP,
    "bornHost":                  pa.string(),
    "storeHost":                 pa.string(),
    "flag":                      pa.int32(),
    "sysFlag":                   pa.int32(),     # as stored, also of bodies that were compressed
    "reconsumeTimes":            pa.int32(),
    "bodyCRC":                   pa.int32(),     # of the stored body
    "preparedTransactionOffset": pa.int64(),
    "commitLogOffset":           pa.int64(),
    "storeSize":                 pa.int32(),
    "brokerName":                pa.string(),
    "offsetMsgId":               pa.string(),
    "tagsCode":                  pa.int64(),     # from the ConsumeQueue unit, not from the record
}
# fmt: on

ON_REQUEST: Final = ("offsetMsgId", "tagsCode")
MESSAGE: Final = pa.schema(
    [pa.field(name, kind) for name, kind in _TYPES.items() if name not in ON_REQUEST]
)
ALL_COLUMNS: Final = pa.schema([pa.field(name, kind) for name, kind in _TYPES.items()])

# Columns that follow the others in a read that includes pending messages. They are null for all
# other messages.
PENDING: Final = pa.schema([pa.field("pending", pa.string()), pa.field("dueTimestamp", TIMESTAMP)])

# The contents of a record as stored, for exact copies: the body may be compressed, and the
# properties are one string.
_VERBATIM_NAMES: Final = (
    "topic", "queueId", "queueOffset", "body", "properties", "bornTimestamp", "storeTimestamp",
    "bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes", "preparedTransactionOffset",
    "commitLogOffset",
)  # fmt: skip
VERBATIM: Final = pa.schema(
    {name: _TYPES[name] for name in _VERBATIM_NAMES} | {"properties": pa.binary()}
)

# What rows that are written may have.
_WRITTEN_NAMES: Final = (
    "topic", "queueId", "body", "tags", "keys", "msgId", "properties", "flag", "bornTimestamp",
    "bornHost", "reconsumeTimes",
)  # fmt: skip
WRITE_TYPES: Final[dict[str, pa.DataType]] = {
    **{name: _TYPES[name] for name in _WRITTEN_NAMES},
    "delayTimeLevel": pa.int32(),
    "shardingKey": pa.string(),
}

# Types that a column may be read as besides its own: a wider integer, text for bytes, or the
# property string as stored.
ALSO_AS: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int32(): (pa.int64(),),
    pa.binary(): (pa.string(),),
    PROPERTIES: (pa.string(),),
}


def select_columns(names: Iterable[str]) -> pa.Schema:
    """Return the schema of the named columns, in the order given.

    Raises:
        OptionError: a name is unknown or given twice, or there is none.
    """
    columns = list(names)
    unknown = [name for name in columns if name not in _TYPES]
    if unknown == ["kafka"]:
        raise OptionError(
            "`columns`: kafka stands for the columns of Spark's Kafka source, in reads of "
            f"Spark only; a message has {', '.join(_TYPES)}"
        )
    if unknown:
        raise OptionError(
            f"`columns`: unknown column {', '.join(unknown)}; a message has {', '.join(_TYPES)}"
        )
    if not columns or len(set(columns)) < len(columns):
        raise OptionError(f"`columns`: name at least one column, each only once; got {columns}")
    return pa.schema([ALL_COLUMNS.field(name) for name in columns])
