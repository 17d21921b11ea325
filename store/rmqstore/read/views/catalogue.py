"""Views by name: planned in parts, read part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa

from rmqstore.errors import OptionError, RmqStoreError
from rmqstore.format.columns.property_decode import is_copy_topic, may_hold_copies
from rmqstore.format.topics import DLQ_PREFIX, RETRY_PREFIX
from rmqstore.query.selection import Selection, nearest_topics, require_named
from rmqstore.query.where import Where
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts, having_topics, open_ref
from rmqstore.read.store_ref import StoreRef
from rmqstore.read.views.assignments import assign, assignment_rows
from rmqstore.read.views.commitlog import plan_record_rows
from rmqstore.read.views.consumequeue import plan_unit_rows
from rmqstore.read.views.dead_letters import plan_dead_letters
from rmqstore.read.views.epochs import epoch_rows
from rmqstore.read.views.files import file_rows
from rmqstore.read.views.groups import plan_consumed, plan_groups
from rmqstore.read.views.index import plan_index
from rmqstore.read.views.parts import MakeRows, RowsPart, ViewPart, rows_part
from rmqstore.read.views.queues import plan_queue_rows, plan_topic_rows
from rmqstore.read.views.routes import route_rows
from rmqstore.read.views.rows import Row, to_batches
from rmqstore.read.views.schema import OF_CLUSTER, ViewSpec
from rmqstore.read.views.stores import store_rows
from rmqstore.read.views.traces import plan_traces
from rmqstore.storage.broker.config_files import OFFSETS, why_unknown

_PART_BYTES: Final = 128 << 20  # that are read for one part in this process

_CLUSTER_VIEWS: Final[dict[str, Callable[[Sequence[StoreParts], ViewSpec], Iterator[Row]]]] = {
    "stores": store_rows,
    "routes": route_rows,
    "assignments": assignment_rows,
}


def read_cluster_view(sources: Sequence[StoreParts], spec: ViewSpec) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a view of several stores together.

    Raises:
        UnsupportedFeatureError: messages are in tiered storage, and the view does not show these.
    """
    for source in sources:
        source.require(f"view {spec.view}")
    return to_batches(spec, sources[0], _CLUSTER_VIEWS[spec.view](sources, spec))


@dataclass(frozen=True)
class ClusterPart(ViewPart):
    """The whole of a view of several stores together.

    Attributes:
        others: where all but the first of them lie.
        n_bytes: none, for such views read tables.
    """

    others: tuple[StoreRef, ...]
    n_bytes: float = 0.0

    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all stores, of which the others are opened here."""
        with ExitStack() as stack:
            others = (stack.enter_context(open_ref(ref)) for ref in self.others)
            yield from read_cluster_view([source, *others], spec)


def _whole(make: MakeRows) -> Callable[[StoreParts, ViewSpec, Limits], list[RowsPart]]:
    """Return what plans a view without queues as one part."""
    return lambda source, _spec, _limits: [rows_part(source, make)]


_VIEWS: Final[dict[str, Callable[[StoreParts, ViewSpec, Limits], Sequence[ViewPart]]]] = {
    "queues": plan_queue_rows,
    "topics": plan_topic_rows,
    "commitlog": plan_record_rows,
    "consumequeue": plan_unit_rows,
    "index": plan_index,
    "groups": plan_groups,
    "epochs": _whole(epoch_rows),
    "files": _whole(file_rows),
    "deadLetters": plan_dead_letters,
    "traces": plan_traces,
    "consumed": plan_consumed,
}


def require_group_names(all_parts: Sequence[StoreParts], spec: ViewSpec) -> None:
    """Refuse a view of consumer groups, or of topics that they consume, that no store knows.

    Raises:
        OptionError: a name is not known; the text has those nearest.
    """
    if not spec.names_groups:
        return
    where = ", ".join(str(parts.paths.root) for parts in all_parts)
    try:
        if spec.view == "groups":
            # those that a store knows, and those that groups have offsets of
            topics: set[str] = set()
            for parts in all_parts:
                committed = parts.config.committed_offsets().values()
                topics.update(topic for offsets in committed for topic, _ in offsets)
                topics.update(parts.store_queues.known_topics())
            named = Selection(subscribe=tuple(spec.selection.named_topics))
            require_named(named, [{topic: set() for topic in topics}], where)
        if spec.consumer_group is not None:
            _require_group(all_parts, spec.consumer_group, where)
        if spec.sharing is not None:
            next(assign(all_parts, spec.sharing, spec.selection), None)
    except (RmqStoreError, OSError) as err:
        if isinstance(err, OptionError):
            raise
        # A damaged table hides names; the view reports it if it needs the table.


def _require_group(all_parts: Sequence[StoreParts], group: str, where: str) -> None:
    known: set[str] = set()
    for parts in all_parts:
        known.update(parts.config.groups(), parts.config.subscribed_groups())
        for topic in filter(is_copy_topic, parts.store_queues.topics()):
            if may_hold_copies(topic, group):
                return
            known.add(topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX))
    if group not in known:
        nearest = nearest_topics([group], known, "groups")
        unknown = [why_unknown(parts.paths, OFFSETS) for parts in all_parts]
        reasons = "".join(f"; {reason}" for reason in unknown if reason)
        raise OptionError(f"no consumer group {group} in {where}; {nearest}{reasons}")


def topics_of_view(source: StoreParts, spec: ViewSpec) -> dict[str, set[int]]:
    """Return the topics of a store, by which it is known whether a view concerns it.

    Raises:
        UnsupportedFeatureError: messages are in tiered storage, and the view does not show these.
    """
    source.require(f"view {spec.view}")
    return {} if spec.named is None else source.ranges.named_queues(spec.named)


def plan_view(source: StoreParts, spec: ViewSpec, limits: Limits) -> Sequence[ViewPart]:
    """Return the parts of a view of one store, in the order of their rows.

    Whether the store can show the view, :func:`topics_of_view` has asked.
    """
    return source.retry(lambda: _VIEWS[spec.view](source, spec, limits))


def read_view(
    sources: Sequence[StoreParts], spec: ViewSpec, where: Where | None = None
) -> Iterator[pa.RecordBatch]:
    """Return a view of stores as batches, with the rows that meet a condition on its columns.

    Raises:
        OptionError: no store knows a topic, a queue or a consumer group that is named.
        UnsupportedFeatureError: a store cannot show the view.
    """
    if where is not None:
        batches = read_view(sources, spec.widened(where.columns))
        return (where.keep(batch).select(spec.schema.names) for batch in batches)
    topics = [topics_of_view(source, spec) for source in sources]
    require_group_names(sources, spec)
    having = having_topics(sources, topics, spec.named)
    if spec.view in OF_CLUSTER:
        return read_cluster_view(sources, spec)
    each = (_read_one(source, spec) for source in having)
    return chain(next(each), chain.from_iterable(each))  # the first is planned now


def _read_one(source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
    parts = plan_view(source, spec, Limits(_PART_BYTES))
    return chain.from_iterable(part.read(source, spec) for part in parts)
