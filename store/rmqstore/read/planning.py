"""Plans reads of one store: ranges of queues and of the log, samples, and places of messages.

A function is called again, with a new listing of the files, if retention deletes one meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import UnsupportedFeatureError
from rmqstore.format.layout import Positions
from rmqstore.query.conditions import NO_PRUNING, Pruning, StoreTimes
from rmqstore.query.selection import LATEST, Bound, Selection, Wanted, choose_topics
from rmqstore.read.log_mark import LogMark
from rmqstore.read.lookup import Found, tagged_places
from rmqstore.read.read_spec import FAILFAST, ReadSpec
from rmqstore.read.rows import UnitRows
from rmqstore.read.sampling import Sample, SampledSpan
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LATEST_TIME, LogSlice, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.broker_run import BrokerRun
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.queue.queue import find_first
from rmqstore.storage.queue.rocksdb_queue import are_queues_unreadable
from rmqstore.storage.recovery.log_end import last_record_before, written_end
from rmqstore.storage.rocksdb import INSTALL_ROCKSDB

T = TypeVar("T")
_MAX_PLANS = 5  # of one read, each after a writer opened the store


def _of_one_state(store: StoreParts, plan: Callable[[], T]) -> T:
    """Return what a function plans, planned again if a writer has opened the store meanwhile.

    The ends of queues are looked at one after the other, so a plan could have a part of an
    append. Where the log of an open store ends is looked at once, before the queues, and bounds
    them all.
    """
    for _ in range(_MAX_PLANS):
        run = BrokerRun.of(store.paths)
        was_closed = store.ends.were_of_closed_store
        planned = plan()
        is_closed = not run.is_open and BrokerRun.of(store.paths) == run
        if is_closed or not was_closed:
            break
        store.forget()
    return planned


def _resolved(
    store: StoreParts, selection: Selection, spec: ReadSpec, pruning: Pruning = NO_PRUNING
) -> Iterator[QueueSlice]:
    return store.ranges.resolve(
        selection,
        store.broker_name,
        fail_on_data_loss=spec.fail_on_data_loss,
        tolerant=spec.mode != FAILFAST,
        pruning=pruning,
    )


@retry_if_deleted
def plan_queues(
    store: StoreParts, selection: Selection, spec: ReadSpec, pruning: Pruning = NO_PRUNING
) -> list[QueueSlice]:
    """Return the ranges of queues that a selection asks for; see ``QueueRanges.resolve``."""
    return _of_one_state(store, lambda: [*_resolved(store, selection, spec, pruning)])


@retry_if_deleted
def plan_sampled(
    store: StoreParts, selection: Selection, spec: ReadSpec
) -> list[tuple[QueueSlice, list[Sample]]]:
    """Return the ranges of :func:`plan_queues`, each with samples at its two ends.

    The samples of a queue are taken while its file is open.
    """
    return _of_one_state(
        store,
        lambda: [
            (piece, take_samples(store, piece, 2)) for piece in _resolved(store, selection, spec)
        ],
    )


def plan_look_up(store: StoreParts, selection: Selection, spec: ReadSpec) -> list[QueueSlice]:
    """Return the ranges in tiered storage in which messages are looked up.

    The records decide about times.
    """
    if not store.is_tiered:
        return []
    whole = replace(selection, start=Bound(), end=Bound(LATEST))
    *in_tiers, _ = divide_slices(store, plan_queues(store, whole, spec))
    return [*chain.from_iterable(in_tiers)]


@retry_if_deleted
def find_starts(
    store: StoreParts,
    selection: Selection,
    spans: Callable[[], Mapping[QueueKey, tuple[int, int]]],
    *,
    fail_on_data_loss: bool,
) -> dict[QueueKey, int]:
    """Return where a selection starts in queues; see ``QueueRanges.starts``."""
    return store.ranges.starts(
        selection, store.broker_name, spans, fail_on_data_loss=fail_on_data_loss
    )


@retry_if_deleted
def slices_there(
    store: StoreParts, topic: str, queue_id: int, start: int, end: int, spec: ReadSpec
) -> list[QueueSlice]:
    """Return the parts of a range that are there; see ``StoreQueues.slices``."""
    return store.store_queues.slices(
        (topic, queue_id),
        start,
        end,
        fail_on_data_loss=spec.fail_on_data_loss,
        tolerant=spec.mode != FAILFAST,
    )


@retry_if_deleted
def first_offset(store: StoreParts, topic: str, queue_id: int) -> int | None:
    """Return the first queue offset whose message is there, or the end if none is.

    None for a queue without files.
    """
    queue = store.queues.open(topic, queue_id)
    return queue.first(queue.end(), store.log.min_offset) if queue.is_present else None


@retry_if_deleted
def newest_record(store: StoreParts) -> LogMark | None:
    """Return the newest record of the log of an open store, None if it is not known."""
    log, end = store.log, store.log_end
    if log.is_remote or end is None:
        return None
    return LogMark.at(log, last_record_before(log, end.physical_offset))


@retry_if_deleted
def divide_slices(store: StoreParts, slices: Sequence[QueueSlice]) -> list[list[QueueSlice]]:
    """Return what of ranges of queues is read from which source; see ``StoreQueues.divide``."""
    return store.store_queues.divide(slices)


@retry_if_deleted
def parts_in_log(store: StoreParts, piece: QueueSlice, spans: Sequence[Span]) -> list[QueueSlice]:
    """Return what of a range may lie in parts of the log; see ``QueueRanges.within``."""
    return store.ranges.within(piece, spans)


@retry_if_deleted
def take_samples(store: StoreParts, piece: QueueSlice, count: int) -> list[Sample]:
    """Return points of a queue; see ``sampling.Sampler.sample``."""
    return store.sampler.sample(piece, count)


@retry_if_deleted
def rows_within(store: StoreParts, piece: QueueSlice, n_bytes: int) -> int:
    """Return how many messages fit into ``n_bytes``; see ``sampling.Sampler.rows_within``."""
    return store.sampler.rows_within(piece, n_bytes)


def n_written(store: StoreParts, pieces: Iterable[LogSlice]) -> int:
    """Return how many bytes of parts of the log may hold records.

    A file of a closed log has its full size, however little was written to it.
    """
    end = store.log.max_offset if store.log.is_remote else written_end(store.log)
    return sum(max(min(piece.end, end) - piece.start, 0) for piece in pieces)


@retry_if_deleted
def log_heads(store: StoreParts) -> list[int]:
    """Return where a scan of the log may be cut; see ``sampling.Sampler.log_heads``."""
    return store.sampler.log_heads()


@retry_if_deleted
def log_parts(
    store: StoreParts, slices: Iterable[LogSlice], heads: Sequence[int]
) -> list[SampledSpan]:
    """Return ranges of the log, cut at all heads; see ``sampling.Sampler.log_parts``."""
    return store.sampler.log_parts(slices, heads)


@retry_if_deleted
def log_points(store: StoreParts, heads: Callable[[], Iterable[int]]) -> StoreTimes:
    """Return records of the log with their times; see ``sampling.Sampler.log_points``."""
    return store.sampler.log_points(store.ends.log_slice(), heads)


@retry_if_deleted
def at_time(
    store: StoreParts, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]
) -> int:
    """Return the first queue offset in a span that was stored at or after a time (ms).

    It is the end of the span if there is no such message.

    Raises:
        CorruptRecordError: a message whose time is needed is damaged.
    """
    return store.store_queues.at_time(topic, queue_id, timestamp, span)


@retry_if_deleted
def first_stored_at(
    store: StoreParts, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]
) -> int:
    """Return the first queue offset in a span whose store time is at or after a time (ms).

    It is the end of the span if there is no such message. Damaged messages are skipped.
    """
    return store.store_queues.at_time(topic, queue_id, timestamp, span, tolerant=True)


def first_behind(
    store: StoreParts, topic: str, queue_id: int, physical_offset: int, span: tuple[int, int]
) -> int:
    """Return the first queue offset in a span that lies at or after a physical offset.

    It is the end of the span if there is no such message.
    """
    queue = store.queues.open(topic, queue_id)
    return find_first(*span, lambda queue_offset: queue.unit(queue_offset)[0] >= physical_offset)


@retry_if_deleted
def place_of(store: StoreParts, topic: str, queue_id: int, queue_offset: int) -> int | None:
    """Return the physical offset of a message, None if the queue does not have its unit."""
    place, size, _ = store.queues.open(topic, queue_id).unit(queue_offset)
    return place if size > 0 else None


@retry_if_deleted
def find_candidates(
    store: StoreParts, wanted: Wanted, topics: Sequence[str], low: int | None, high: int | None
) -> Found:
    """Return where messages of some topics that were stored in a range of times may lie.

    See ``Lookup.find``.
    """
    tagged = tagged_places(store.queues, topics, wanted.tags) if wanted.tags else None
    return store.lookup.find(wanted, topics, low, high, tagged)


def find_wanted(store: StoreParts, wanted: Wanted, selection: Selection) -> Found:
    """Return where messages with the wanted keys, ids or tags may lie; see ``Lookup.find``.

    Raises:
        OptionError: the selection has queue offsets.
        UnsupportedFeatureError: no topic is named, and only a RocksDB database knows them.
    """
    selection.require_by_log()
    end = selection.end.timestamp
    # Named topics are searched even if no queue has them.
    named = selection.subscribe or selection.assign
    known = [] if named else store.store_queues.known_topics()
    if not named and not known and are_queues_unreadable(store.paths):
        raise UnsupportedFeatureError(
            f"{store.paths.rocksdb_queues}, a RocksDB database, alone shows which topics there "
            f"are, and config/topics.json has none: {INSTALL_ROCKSDB}, "
            "or name the topics that are to be searched (subscribe)"
        )
    topics = sorted(named) if named else choose_topics(selection, known)
    first_time = selection.start.timestamp
    last_time = None if end is None else end - 1
    return find_candidates(store, wanted, topics, _in_range(first_time), _in_range(last_time))


def find_in_index(store: StoreParts, wanted: Wanted, topics: Sequence[str]) -> Found:
    """Return where messages of some topics may lie; see ``lookup.Lookup.find``."""
    return find_candidates(store, wanted, topics, None, None)


def units_at(
    store: StoreParts,
    topic: str,
    queue_id: int,
    queue_offsets: NDArray[np.int64],
    places: Positions,
) -> UnitRows:
    """Return the units at queue offsets (n,) that point at the given physical offsets (n,)."""
    order = np.argsort(queue_offsets, kind="stable")
    queue_offsets, places = queue_offsets[order], places[order]
    units = store.queues.open(topic, queue_id).units_of(queue_offsets)
    rows = UnitRows.of_queue(topic, queue_id, queue_offsets, units)
    is_unit = (units.physical_offsets == places) & (units.sizes > 0)
    return rows.take(np.flatnonzero(is_unit))


def _in_range(time: int | None) -> int | None:
    """Return the nearest time (ms) that an index can be searched for."""
    return None if time is None else min(max(time, 0), LATEST_TIME)
