"""The views of a store: names, columns, and the arguments that each takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.format.schema import PROPERTIES, TIMESTAMP
from rmqstore.query.allocation import Sharing, parse_sharing
from rmqstore.query.arguments import BOUND_ARGUMENTS
from rmqstore.query.selection import Selection, parse_selection
from rmqstore.read.read_spec import widened

BROKER_NAME: Final = "brokerName"

# The columns of each view after the first one, which has the name of the broker.
# fmt: off
COLUMN_TYPES: Final[dict[str, dict[str, pa.DataType]]] = {
    "queues": {
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "minOffset":           pa.int64(),   # queue offset of the first message that is there
        "maxOffset":           pa.int64(),   # after the last
        "messages":            pa.int64(),
        "bytes":               pa.int64(),   # of their records, as the units say
        "firstStoreTimestamp": TIMESTAMP,
        "lastStoreTimestamp":  TIMESTAMP,
        "reason":              pa.string(),  # why something is not known
    },
    "topics": {
        "topic":               pa.string(),
        "isSystem":            pa.bool_(),
        "queues":              pa.int32(),   # that have files
        "messages":            pa.int64(),
        "bytes":               pa.int64(),
        "firstStoreTimestamp": TIMESTAMP,
        "lastStoreTimestamp":  TIMESTAMP,
        "readQueueNums":       pa.int32(),   # of topics.json
        "writeQueueNums":      pa.int32(),
        "perm":                pa.int32(),   # 4 read, 2 write
        "reason":              pa.string(),
    },
    "commitlog": {
        "commitLogOffset":     pa.int64(),
        "storeSize":           pa.int64(),   # bytes of the record, the blank, the span
        "kind":                pa.string(),  # record, blank, damage, missing, end
        "isValid":             pa.bool_(),
        "reason":              pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "storeTimestamp":      TIMESTAMP,
        "bornTimestamp":       TIMESTAMP,
        "sysFlag":             pa.int32(),
        "magic":               pa.string(),  # eight hex digits
        "bodySize":            pa.int32(),
        "propertiesSize":      pa.int32(),
        "preparedTransactionOffset": pa.int64(),
        "file":                pa.string(),
    },
    "consumequeue": {
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "commitLogOffset":     pa.int64(),
        "storeSize":           pa.int32(),
        "tagsCode":            pa.int64(),
        "isValid":             pa.bool_(),
        "reason":              pa.string(),
    },
    "index": {
        "file":                pa.string(),
        "number":              pa.int32(),
        "slot":                pa.int32(),
        "keyHash":             pa.int32(),
        "commitLogOffset":     pa.int64(),
        "seconds":             pa.int32(),   # from the file's first record
        "storeTimestamp":      TIMESTAMP,    # to the second
        "previous":            pa.int32(),
        "isValid":             pa.bool_(),
        "reason":              pa.string(),
    },
    "groups": {
        "consumerGroup":       pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "consumerOffset":      pa.int64(),   # committed: the next one to consume
        "minOffset":           pa.int64(),
        "brokerOffset":        pa.int64(),   # the queue's maxOffset
        "lag":                 pa.int64(),   # messages
        "lagMillis":           pa.int64(),   # from the next message to the newest
        "nextStoreTimestamp":  TIMESTAMP,
        "lastStoreTimestamp":  TIMESTAMP,
        "reason":              pa.string(),
    },
    "epochs": {
        "epoch":               pa.int32(),
        "startOffset":         pa.int64(),   # physical offset of its first record
        "endOffset":           pa.int64(),   # where the next one starts, or the log ends
        "reason":              pa.string(),
    },
    "stores": {
        "path":                pa.string(),  # the root of the store
        "clusterName":         pa.string(),
        "brokerId":            pa.int64(),   # 0: the master, but with a controller
        "brokerAddr":          pa.string(),  # of broker.conf
        "minOffset":           pa.int64(),   # physical, where the log begins
        "maxOffset":           pa.int64(),   # physical, after the last record
        "epoch":               pa.int32(),   # the last one, in controller mode
        "isRead":              pa.bool_(),   # whether a read of all the stores reads this one
        "reason":              pa.string(),  # why it does not, or what is wrong
    },
    "routes": {
        "topic":               pa.string(),
        "readQueueNums":       pa.int32(),
        "writeQueueNums":      pa.int32(),
        "perm":                pa.int32(),   # 4 read, 2 write
        "topicSysFlag":        pa.int32(),
        "clusterName":         pa.string(),
        "brokerAddrs":         PROPERTIES,   # by broker id
        "order":               pa.bool_(),
        "orderTopicConf":      pa.string(),  # as mqadmin writes it
        "reason":              pa.string(),
    },
    "assignments": {
        "consumerGroup":       pa.string(),
        "clientId":            pa.string(),  # null: the strategy gives the queue to nobody
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "consumerOffset":      pa.int64(),
        "brokerOffset":        pa.int64(),   # the queue's maxOffset
        "lag":                 pa.int64(),   # messages
        "lagBytes":            pa.int64(),
        "reason":              pa.string(),
    },
    "files": {
        "path":                pa.string(),  # below the store's root
        "kind":                pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "size":                pa.int64(),
        "allocated":           pa.int64(),   # bytes on the disk: files are sparse
        "rangeStart":          pa.int64(),   # physical offsets; queue offsets of a queue's files
        "rangeEnd":            pa.int64(),
        "modified":            TIMESTAMP,
        "state":               pa.string(),  # live, preallocated, empty, stale, cut
        "firstStoreTimestamp": TIMESTAMP,    # of its records, of files of the log and of the index
        "lastStoreTimestamp":  TIMESTAMP,
    },
    "deadLetters": {
        "consumerGroup":       pa.string(),  # that failed to consume the message
        "kind":                pa.string(),  # deadLetter, retry
        "topic":               pa.string(),  # of the copy
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "originTopic":         pa.string(),
        "originMsgId":         pa.string(),  # of the first message that was sent back
        "msgId":               pa.string(),  # the same for all copies that have a UNIQ_KEY
        "tags":                pa.string(),
        "keys":                pa.string(),
        "reconsumeTimes":      pa.int32(),   # attempts that have failed
        "bornTimestamp":       TIMESTAMP,    # when the message was sent first
        "storeTimestamp":      TIMESTAMP,    # when the copy was made
        "commitLogOffset":     pa.int64(),
        "storeSize":           pa.int32(),
        "reason":              pa.string(),
    },
    "traces": {
        "traceType":           pa.string(),  # Pub, SubBefore, SubAfter, EndTransaction, Recall
        "timestamp":           TIMESTAMP,    # when a send or a consumption began, or ended
        "groupName":           pa.string(),  # of producers or of consumers
        "topic":               pa.string(),  # of the message
        "msgId":               pa.string(),
        "offsetMsgId":         pa.string(),
        "tags":                pa.string(),
        "keys":                pa.string(),
        "costMillis":          pa.int32(),
        "isSuccess":           pa.bool_(),
        "contextCode":         pa.int32(),   # how a consumption ended
        "retryTimes":          pa.int32(),
        "requestId":           pa.string(),  # the same for SubBefore and SubAfter
        "bodySize":            pa.int32(),
        "msgType":             pa.string(),
        "storeHost":           pa.string(),
        "clientHost":          pa.string(),
        "regionId":            pa.string(),
        "transactionId":       pa.string(),
        "transactionState":    pa.string(),
        "isTransactionCheck":  pa.bool_(),
        "traceTopic":          pa.string(),  # these are of the message that holds the trace
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "storeTimestamp":      TIMESTAMP,
        "commitLogOffset":     pa.int64(),
        "reason":              pa.string(),
    },
    "consumed": {
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "consumerGroup":       pa.string(),  # null: no group has an offset of the topic
        "consumerOffset":      pa.int64(),   # that the group has committed of the queue
        "isPassed":            pa.bool_(),   # whether that is after the message
        "msgId":               pa.string(),
        "tags":                pa.string(),
        "keys":                pa.string(),
        "storeTimestamp":      TIMESTAMP,
        "commitLogOffset":     pa.int64(),
        "storeSize":           pa.int32(),
        "reason":              pa.string(),
    },
}
# fmt: on

# People look for damage in views, so damage is shown or left out but never stops a view.
PERMISSIVE, DROPMALFORMED = VIEW_MODES = ("PERMISSIVE", "DROPMALFORMED")

# These show all stores of a read together, the others each store by itself.
OF_CLUSTER: Final = ("stores", "routes", "assignments")
# These need arguments.
SHARING_QUEUES: Final = ("assignments",)
# These read messages, and take the bounds of a scan.
OF_MESSAGES: Final = ("deadLetters", "traces", "consumed")

_ALL: Final = {
    name: pa.schema([(BROKER_NAME, pa.string()), *types.items()])
    for name, types in COLUMN_TYPES.items()
}
VIEW_NAMES: Final = tuple(_ALL)
VIEWS: Final[dict[str, pa.Schema]] = {  # that need no arguments
    name: schema for name, schema in _ALL.items() if name not in SHARING_QUEUES
}

BY_QUEUE: Final = ("queues", "topics", "commitlog", "consumequeue", "groups", *OF_MESSAGES)
BY_TOPIC: Final = (*BY_QUEUE, "routes", "assignments")
HIDING_SYSTEM_TOPICS: Final = ("queues", "topics", "consumequeue", "routes", "consumed")
SHOWING_DAMAGE: Final = ("commitlog", "consumequeue", "index", *OF_MESSAGES)
CHECKING_CRC: Final = ("commitlog", *OF_MESSAGES)
OF_GROUP: Final = (*SHARING_QUEUES, "deadLetters", "consumed")

# The views that take each argument.
ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    "subscribe": BY_TOPIC,
    "subscribe_pattern": BY_TOPIC,
    "assign": BY_QUEUE,
    "include_system_topics": HIDING_SYSTEM_TOPICS,
    **dict.fromkeys(BOUND_ARGUMENTS, OF_MESSAGES),
    "consumer_group": OF_GROUP,
    "clients": SHARING_QUEUES,
    "strategy": SHARING_QUEUES,
    "rooms": SHARING_QUEUES,
    "mode": SHOWING_DAMAGE,
    "check_crc": CHECKING_CRC,
}


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """The request for a view, the same for every part of it."""

    view: str
    schema: pa.Schema  # the requested columns, in their order
    selection: Selection = field(default_factory=Selection)
    mode: str = PERMISSIVE
    check_crc: bool = True
    sharing: Sharing | None = None  # of the view ``assignments``
    consumer_group: str | None = None  # of views of messages: only this group

    def __post_init__(self) -> None:
        """Refuse a mode that views do not have."""
        if self.mode not in VIEW_MODES:
            raise OptionError(
                f"`mode` {self.mode!r}: a view is not stopped by damage; PERMISSIVE shows "
                "it, DROPMALFORMED leaves it out"
            )

    def widened(self, columns: Iterable[pa.Field]) -> ViewSpec:
        """Return the request with further columns, which a condition compares."""
        return replace(self, schema=widened(self.schema, columns))

    @property
    def named(self) -> Selection | None:
        """What names topics or queues that a store must have; None if nothing does."""
        must_be_there = self.view in (*HIDING_SYSTEM_TOPICS, *OF_MESSAGES)
        return self.selection if must_be_there and self.selection.named_topics else None

    @property
    def names_groups(self) -> bool:
        """Whether it names a consumer group, or topics of the groups, that must be there."""
        is_of_groups = self.view == "groups" and bool(self.selection.named_topics)
        return is_of_groups or self.consumer_group is not None or self.sharing is not None


def view_columns(view: str) -> pa.Schema:
    """Return all columns of a view.

    Raises:
        OptionError: there is no such view.
    """
    if view not in _ALL:
        raise OptionError(f"view {view!r}: one of messages, {', '.join(_ALL)}")
    return _ALL[view]


def select_view_columns(view: str, names: Iterable[str]) -> pa.Schema:
    """Return the schema of the named columns of a view, in the order given.

    Raises:
        OptionError: a name is unknown or comes twice, or there is none.
    """
    known, chosen = view_columns(view), list(names)
    unknown = [name for name in chosen if name not in known.names]
    if unknown:
        raise OptionError(
            f"`columns`: unknown {', '.join(unknown)}; view {view} has {', '.join(known.names)}"
        )
    if not chosen or len(set(chosen)) < len(chosen):
        raise OptionError(f"`columns`: name each column once and at least one, got {chosen}")
    return pa.schema([known.field(name) for name in chosen])


def view_spec(
    view: str,
    *,
    columns: str | Iterable[str] | pa.Schema | None = None,
    mode: str | None = None,
    check_crc: bool | None = None,
    consumer_group: str | None = None,
    clients: str | Iterable[str] | None = None,
    strategy: str | None = None,
    rooms: str | Iterable[str] | None = None,
    **selection: object,
) -> ViewSpec:
    """Return the checked request for a view.

    Args:
        view: name of the view.
        columns: names of columns, as a list or separated by commas; all by default.
        mode: PERMISSIVE or DROPMALFORMED, for the views that show damage.
        check_crc: whether to check CRCs, for ``commitlog`` and views of messages.
        consumer_group: the group, for the view ``assignments``; only this group, for views of
            messages.
        clients: the ids of all its clients, as a list or separated by commas.
        strategy: how they share the queues, ``AVG`` by default.
        rooms: with ``MACHINE_ROOM``: those whose brokers' queues are consumed.
        selection: subscribe, subscribe_pattern, assign and include_system_topics, for the views
            that know topics; where queues start and end, for views of messages.

    Raises:
        OptionError: the view does not take an argument, or a value is out of its domain.
    """
    known = view_columns(view)
    given = {name for name, value in selection.items() if value is not None and value is not False}
    others = {
        "mode": mode,
        "check_crc": check_crc,
        "consumer_group": consumer_group,
        "clients": clients,
        "strategy": strategy,
        "rooms": rooms,
    }
    given |= {name for name, value in others.items() if value is not None}
    require_allowed(view, given)
    sharing = None
    if view in SHARING_QUEUES:
        sharing = parse_sharing(consumer_group or "", clients or (), strategy or "AVG", rooms)
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    if columns is not None and not isinstance(columns, pa.Schema):
        columns = select_view_columns(view, columns)
    return ViewSpec(
        view=view,
        schema=known if columns is None else columns,
        selection=parse_selection(**selection),  # type: ignore[arg-type]  # it checks them itself
        mode=mode or PERMISSIVE,
        check_crc=check_crc is not False,
        sharing=sharing,
        consumer_group=consumer_group if view in OF_MESSAGES else None,
    )


def require_allowed(view: str, arguments: Iterable[str]) -> None:
    """Refuse arguments that make no sense with a view.

    Raises:
        OptionError: an argument is not one of the view. The message names it.
    """
    for name in sorted(arguments):
        views = ALLOWED.get(name, ())
        if view not in views:
            where = f"it is for {', '.join(views)}" if views else "it is for messages"
            raise OptionError(f"`{name}` has no meaning with view {view}: {where}")
