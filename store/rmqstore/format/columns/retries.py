"""Retried and dead messages: which group failed to consume what, and where it was sent to first.

A message that a group fails to consume is stored again, with its body, its born time and its
properties: the unique key is the same in all copies. There are four kinds of topics for copies:

==================== ================================================================
``%RETRY%g``         retries of group ``g`` of any topic
``%RETRY%g_t``       retries of group ``g`` that consumes topic ``t`` by POP; since both names may
                     have underscores, the name alone does not tell where it is to be split
``%RETRY%g+t``       the same with ``enableRetryTopicV2``
``%DLQ%g``           dead letters of group ``g``, after the last attempt
==================== ================================================================

A copy in ``%RETRY%g`` or ``%DLQ%g`` has property RETRY_TOPIC, the topic of the first message that
was sent back, and ORIGIN_MESSAGE_ID, the id of that message: its offset message id if the broker
made the copy, its unique key if the client sent it. A retry of POP has neither, but 1ST_POP_TIME.
A dead letter of POP has the topic and the id of a retry. While a retry waits for its delay, it lies
in the topic of delayed messages, and REAL_TOPIC is where it is to be delivered.

The field ``reconsumeTimes`` of a copy is the number of attempts that have failed.

Source: AbstractSendMessageProcessor.java#consumerSendMsgBack,
SendMessageProcessor.java#handleRetryAndDLQ, PopReviveService.java#reviveRetry, KeyBuilder.java,
DefaultMQPushConsumerImpl.java#sendMessageBackAsNormalMessage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from rmqstore.format.layout import PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC
from rmqstore.format.topics import DLQ_PREFIX, RETRY_PREFIX, TIMER_TOPIC

PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
# These two are set by servers that are not open source; RocketMQ's proxy prefers them.
PROPERTY_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

ORIGIN_TOPIC_PROPERTIES: Final = (PROPERTY_DLQ_ORIGIN_TOPIC, PROPERTY_RETRY_TOPIC)
ORIGIN_ID_PROPERTIES: Final = (PROPERTY_DLQ_ORIGIN_MESSAGE_ID, PROPERTY_ORIGIN_MESSAGE_ID)

_POP_SEPARATOR, _POP_SEPARATOR_V2 = "_", "+"


class Origin(NamedTuple):
    """Where a retried or dead message comes from.

    Attributes:
        is_dead: whether the copy is a dead letter; otherwise it is a retry.
        is_waiting: whether the copy is a retry that waits for its delay.
        group: the consumer group that failed to consume the message.
        topic: the topic that the message was sent to; None if nothing tells it.
        message_id: the offset message id or the unique key of the message that was sent back first;
            None if the copy does not have it, as for retries of POP.
    """

    is_dead: bool
    is_waiting: bool
    group: str
    topic: str | None
    message_id: str | None


class KnownNames(NamedTuple):
    """The names by which ``%RETRY%g_t`` is split; more of them are better, but none is needed.

    Attributes:
        groups: names of consumer groups.
        topics: names of topics.
    """

    groups: Collection[str] = frozenset()
    topics: Collection[str] = frozenset()


NO_NAMES: Final = KnownNames()


def is_copy_topic(topic: str) -> bool:
    """Tell whether a topic holds retries or dead letters."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def may_hold_copies(topic: str, group: str) -> bool:
    """Tell whether a topic may have retries or dead letters of a group; the messages decide."""
    names = (f"{RETRY_PREFIX}{group}", f"{DLQ_PREFIX}{group}")
    return topic in names or topic.startswith(
        (f"{names[0]}{_POP_SEPARATOR}", f"{names[0]}{_POP_SEPARATOR_V2}")
    )


def origin_of(
    topic: str, properties: Mapping[str, str], known: KnownNames = NO_NAMES
) -> Origin | None:
    """Return where a message comes from, if it is a retry or a dead letter.

    Args:
        topic: the topic of the message.
        properties: its properties.
        known: names of groups and topics, for retries of POP.

    Returns:
        None for every other message.
    """
    is_waiting = topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
    if is_waiting:
        topic = properties.get(PROPERTY_REAL_TOPIC, "")
    if not is_copy_topic(topic):
        return None
    noted = first_property(properties, ORIGIN_TOPIC_PROPERTIES)
    group, named = group_and_topic(topic, has_origin=noted is not None, known=known)
    return Origin(
        is_dead=topic.startswith(DLQ_PREFIX),
        is_waiting=is_waiting,
        group=group,
        topic=named if noted is None else unwrapped_topic(noted, group),
        message_id=first_property(properties, ORIGIN_ID_PROPERTIES),
    )


def first_property(properties: Mapping[str, str], names: Collection[str]) -> str | None:
    """Return the value of the first of some properties that a message has."""
    return next((properties[name] for name in names if name in properties), None)


def group_and_topic(
    topic: str, *, has_origin: bool, known: KnownNames = NO_NAMES
) -> tuple[str, str | None]:
    """Return the group of a topic of retries or dead letters, and the topic that its name tells.

    Args:
        topic: a topic for which :func:`is_copy_topic` holds.
        has_origin: whether a property of the message tells its origin: it is no retry of POP then.
        known: names by which ``%RETRY%g_t`` is split.

    Returns:
        The rest of the name and None if the name has no second part, or nothing tells where that
        begins.
    """
    if topic.startswith(DLQ_PREFIX):
        return topic.removeprefix(DLQ_PREFIX), None
    rest = topic.removeprefix(RETRY_PREFIX)
    parts = rest.split(_POP_SEPARATOR_V2)
    if len(parts) == 2 and all(parts):  # neither name can have this separator
        return parts[0], parts[1]
    if has_origin:
        return rest, None
    return _split_by_underscore(rest, known) or (rest, None)


def _split_by_underscore(rest: str, known: KnownNames) -> tuple[str, str] | None:
    """Return ``g`` and ``t`` of ``g_t``, or None if several splits are as good.

    A split into a known group and a known topic is better than one of which only one name is known.
    With a single underscore there is only one split, which needs no known name unless all of the
    rest is the name of a group.

    For example, ``shop_orders_paid`` with the known topic ``paid`` is group ``shop_orders`` and
    topic ``paid``. With neither a group nor a topic known it is not split.
    """
    splits = [
        (rest[:index], rest[index + 1 :])
        for index in range(1, len(rest) - 1)
        if rest[index] == _POP_SEPARATOR
    ]
    scores = [(group in known.groups) + (topic in known.topics) for group, topic in splits]
    best = max(scores, default=0)
    if best == 0 and (rest in known.groups or len(splits) != 1):
        return None
    chosen = [split for split, score in zip(splits, scores, strict=True) if score == best]
    return chosen[0] if len(chosen) == 1 else None


def unwrapped_topic(topic: str, group: str) -> str:
    """Return the origin topic that a dead letter of POP stands for, whose RETRY_TOPIC is a retry's.

    Other topics are returned as they are.
    """
    for separator in (_POP_SEPARATOR_V2, _POP_SEPARATOR):
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix) and topic != prefix:
            return topic.removeprefix(prefix)
    return topic
