"""Messages as views read them: by queue, in slices, and with damage as rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from rmqstore.errors import FileDeletedError, OptionError, RmqStoreError
from rmqstore.format.schema import ALL_COLUMNS, CORRUPT_RECORD
from rmqstore.query.selection import Selection, choose_topics
from rmqstore.read.plan import queues_part
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.queues import warn_of_rocksdb
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.slices import Column, ViewSlice, to_batch

logger = logging.getLogger(__name__)

REASON: Final = "reason"
_IN_EVERY_VIEW: Final = ("queueId", "queueOffset", "commitLogOffset")


def plan_messages(
    source: StoreParts, spec: ViewSpec, limits: Limits, topics: Iterable[str]
) -> list[ViewSlice]:
    """Return the messages of those of some topics that a view chooses, in slices.

    Each slice is a part of the log. A queue that cannot be read is a slice of its own with the
    reason.
    """
    warn_of_rocksdb(source, spec)
    selection = replace(spec.selection, include_system_topics=True)
    chosen = choose_topics(selection, sorted(topics))
    if not chosen:
        return []
    if selection.assign is None:
        selection = replace(selection, subscribe=tuple(chosen), subscribe_pattern=None)
    else:
        assigned = {topic: selection.assign[topic] for topic in chosen}
        selection = replace(selection, assign=assigned)
    try:
        return _split(source, spec, limits, selection)
    except (OptionError, FileDeletedError):
        raise
    except (RmqStoreError, OSError):
        return _queue_by_queue(source, spec, limits, selection)


def _split(
    source: StoreParts, spec: ViewSpec, limits: Limits, selection: Selection
) -> list[ViewSlice]:
    slices = source.ranges.resolve(selection, _request(spec, selection).spec())
    part = queues_part(source, [*slices], limits)
    parts = part.split(limits)
    n_bytes = int(part.n_bytes) // max(len(parts), 1)
    return [ViewSlice(messages=queues, n_bytes=n_bytes) for queues in parts]


def _queue_by_queue(
    source: StoreParts, spec: ViewSpec, limits: Limits, selection: Selection
) -> list[ViewSlice]:
    """Return the slices of each queue alone, and one with the reason for each that has none."""
    view_slices: list[ViewSlice] = []
    faults: list[ViewSlice] = []
    keys = [
        (topic, queue_id)
        for topic in selection.subscribe or selection.assign or ()
        for queue_id in source.store_queues.ids(topic)
        if selection.assign is None or queue_id in selection.assign[topic]
    ]
    for topic, queue_id in keys:
        alone = replace(selection, subscribe=None, assign={topic: frozenset([queue_id])})
        try:
            view_slices += _split(source, spec, limits, alone)
        except FileDeletedError:
            raise
        except (RmqStoreError, OSError) as err:
            logger.warning("%s-%d: %s", topic, queue_id, err)
            faults.append(ViewSlice(queues=((topic, queue_id),), reason=str(err)))
    return view_slices + faults


def read_messages(
    source: StoreParts, spec: ViewSpec, view_slice: ViewSlice, columns: Iterable[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice with some columns, and with :data:`CORRUPT_RECORD`.

    The rows of damaged records have that column, and of the others what is known.
    """
    if view_slice.messages is None:
        return
    request = _request(spec, spec.selection, {*columns, *_IN_EVERY_VIEW, "topic"})
    try:
        yield from view_slice.messages.read(source, request)
    except (RmqStoreError, OSError) as err:
        logger.warning("%s: the rest of a part of the queues: %s", source.paths.root, err)
        row = {CORRUPT_RECORD: str(err)}
        yield pa.RecordBatch.from_pylist([row], schema=request.schema)


def _request(spec: ViewSpec, selection: Selection, columns: Collection[str] = ()) -> ScanRequest:
    fields = [column for column in ALL_COLUMNS if column.name in columns]
    return ScanRequest(
        schema=pa.schema([*fields, pa.field(CORRUPT_RECORD, pa.string())]),
        selection=selection,
        mode=spec.mode,
        check_crc=spec.check_crc,
        fail_on_data_loss=False,
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
