"""Topic names with a meaning: system topics, and topics that clients must not send to."""

from __future__ import annotations

from typing import Final

from rmqstore.format.layout import LMQ_PREFIX, SCHEDULE_TOPIC

# Source: TopicValidator.java#SYSTEM_TOPIC_SET; MixAll.java and PopAckConstants.java for the
# prefixes.
SYSTEM_TOPICS = frozenset(
    {
        "TBW102", SCHEDULE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    }
)  # fmt: skip
_SYSTEM_PREFIXES = ("rmq_sys_", "%RETRY%", "%DLQ%", LMQ_PREFIX)
_SYSTEM_SUFFIX = "_REPLY_TOPIC"


def is_system_topic(topic: str) -> bool:
    """Tell whether a topic is the broker's own, or kept by it for a consumer group (retry, dead letters, reply)."""
    return (
        topic in SYSTEM_TOPICS
        or topic.startswith(_SYSTEM_PREFIXES)
        or topic.endswith(_SYSTEM_SUFFIX)
    )


FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    }
)  # fmt: skip


HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
