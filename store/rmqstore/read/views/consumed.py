"""View ``consumed``: which consumer groups have passed a message with their committed offset.

A row for each message and group, because people ask for one group, or count by group: conditions,
joins and every format of files know rows, while a list of groups in a row would have to be taken
apart first. The rows are made from offsets and need no look at bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore.format.schema import CORRUPT_RECORD
from rmqstore.query.selection import choose_topics
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.messages import (
    REASON,
    choose_among,
    plan_messages,
    queue_fault,
    read_messages,
)
from rmqstore.read.views.pieces import (
    Column,
    CommittedOffsets,
    ViewLimits,
    ViewSlice,
    to_batch,
    topics_with_folders,
)
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.broker.config_files import OFFSETS, warn_without

# Columns that show one of the message unchanged.
_SAME: Final = (
    "topic", "queueId", "queueOffset", "msgId", "tags", "keys", "storeTimestamp",
    "commitLogOffset", "storeSize",
)  # fmt: skip
_NO_GROUP: Final[tuple[str | None, int | None]] = (None, None)


def plan_consumed(source: StoreParts, spec: ViewSpec, limits: ViewLimits) -> list[ViewSlice]:
    """Return messages in pieces, each with the offsets that groups have committed so far.

    Raises:
        CorruptConfigError: the file with the offsets cannot be parsed.
    """
    committed: CommittedOffsets = {}
    warn_without(source.paths, OFFSETS, "what consumer groups have committed is not known")
    for group, offsets in sorted(source.config.committed_offsets().items()):
        if spec.consumer_group in (None, group):
            for (topic, queue_id), offset in offsets.items():
                committed.setdefault(topic, {}).setdefault(group, {})[queue_id] = offset
    topics = choose_topics(spec.selection, topics_with_folders(source))
    if spec.consumer_group is not None:
        topics = [topic for topic in topics if topic in committed]
    pieces = []
    for piece in plan_messages(source, spec, limits, choose_among(source, spec, topics)):
        topics_of_piece = {part.topic for part in piece.units}
        offsets_of_piece = {topic: committed.get(topic, {}) for topic in topics_of_piece}
        pieces.append(replace(piece, committed=offsets_of_piece))
    return pieces


def read_consumed(source: StoreParts, spec: ViewSpec, piece: ViewSlice) -> Iterator[pa.RecordBatch]:
    """Yield a row for each message and each group that has an offset of its topic.

    A message whose topic no group has an offset of has a row without a group.
    """
    yield from queue_fault(source, spec, piece)
    names = {*spec.schema.names}
    for batch in read_messages(source, spec, piece, {*_SAME} & names):
        rows, groups, offsets = _with_groups(batch, piece.committed)
        queue_offsets = batch.column("queueOffset").take(rows)
        known = queue_offsets.fill_null(0).to_numpy()
        passed = offsets.fill_null(-1).to_numpy() > known
        columns: dict[str, Column] = {
            name: batch.column(name).take(rows) for name in _SAME if name in batch.schema.names
        }
        columns["consumerGroup"] = groups
        columns["consumerOffset"] = offsets
        is_unknown = queue_offsets.is_null().to_numpy(zero_copy_only=False)
        columns["isPassed"] = pa.array(passed, mask=is_unknown)
        columns[REASON] = batch.column(CORRUPT_RECORD).take(rows)
        if len(rows):
            yield to_batch(spec, source, columns, len(rows))


class _Rows(NamedTuple):
    """Messages repeated for groups.

    Attributes:
        numbers: the number of the message in its batch, (n,).
        groups: the group, (n,); null for a message of which no group has an offset.
        offsets: the offset that the group has committed of the queue, (n,); null for none.
    """

    numbers: pa.Array
    groups: pa.Array
    offsets: pa.Array


def _with_groups(batch: pa.RecordBatch, committed: CommittedOffsets) -> _Rows:
    """Repeat the messages of a batch for the groups of their topics.

    For example, of two messages of a queue of which groups ``a`` and ``b`` have committed 1 and
    nothing, the numbers become 0, 0, 1, 1, the groups a, b, a, b and the offsets 1, null, 1, null.
    """
    topics = batch.column("topic").dictionary_encode()
    codes = topics.indices.fill_null(len(topics.dictionary)).to_numpy().astype(np.int64)
    ids = batch.column("queueId").fill_null(-1).to_numpy().astype(np.int64)
    keys, queue_of_row = np.unique(codes << 32 | ids & 0xFFFFFFFF, return_inverse=True)
    names = [*topics.dictionary.to_pylist(), None]
    lists: list[list[tuple[str | None, int | None]]] = []
    for key in keys.tolist():  # the groups of each queue, with the offset that each has committed
        by_group = committed.get(names[key >> 32] or "", {})
        queue_id = key & 0xFFFFFFFF  # not that of any queue where the id is unknown
        of_queue: list[tuple[str | None, int | None]] = []
        for group, by_queue in by_group.items():
            of_queue.append((group, by_queue.get(queue_id)))
        lists.append(of_queue or [_NO_GROUP])
    lengths = np.array([len(groups) for groups in lists], np.int64)
    firsts = np.cumsum(lengths) - lengths
    counts = lengths[queue_of_row]
    numbers = np.repeat(np.arange(batch.num_rows), counts)
    within = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    entries = pa.array(firsts[queue_of_row][numbers] + within)
    every = [entry for groups in lists for entry in groups]
    groups = pa.array([group for group, _ in every], pa.string())
    offsets = pa.array([offset for _, offset in every], pa.int64())
    return _Rows(pa.array(numbers), groups.take(entries), offsets.take(entries))
