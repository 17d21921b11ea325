"""View ``deadLetters``: retried and dead messages, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import RmqStoreError
from rmqstore.format.columns.property_decode import (
    ORIGIN_ID_PROPERTIES,
    ORIGIN_TOPIC_PROPERTIES,
    KnownNames,
    group_and_topic,
    is_copy_topic,
    may_hold_copies,
    unwrapped_topic,
)
from rmqstore.format.topics import DLQ_PREFIX, RETRY_PREFIX
from rmqstore.query.damage import CORRUPT_RECORD
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.messages import REASON, MessagesPart, plan_messages
from rmqstore.read.views.parts import ViewPart
from rmqstore.read.views.rows import Column, to_batch
from rmqstore.read.views.schema import ViewSpec

DEAD_LETTER, RETRY = "deadLetter", "retry"

# Columns that show one of the message unchanged.
_SAME = (
    "topic", "queueId", "queueOffset", "msgId", "tags", "keys", "reconsumeTimes", "bornTimestamp",
    "storeTimestamp", "commitLogOffset", "storeSize",
)  # fmt: skip
_OF_PROPERTIES = ("consumerGroup", "originTopic", "originMsgId")


def plan_dead_letters(source: StoreParts, spec: ViewSpec, limits: Limits) -> list[ViewPart]:
    """Return the messages of the topics of retries and dead letters in parts."""
    topics = [topic for topic in source.store_queues.topics() if is_copy_topic(topic)]
    if spec.consumer_group is not None:
        topics = [topic for topic in topics if may_hold_copies(topic, spec.consumer_group)]
    return plan_messages(source, spec, limits, topics, dead_letter_rows)


def dead_letter_rows(
    source: StoreParts, spec: ViewSpec, part: MessagesPart
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each message."""
    known = known_names(source)
    names = {*spec.schema.names}
    columns = {*_SAME} & names
    if {*_OF_PROPERTIES} & names or spec.consumer_group is not None:
        columns.add("properties")
    for batch in part.messages(source, spec, columns):
        found: dict[str, Column] = {
            name: batch.column(name) for name in _SAME if name in batch.schema.names
        }
        found[REASON] = batch.column(CORRUPT_RECORD)
        topics = batch.column("topic").dictionary_encode()
        is_dead = [topic.startswith(DLQ_PREFIX) for topic in topics.dictionary.to_pylist()]
        kinds = pa.array([DEAD_LETTER if dead else RETRY for dead in is_dead], pa.string())
        found["kind"] = kinds.take(topics.indices)
        if "properties" in batch.schema.names:
            found |= origins(topics, batch.column("properties"), known)
        rows = to_batch(spec, source, found, batch.num_rows)
        if spec.consumer_group is not None:
            # Damaged rows whose group is not known stay.
            is_other = pc.not_equal(found["consumerGroup"], spec.consumer_group)
            rows = rows.filter(pc.invert(is_other.fill_null(fill_value=False)))
        if rows.num_rows:
            yield rows


def known_names(source: StoreParts) -> KnownNames:
    """Return the names of groups and topics that the broker knows, as far as they can be read."""
    groups: set[str] = set()
    topics: set[str] = set()
    with suppress(RmqStoreError, OSError):
        groups.update(source.config.groups())
    with suppress(RmqStoreError, OSError):
        groups.update(source.config.subscribed_groups())
    with suppress(OSError):
        topics.update(source.config.topics())
    topics.update(source.store_queues.topics())
    return KnownNames(groups, {topic for topic in topics if not is_copy_topic(topic)})


def origins(
    topics: pa.DictionaryArray, properties: pa.MapArray, known: KnownNames
) -> dict[str, Column]:
    """Return the groups, origin topics and origin ids of messages; equals ``origin_of``."""
    noted = _first(properties, ORIGIN_TOPIC_PROPERTIES)
    has_origin = noted.is_valid()
    groups: list[str | None] = []
    named: list[str | None] = []
    for topic in topics.dictionary.to_pylist():
        for has in (False, True):
            group, origin = group_and_topic(topic, has_origin=has, known=known)
            groups.append(group)
            named.append(origin)
    codes = topics.indices.fill_null(0).to_numpy() * 2 + has_origin.to_numpy(zero_copy_only=False)
    taken = pa.array(codes, mask=topics.is_null().to_numpy(zero_copy_only=False))
    group_column = pa.array(groups, pa.string()).take(taken)
    origin_topics = pc.coalesce(noted, pa.array(named, pa.string()).take(taken))
    wrapped = pc.starts_with(origin_topics, RETRY_PREFIX).fill_null(fill_value=False)
    rows = np.flatnonzero(wrapped.to_numpy(zero_copy_only=False))
    if len(rows):
        # Those of the retries of POP take the place of their retry topics.
        values = origin_topics.to_pylist()
        groups_of_rows = group_column.take(rows).to_pylist()
        for row, group in zip(rows.tolist(), groups_of_rows, strict=True):
            if group is not None:
                values[row] = unwrapped_topic(values[row], group)
        origin_topics = pa.array(values, pa.string())
    return {
        "consumerGroup": group_column,
        "originTopic": origin_topics,
        "originMsgId": _first(properties, ORIGIN_ID_PROPERTIES),
    }


def _first(properties: pa.MapArray, names: tuple[str, ...]) -> pa.Array:
    """Return the value of the first of some properties that each message has, else null."""
    return pc.coalesce(*(pc.map_lookup(properties, name, "first") for name in names))
