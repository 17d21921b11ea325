"""Views ``groups`` and ``consumed``: what consumer groups have committed.

View ``groups`` has the progress and lag of each group in each queue, in offsets and in time.

View ``consumed`` has a row for each message and group, because people ask for one group, or count
by group: conditions, joins and every format of files know rows, while a list of groups in a row
would have to be taken apart first. The rows are made from offsets and need no look at bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import RmqStoreError
from rmqstore.query.damage import CORRUPT_RECORD
from rmqstore.query.selection import choose_topics
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.messages import REASON, Committed, MessagesPart, plan_messages
from rmqstore.read.views.parts import RowsPart, ViewPart, rows_part
from rmqstore.read.views.queues import QueueRow, existing_ids, queue_facts
from rmqstore.read.views.rows import Column, Row, to_batch
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.broker.config_files import LAST_OFFSET, OFFSETS, warn_if_unknown

# Columns that show one of the message unchanged.
_SAME: Final = (
    "topic", "queueId", "queueOffset", "msgId", "tags", "keys", "storeTimestamp",
    "commitLogOffset", "storeSize",
)  # fmt: skip
_GROUPS_OF_QUEUE: Final = pa.list_(pa.struct([("group", pa.string()), ("offset", pa.int64())]))


def plan_groups(source: StoreParts, _spec: ViewSpec, _limits: Limits) -> list[RowsPart]:
    """Return all groups in one part."""
    return [rows_part(source, group_rows, keys=source.ends.recovered)]


def group_rows(source: StoreParts, spec: ViewSpec, _names: Sequence[Any]) -> Iterator[Row]:
    """Yield a row for each queue that a group has committed an offset of.

    Raises:
        CorruptConfigError: the file with the offsets cannot be parsed.
    """
    # Groups read their retry topics too.
    selection = replace(spec.selection, include_system_topics=True)
    ids_of = cache(partial(existing_ids, source))

    @cache
    def facts_of(topic: str, queue_id: int) -> QueueRow:
        if queue_id not in ids_of(topic):
            return QueueRow(reason="there is no such queue")
        return queue_facts(source, topic, queue_id, with_bytes=False)

    warn_if_unknown(source.paths, OFFSETS)
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
                yield progress | _lag(source, topic, queue_id, committed, facts)


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
    if committed == LAST_OFFSET:
        reason = f"the committed offset is {LAST_OFFSET} or more, to which no queue comes"
        return columns | {"consumerOffset": None, "reason": facts.reason or reason}
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


def plan_consumed(source: StoreParts, spec: ViewSpec, limits: Limits) -> list[ViewPart]:
    """Return messages in parts, each with the offsets that groups have committed so far.

    Raises:
        CorruptConfigError: the file with the offsets cannot be parsed.
    """
    committed: dict[str, dict[str, dict[int, int]]] = {}
    unknown = warn_if_unknown(source.paths, OFFSETS)
    for group, offsets in sorted(source.config.committed_offsets().items()):
        if spec.consumer_group in (None, group):
            for (topic, queue_id), offset in offsets.items():
                committed.setdefault(topic, {}).setdefault(group, {})[queue_id] = offset
    topics = choose_topics(spec.selection, source.store_queues.topics())
    if spec.consumer_group is not None and unknown is None:
        topics = [topic for topic in topics if topic in committed]
    parts: list[ViewPart] = []
    for part in plan_messages(source, spec, limits, topics, consumed_rows):
        if isinstance(part, MessagesPart):
            names = {queue_slice.topic for queue_slice in part.queues.slices}
            of_part = {topic: committed.get(topic, {}) for topic in names}
            parts.append(replace(part, committed=Committed(of_part, unknown)))
        else:
            parts.append(part)
    return parts


def consumed_rows(
    source: StoreParts, spec: ViewSpec, part: MessagesPart
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each message and each group that has an offset of its topic.

    A message whose topic no group has an offset of has a row without a group. If the offsets are
    not known, so has each message, with the reason.
    """
    assert part.committed is not None, "the plan has what groups have committed"
    committed, unknown = part.committed
    names = {*spec.schema.names}
    for batch in part.messages(source, spec, {*_SAME} & names):
        rows, groups, offsets = _with_groups(batch, committed)
        queue_offsets = batch.column("queueOffset").take(rows)
        known = queue_offsets.fill_null(0).to_numpy()
        passed = offsets.fill_null(-1).to_numpy() > known
        columns: dict[str, Column] = {
            name: batch.column(name).take(rows) for name in _SAME if name in batch.schema.names
        }
        columns["consumerGroup"] = groups
        columns["consumerOffset"] = offsets
        is_unknown = queue_offsets.is_null().to_numpy(zero_copy_only=False)
        reasons = batch.column(CORRUPT_RECORD).take(rows)
        if unknown is not None:
            is_unknown = np.full(len(rows), fill_value=True)
            reasons = reasons.fill_null(unknown)
        columns["isPassed"] = pa.array(passed, mask=is_unknown)
        columns[REASON] = reasons
        if len(rows):
            yield to_batch(spec, source, columns, len(rows))


def _with_groups(
    batch: pa.RecordBatch, committed: dict[str, dict[str, dict[int, int]]]
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Repeat the messages of a batch for the groups of their topics.

    For example, of two messages of a queue of which groups ``a`` and ``b`` have committed 1 and
    nothing, the numbers become 0, 0, 1, 1, the groups a, b, a, b and the offsets 1, null, 1, null.

    Returns:
        The number of the message in its batch, the group, null for a message of which no group has
        an offset, and the offset that the group has committed of the queue, null for none; (n,).
    """
    topics = batch.column("topic").dictionary_encode()
    codes = topics.indices.fill_null(len(topics.dictionary)).to_numpy().astype(np.int64)
    ids = batch.column("queueId").fill_null(-1).to_numpy().astype(np.int64)
    keys, queue_of_row = np.unique(codes << 32 | ids & 0xFFFFFFFF, return_inverse=True)
    names = [*topics.dictionary.to_pylist(), None]
    of_queues: list[list[dict[str, object]]] = []
    for key in keys.tolist():  # the groups of each queue, with the offset that each has committed
        by_group = committed.get(names[key >> 32] or "", {})
        queue_id = key & 0xFFFFFFFF  # not that of any queue where the id is unknown
        of_queue: list[dict[str, object]] = []
        for group, by_queue in by_group.items():
            of_queue.append({"group": group, "offset": by_queue.get(queue_id)})
        of_queues.append(of_queue or [{}])
    of_rows = pa.array(of_queues, _GROUPS_OF_QUEUE).take(pa.array(queue_of_row))
    return pc.list_parent_indices(of_rows), *of_rows.flatten().flatten()
