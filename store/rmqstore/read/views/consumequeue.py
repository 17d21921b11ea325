"""View ``consumequeue``: the units that the files of queues hold, with damage and not recovered."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rmqstore.errors import CorruptDatabaseError, OffsetOutOfRangeError, RmqStoreError
from rmqstore.format.layout import GAP_TAGS_CODE, PRE_BLANK_SIZE, QUEUE_UNIT
from rmqstore.query.selection import choose_topics
from rmqstore.read.split import Limits, total_length
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.parts import LogEndPart
from rmqstore.read.views.queues import queue_ids, warn_of_rocksdb
from rmqstore.read.views.rows import Column, reasons, shown, to_batch
from rmqstore.read.views.schema import ViewSpec
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.mapped_file_queue import OpenFiles
from rmqstore.storage.files.paths import can_name_queues
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.queue_set import is_in_rocksdb, open_files

logger = logging.getLogger(__name__)

_UNITS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class UnitsPart(LogEndPart):
    """Ranges of units.

    Attributes:
        slices: the ranges.
    """

    slices: Sequence[QueueSlice]

    @property
    def n_bytes(self) -> float:
        return total_length(self.slices) * QUEUE_UNIT.itemsize

    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        for units in self.slices:
            queue = _open(source, units.topic, units.queue_id)
            try:
                for start in range(units.start, units.end, _UNITS_AT_ONCE):
                    yield from _batch(source, spec, units, start, queue)
            except (OffsetOutOfRangeError, CorruptDatabaseError, OSError) as err:
                logger.warning(
                    "%s-%d: units were deleted meanwhile: %s", units.topic, units.queue_id, err
                )
            finally:
                queue.close()


def plan_unit_rows(source: StoreParts, spec: ViewSpec, limits: Limits) -> list[UnitsPart]:
    """Return ranges of units, large ones cut and small ones joined."""
    paths, in_rocksdb = source.paths, source.ends.in_rocksdb
    warn_of_rocksdb(source, spec)
    known = {*paths.queue_folders.topics()} | (set() if in_rocksdb is None else in_rocksdb.topics())
    topics = choose_topics(spec.selection, sorted(known))
    batch = choose_topics(spec.selection, paths.batch_folders.topics())
    if batch:
        logger.warning(
            "%s: units of BatchConsumeQueues are not shown (%s)", paths.root, ", ".join(batch)
        )
    slices = [queue_slice for topic in topics for queue_slice in _slices(source, spec, topic)]
    total = total_length(slices) * QUEUE_UNIT.itemsize
    goal = -(-limits.target(total) // QUEUE_UNIT.itemsize)
    groups: list[list[QueueSlice]] = []
    left = 0
    for whole in slices:
        start = whole.start
        while start < whole.end:
            if not left:
                groups.append([])
                left = goal
            stop = min(start + left, whole.end)
            groups[-1].append(whole._replace(start=start, end=stop))
            left -= stop - start
            start = stop
    return [UnitsPart(source.ends.log_end, group) for group in groups]


def _slices(source: StoreParts, spec: ViewSpec, topic: str) -> Iterator[QueueSlice]:
    in_rocksdb = source.ends.in_rocksdb
    on_disk = {*source.paths.queue_folders.queue_ids(topic)} if can_name_queues(topic) else set()
    if in_rocksdb is not None:
        on_disk |= {*in_rocksdb.queue_ids(topic)}
    for queue_id in queue_ids(source, spec, topic, on_disk):
        queue = _open(source, topic, queue_id)
        try:
            for run in queue.runs(queue.begin, queue.end()):
                yield QueueSlice(topic, queue_id, *run)
        except (RmqStoreError, OSError) as err:
            logger.warning("%s-%d: %s", topic, queue_id, err)
        finally:
            queue.close()


def _open(source: StoreParts, topic: str, queue_id: int) -> Queue:
    """Return a queue as the disk has it; a BatchConsumeQueue of the same topic is left out."""
    paths, files = source.paths, OpenFiles(source.paths.storage)
    queue = open_files(
        paths, topic, queue_id, files=files, in_rocksdb=source.ends.in_rocksdb, log=source.log
    )
    if is_in_rocksdb(queue):
        return queue
    return ConsumeQueue(paths.queue_folders.queue(topic, queue_id), files)


def _batch(
    source: StoreParts, spec: ViewSpec, queue_slice: QueueSlice, start: int, queue: Queue
) -> Iterator[pa.RecordBatch]:
    units = queue.units(start, min(start + _UNITS_AT_ONCE, queue_slice.end))
    offsets, sizes = units.physical_offsets, units.sizes
    limit = source.ends.log_slice().end
    is_filler = (sizes == PRE_BLANK_SIZE) & (offsets == 0)
    texts = {
        "never written": (offsets == 0) & (sizes == 0) & (units.tags_codes == 0),
        "pre-blank filler, for offsets before the queue's first": is_filler,
        "filler, for a queue offset that no record has": units.tags_codes == GAP_TAGS_CODE,
        "not the offset and size of a record": (offsets < 0) | (sizes <= 0),
        "its record was deleted with its file": offsets < source.log.min_offset,
        "points past the end of the log": offsets + sizes > limit,
    }
    faults = reasons(texts, len(offsets))
    n = len(offsets)
    columns: dict[str, Column] = {
        "topic": pa.repeat(pa.scalar(queue_slice.topic), n),
        "queueId": pa.repeat(pa.scalar(queue_slice.queue_id, pa.int32()), n),
        "queueOffset": np.arange(start, start + n),
        "commitLogOffset": offsets,
        "storeSize": sizes.astype(np.int32),
        "tagsCode": units.tags_codes,
        "isValid": faults.is_null(),
        "reason": faults,
    }
    yield from shown(spec, to_batch(spec, source, columns, n), faults)
