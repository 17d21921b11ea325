"""Reads what was planned of one store: ranges of queues and of the log, and single messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import pyarrow as pa

from rmqstore.errors import UnsupportedFeatureError
from rmqstore.read.log_scan import LogScan
from rmqstore.read.lookup import Finder
from rmqstore.read.planning import divide_slices, find_candidates
from rmqstore.read.queue_scan import QueueScan
from rmqstore.read.read_spec import FAILFAST, ReadSpec
from rmqstore.read.record_filter import LogFilter
from rmqstore.read.rows import UnitRows
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LogSlice, LostSpan, QueueSlice


def find_lost(store: StoreParts, slices: Iterable[QueueSlice], spec: ReadSpec) -> list[LostSpan]:
    """Return the lost parts of the log that a read of ranges of queues would not report.

    Queues that were recovered from a damaged log may lack messages for which there is no unit.
    """
    is_reported = spec.mode != FAILFAST and not spec.tags  # their units have no tags
    return store.ends.lost(slices if is_reported else ())


def read_queues(
    store: StoreParts, slices: Sequence[QueueSlice], spec: ReadSpec
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges of queues; see ``queue_scan.QueueScan``.

    Those in tiered storage come first, queue by queue. Those of the local store follow, in the
    order of its log.
    """
    in_tier, local = divide_slices(store, slices)
    yield from _read_tiered(store, in_tier, spec)
    if in_tier and local:
        # Retention continues while tiered storage is read, which can take long.
        store.log.refresh()
        moved, local = divide_slices(store, local)
        if moved:
            assert store.tier is not None
            store.tier.refresh()
            yield from _read_tiered(store, moved, spec)
    yield from _queue_scan(store, spec).batches(local)


def _read_tiered(
    store: StoreParts, slices: Sequence[QueueSlice], spec: ReadSpec, wanted: LogFilter | None = None
) -> Iterator[pa.RecordBatch]:
    tier = store.tier
    if tier is None:
        return
    # The CRC of a whole record covers its physical offset, which is another one here.
    spec = replace(spec, check_record_crc=False)
    batch_topics = store.queues.batch_topics()
    for (topic, queue_id), group in groupby(slices, lambda piece: piece[:2]):
        queue, pieces = tier.queue(topic, queue_id), [*group]
        whole = (pieces[0].start, pieces[-1].end)
        has_batches = topic in batch_topics or queue.holds_inner_batches(*whole)
        if has_batches and not spec.inflate:
            raise UnsupportedFeatureError(
                f"{topic}: a record holds several messages (queue.type=BatchCQ), and exact "
                "copies are of records, which tiered storage has once for each message"
            )
        scan = QueueScan(
            queue.log,
            lambda topic, queue_id: tier.queue(topic, queue_id).units,
            store.queues.open_ext,
            spec,
            batch_topics=(topic,) if has_batches else (),
            wanted=wanted,
            is_sparse=queue.is_sparse,
        )
        yield from scan.batches(pieces)


def _queue_scan(store: StoreParts, spec: ReadSpec) -> QueueScan:
    queues = store.queues
    return QueueScan(store.log, queues.open, queues.open_ext, spec, queues.batch_topics())


def look_up(
    store: StoreParts, slices: Sequence[QueueSlice], spec: ReadSpec, wanted: LogFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages in ranges of ``plan_look_up``, all of which are read."""
    return _read_tiered(store, slices, spec, wanted)


def read_units(store: StoreParts, picked: UnitRows, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """Yield the messages of single units; see ``queue_scan.QueueScan.single``."""
    return _queue_scan(store, spec).single(picked)


def read_log(
    store: StoreParts, piece: LogSlice, spec: ReadSpec, wanted: LogFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range of the log; see ``log_scan.LogScan``."""
    return LogScan(store.log, store.store_queues.proved_end, spec, wanted).batches(piece)


def finder(store: StoreParts) -> Finder:
    """Return what reads the candidates of look-ups in a store."""
    return Finder(
        store.log,
        store.lookup,
        partial(find_candidates, store),
        partial(read_log, store),
        lambda: store.log_end is None,
    )
