"""View ``groups``: the progress and lag of consumer groups, in offsets and in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pyarrow as pa

from rmqstore.errors import RmqStoreError
from rmqstore.query.selection import choose_topics
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.pieces import ViewLimits, ViewSlice, to_batches
from rmqstore.read.views.queues import QueueRow, queue_facts
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.broker.config_files import OFFSETS, warn_without
from rmqstore.storage.files.paths import can_name_queues


def plan_groups(source: StoreParts, _spec: ViewSpec, _limits: ViewLimits) -> list[ViewSlice]:
    """Return all groups in one piece."""
    return [ViewSlice(log_end=source.ends.log_end, recovered=dict(source.ends.recovered))]


def read_groups(source: StoreParts, spec: ViewSpec, _piece: ViewSlice) -> Iterator[pa.RecordBatch]:
    """Yield a row for each queue that a group has committed an offset of.

    Raises:
        CorruptConfigError: the file with the offsets cannot be parsed.
    """
    # Groups read their retry topics too.
    selection = replace(spec.selection, include_system_topics=True)
    existing: dict[str, set[int]] = {}

    @cache
    def facts_of(topic: str, queue_id: int) -> QueueRow:
        if topic not in existing:
            queue_ids = source.store_queues.ids(topic) if can_name_queues(topic) else ()
            existing[topic] = set(queue_ids)
        if queue_id not in existing[topic]:
            return QueueRow(reason="there is no such queue")
        return queue_facts(source, topic, queue_id, with_bytes=False)

    rows: list[dict[str, object]] = []
    warn_without(source.paths, OFFSETS, "what consumer groups have committed is not known")
    for group, offsets in sorted(source.config.committed_offsets().items()):
        chosen = set(choose_topics(selection, sorted({topic for topic, _ in offsets})))
        for (topic, queue_id), committed in sorted(offsets.items()):
            assigned = (selection.assign or {}).get(topic)
            if topic in chosen and (assigned is None or queue_id in assigned):
                progress: dict[str, object] = {
                    "consumerGroup": group,
                    "topic": topic,
                    "queueId": queue_id,
                    "consumerOffset": committed,
                }
                facts = facts_of(topic, queue_id)
                rows.append(progress | _lag(source, topic, queue_id, committed, facts))
    yield from to_batches(spec, source, iter(rows))


def _lag(
    source: StoreParts, topic: str, queue_id: int, committed: int, facts: QueueRow
) -> dict[str, object]:
    """Return the lag of a group in one queue. It is negative if the group is ahead of the queue.

    Source: ConsumerProgressSubCommand.java.
    """
    columns: dict[str, object] = {
        "minOffset": facts.min_offset,
        "brokerOffset": facts.max_offset,
        "lastStoreTimestamp": facts.last_store_timestamp,
        "reason": facts.reason,
    }
    if facts.max_offset is None or facts.min_offset is None:
        return columns
    columns["lag"] = facts.max_offset - committed
    queue_offset = max(committed, facts.min_offset)  # deleted messages can no longer be consumed
    if queue_offset >= facts.max_offset:
        return columns | {"lagMillis": 0}
    try:
        next_time = source.store_queues.stored_at(topic, queue_id, queue_offset)
    except (RmqStoreError, OSError) as err:
        return columns | {"reason": facts.reason or f"queue offset {queue_offset}: {err}"}
    columns["nextStoreTimestamp"] = next_time
    if facts.last_store_timestamp is not None:
        columns["lagMillis"] = max(facts.last_store_timestamp - next_time, 0)
    return columns
