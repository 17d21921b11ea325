"""Topic names with a meaning: system topics, and topics that clients must not send to."""

from __future__ import annotations

from typing import Final

from rmqstore.format.layout import LMQ_PREFIX, SCHEDULE_TOPIC

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

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
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
}
# Source: MixAll.java, PopAckConstants.java.
_SYSTEM_PREFIXES = ("rmq_sys_", "%RETRY%", "%DLQ%", LMQ_PREFIX)
_SYSTEM_SUFFIX = "_REPLY_TOPIC"


def is_system_topic(topic: str) -> bool:
    """Tell whether a topic is the broker's own.

    The broker also keeps topics for consumer groups: for retries, dead letters and replies.
    """
    has_affix = topic.startswith(_SYSTEM_PREFIXES) or topic.endswith(_SYSTEM_SUFFIX)
    return has_affix or topic in SYSTEM_TOPICS
