"""Views of one store by name: planned in slices, read slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa

from rmqstore.query.where import Where
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.assignments import read_assignments
from rmqstore.read.views.commitlog import plan_record_rows, read_record_rows
from rmqstore.read.views.consumequeue import plan_unit_rows, read_unit_rows
from rmqstore.read.views.dead_letters import plan_dead_letters, read_dead_letters
from rmqstore.read.views.epochs import plan_epochs, read_epoch_rows
from rmqstore.read.views.files import plan_files, read_files
from rmqstore.read.views.groups import plan_consumed, plan_groups, read_consumed, read_groups
from rmqstore.read.views.index import plan_index, read_index
from rmqstore.read.views.queues import (
    plan_queue_rows,
    plan_topic_rows,
    read_queue_rows,
    read_topic_rows,
)
from rmqstore.read.views.routes import read_routes
from rmqstore.read.views.schema import OF_CLUSTER, ViewSpec
from rmqstore.read.views.slices import ViewLimits, ViewSlice
from rmqstore.read.views.stores import read_stores
from rmqstore.read.views.traces import plan_traces, read_traces

_CLUSTER_VIEWS: Final[
    dict[str, Callable[[Sequence[StoreParts], ViewSpec], Iterator[pa.RecordBatch]]]
] = {
    "stores": read_stores,
    "routes": read_routes,
    "assignments": read_assignments,
}


def read_cluster_view(sources: Sequence[StoreParts], spec: ViewSpec) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a view of several stores together."""
    return _CLUSTER_VIEWS[spec.view](sources, spec)


class _View(NamedTuple):
    plan: Callable[[StoreParts, ViewSpec, ViewLimits], list[ViewSlice]]
    read: Callable[[StoreParts, ViewSpec, ViewSlice], Iterator[pa.RecordBatch]]


_VIEWS: Final = {
    "queues": _View(plan_queue_rows, read_queue_rows),
    "topics": _View(plan_topic_rows, read_topic_rows),
    "commitlog": _View(plan_record_rows, read_record_rows),
    "consumequeue": _View(plan_unit_rows, read_unit_rows),
    "index": _View(plan_index, read_index),
    "groups": _View(plan_groups, read_groups),
    "epochs": _View(plan_epochs, read_epoch_rows),
    "files": _View(plan_files, read_files),
    "deadLetters": _View(plan_dead_letters, read_dead_letters),
    "traces": _View(plan_traces, read_traces),
    "consumed": _View(plan_consumed, read_consumed),
}


def plan_view(source: StoreParts, spec: ViewSpec, limits: ViewLimits) -> list[ViewSlice]:
    """Return the slices of a view, in the order of their rows.

    Raises:
        UnsupportedFeatureError: messages are in tiered storage, and the view does not show these.
    """
    source.require(f"view {spec.view}")
    if spec.view in OF_CLUSTER:
        return [ViewSlice()]
    return source.retry(lambda: _VIEWS[spec.view].plan(source, spec, limits))


def read_slice(
    source: StoreParts, spec: ViewSpec, view_slice: ViewSlice
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice, in the columns that are asked for.

    Another process than that which planned the slice opens the store with its ``ends``.
    """
    if spec.view in OF_CLUSTER:
        return read_cluster_view([source], spec)
    return _VIEWS[spec.view].read(source, spec, view_slice)


def read_view(
    source: StoreParts, spec: ViewSpec, where: Where | None = None
) -> Iterator[pa.RecordBatch]:
    """Return a view as batches, with the rows that meet a condition on its columns.

    Raises:
        OptionError: the selection names a topic or queue that is not there.
    """
    read_spec = spec if where is None else spec.widened(where.columns)
    if spec.names_topics:
        source.ranges.require_named(spec.selection)
    view_slices = plan_view(source, read_spec, ViewLimits())
    batches = chain.from_iterable(read_slice(source, read_spec, part) for part in view_slices)
    if where is not None:
        return (where.keep(batch).select(spec.schema.names) for batch in batches)
    return batches
