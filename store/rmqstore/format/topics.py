"""Topic names: system topics, topics closed to clients, and refused names."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from rmqstore.format.layout import LMQ_PREFIX, SCHEDULE_TOPIC

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
# those of brokers from 5.4 on that keep undecided transactions in RocksDB
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
# Source: MixAll.java.
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"

# Source: TopicValidator.java#NOT_ALLOWED_SEND_TOPIC_SET.
FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
# Source: TopicValidator.java#SYSTEM_TOPIC_SET.
SYSTEM_TOPICS = FORBIDDEN_TOPICS | {
    "TBW102",
    "BenchmarkTest",
    "RMQ_SYS_TRACE_TOPIC",
    "CHECKPOINT_TOPIC",
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OP_TOPIC,
}
# Source: MixAll.java, PopAckConstants.java.
_SYSTEM_PREFIXES = ("rmq_sys_", RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX)
_SYSTEM_SUFFIX = "_REPLY_TOPIC"

# Source: TopicValidator.java.
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_MAX_TOPIC, _MAX_GROUP_TOPIC = 127, 255
_GROUP_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is the broker's own.

    The broker also keeps topics for consumer groups: for retries, dead letters and replies.
    """
    has_affix = topic.startswith(_SYSTEM_PREFIXES) or topic.endswith(_SYSTEM_SUFFIX)
    return has_affix or topic in SYSTEM_TOPICS


def was_deleted(topic: str, known: Collection[str]) -> bool:
    """Return whether a topic without queues was deleted.

    Args:
        topic: the topic.
        known: those of ``topics.json``; without any nothing is known.
    """
    return bool(known) and topic not in known and not is_system_topic(topic)


def system_topic_pattern() -> str:
    """Return a regular expression of the topics for which :func:`is_system_topic` is true."""
    prefixes = "|".join(map(re.escape, _SYSTEM_PREFIXES))
    names = "|".join(map(re.escape, sorted(SYSTEM_TOPICS)))
    return f"(?:(?:{prefixes}).*|.*{_SYSTEM_SUFFIX}|{names})"


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
            f"topic {topic} belongs to the broker; `allow_system_topics=True` writes to "
            "it all the same"
        )
    return None
