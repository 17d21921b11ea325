"""Messages as views read them: by queue, in slices, and with damage as rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore.errors import FileDeletedError, OptionError, RmqStoreError
from rmqstore.format.schema import ALL_COLUMNS, CORRUPT_RECORD
from rmqstore.query.selection import Selection, choose_topics
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import read_queues
from rmqstore.read.split import Sample
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.queues import warn_of_rocksdb
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.slices import Column, ViewLimits, ViewSlice, to_batch
from rmqstore.spans import QueueKey, QueueSlice

logger = logging.getLogger(__name__)

_SAMPLES: Final = 4096  # of all queues together
_MOST_SAMPLES, _LEAST_SAMPLES = 128, 2  # of each queue

REASON: Final = "reason"
_IN_EVERY_VIEW: Final = ("queueId", "queueOffset", "commitLogOffset")


def choose_among(source: StoreParts, spec: ViewSpec, topics: Iterable[str]) -> Selection:
    """Return the selection of a view with those topics only that it chooses of some."""
    warn_of_rocksdb(source, spec)
    selection = replace(spec.selection, include_system_topics=True)
    chosen = choose_topics(selection, sorted(topics))
    if selection.assign is None:
        return replace(selection, subscribe=tuple(chosen), subscribe_pattern=None)
    assigned = {topic: selection.assign[topic] for topic in chosen if topic in selection.assign}
    return replace(selection, assign=assigned)


def plan_messages(
    source: StoreParts, spec: ViewSpec, limits: ViewLimits, selection: Selection
) -> list[ViewSlice]:
    """Return the messages of a selection in slices, each a part of the log.

    A queue that cannot be read is a slice of its own with the reason.
    """
    if not (selection.subscribe or selection.assign):
        return []
    faults: dict[QueueKey, str] = {}
    try:
        slices = [*source.ranges.resolve(selection, _read_spec(source, spec, ()))]
    except (OptionError, FileDeletedError):
        raise
    except (RmqStoreError, OSError):
        slices = [*_one_by_one(source, spec, selection, faults)]
    view_slices = []
    for part, n_bytes in _cut(source, slices, limits):
        recovered = source.ends.recovered
        keys = {(queue_slice.topic, queue_slice.queue_id) for queue_slice in part}
        view_slice = ViewSlice(
            units=tuple(part),
            log_end=source.ends.log_end,
            recovered={key: recovered[key] for key in keys if key in recovered},
            n_bytes=n_bytes,
        )
        view_slices.append(view_slice)
    return view_slices + [ViewSlice(queues=(key,), reason=reason) for key, reason in faults.items()]


def _one_by_one(
    source: StoreParts, spec: ViewSpec, selection: Selection, faults: dict[QueueKey, str]
) -> Iterator[QueueSlice]:
    """Yield what a selection asks for of each queue; note those that cannot be read."""
    read_spec = _read_spec(source, spec, ())
    for topic in selection.subscribe or selection.assign or ():
        assigned = (selection.assign or {}).get(topic)
        for queue_id in source.store_queues.ids(topic):
            if assigned is not None and queue_id not in assigned:
                continue
            alone = replace(selection, subscribe=None, assign={topic: frozenset([queue_id])})
            try:
                yield from source.ranges.resolve(alone, read_spec)
            except FileDeletedError:
                raise
            except (RmqStoreError, OSError) as err:
                logger.warning("%s-%d: %s", topic, queue_id, err)
                faults[topic, queue_id] = str(err)


def _cut(
    source: StoreParts, slices: Sequence[QueueSlice], limits: ViewLimits
) -> Iterator[tuple[list[QueueSlice], int]]:
    """Cut ranges of queues into parts that lie together in the log, with their bytes.

    Ranges are cut at sampled queue offsets, so each message is in one part however wrong a sample
    is. For example, with samples of queue A at physical offsets 0, 400 and 800 and of queue B at
    500 and 900, a cut at 450 puts the messages of A from its third sample on, and all of B, into
    the second part.
    """
    whole = [queue_slice for queue_slice in slices if queue_slice.start < queue_slice.end]
    if not whole:
        return
    count = min(max(_SAMPLES // len(whole), _LEAST_SAMPLES), _MOST_SAMPLES)
    sampled = [_samples(source, queue_slice, count) for queue_slice in whole]
    shares = []  # of the estimated bytes of a range, one for each of its samples
    for queue_slice, samples in zip(whole, sampled, strict=True):
        n_samples = max(len(samples), 1)
        mean_bytes = sum(max(sample.mean_bytes, 0.0) for sample in samples) / n_samples
        n_bytes = mean_bytes * (queue_slice.end - queue_slice.start)
        shares.append(np.repeat(n_bytes / n_samples, len(samples)))
    weights = np.concatenate(shares)
    offsets = np.array([one.physical_offset for each in sampled for one in each], np.int64)
    total = int(weights.sum())
    n_parts = -(-total // max(limits.share(total), 1)) if total else 1
    order = np.argsort(offsets, kind="stable")
    reached = np.searchsorted(np.cumsum(weights[order]), np.arange(1, n_parts) * total / n_parts)
    following = reached + 1  # the first sample of the next part
    cuts = np.unique(offsets[order][following[following < len(order)]])
    ends: list[list[int]] = []  # of each range, the queue offset at which each part of it ends
    for queue_slice, samples in zip(whole, sampled, strict=True):
        physical_offsets = [sample.physical_offset for sample in samples]
        places = np.maximum.accumulate(np.array(physical_offsets, np.int64))
        queue_offsets = [*(sample.queue_offset for sample in samples), queue_slice.end]
        parts_until = [queue_offsets[index] for index in np.searchsorted(places, cuts)]
        ends.append([*parts_until, queue_slice.end])
    starts = [queue_slice.start for queue_slice in whole]
    for number in range(len(cuts) + 1):
        part = []
        for index, queue_slice in enumerate(whole):
            end = ends[index][number]
            if starts[index] < end:
                part.append(queue_slice._replace(start=starts[index], end=end))
                starts[index] = end
        if part:
            yield part, total // (len(cuts) + 1)


def _samples(source: StoreParts, queue_slice: QueueSlice, count: int) -> list[Sample]:
    """Return samples of a range; none if it cannot be read."""
    try:
        return source.sampler.sample(queue_slice, count)
    except FileDeletedError:
        raise
    except (RmqStoreError, OSError) as err:
        logger.warning("%s-%d: %s", queue_slice.topic, queue_slice.queue_id, err)
        return []


def read_messages(
    source: StoreParts, spec: ViewSpec, view_slice: ViewSlice, columns: Iterable[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice with some columns, and with :data:`CORRUPT_RECORD`.

    The rows of damaged records have that column, and of the others what is known.
    """
    read_spec = _read_spec(source, spec, {*columns, *_IN_EVERY_VIEW, "topic"})
    try:
        yield from read_queues(source, view_slice.units, read_spec)
    except (RmqStoreError, OSError) as err:
        logger.warning("%s: the rest of a part of the queues: %s", source.paths.root, err)
        row = {CORRUPT_RECORD: str(err)}
        yield pa.RecordBatch.from_pylist([row], schema=read_spec.schema)


def _read_spec(source: StoreParts, spec: ViewSpec, columns: Iterable[str]) -> ReadSpec:
    named = set(columns)
    fields = [column for column in ALL_COLUMNS if column.name in named]
    return ReadSpec(
        schema=pa.schema([*fields, pa.field(CORRUPT_RECORD, pa.string())]),
        mode=spec.mode,
        check_crc=spec.check_crc,
        fail_on_data_loss=False,
        broker_name=source.view_broker_name,
    )


def queue_fault(
    source: StoreParts, spec: ViewSpec, view_slice: ViewSlice
) -> Iterator[pa.RecordBatch]:
    """Yield the row of a queue that cannot be read, if the slice is one."""
    if view_slice.reason is not None:
        ((topic, queue_id),) = view_slice.queues
        topic_column = "traceTopic" if "traceTopic" in spec.schema.names else "topic"
        columns: Mapping[str, Column] = {
            topic_column: pa.array([topic]),
            "queueId": pa.array([queue_id], pa.int32()),
            REASON: pa.array([view_slice.reason]),
        }
        yield to_batch(spec, source, columns, 1)
