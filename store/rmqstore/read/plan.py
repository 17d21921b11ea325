"""Plans what a request asks of one store, as parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from rmqstore.errors import CorruptDatabaseError, rendered
from rmqstore.query.damage import FAILFAST
from rmqstore.query.selection import BY_LOG, LATEST, Bound
from rmqstore.read.empty_window import warn_of_empty_window
from rmqstore.read.last_record import LastRecord
from rmqstore.read.parts import (
    LogPart,
    LostPart,
    Merged,
    NewestPart,
    Part,
    PendingPart,
    QueuesPart,
    RecordsPart,
    UnitsPart,
)
from rmqstore.read.pending import find_pending
from rmqstore.read.pruner import StorePruner
from rmqstore.read.reading import find_by_keys, find_lost, mean_size, uncovered_slices
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import (
    WHOLE,
    Limits,
    Sample,
    SampledQueues,
    SampledSlice,
    SampledSpan,
    total_length,
)
from rmqstore.read.store_parts import StoreParts, leave_out_rocksdb
from rmqstore.spans import LogSlice, QueueSlice
from rmqstore.storage.broker.retry import Restarts
from rmqstore.storage.recovery.log_end import last_record_before, n_written

logger = logging.getLogger(__name__)

T = TypeVar("T")


def known_topics(store: StoreParts, request: ScanRequest) -> dict[str, set[int]]:
    """Return the topics of a store, by which it is known whether a request concerns it.

    Raises:
        UnsupportedFeatureError, CorruptDatabaseError: they cannot be known.
    """
    if request.named is None:
        return {}
    if request.pruning.keeps_broker(store.broker_name):
        store.ranges.require_queues(request.selection, tolerant=request.mode != FAILFAST)
    return _tolerant(store, request, lambda: store.ranges.named_queues(request.selection))


def plan(store: StoreParts, request: ScanRequest, limits: Limits | None = None) -> list[Part]:
    """Return the parts of a read.

    Args:
        store: the store.
        request: what is asked for.
        limits: those within which the parts are to be split. If None, they are read as they are:
            nothing is sampled, and they know neither their bytes nor where they can be cut.

    Raises:
        OptionError: the request contradicts itself.
        UnsupportedFeatureError: such a store cannot answer it.
    """
    if request.include_pending:
        store.require("`include_pending`")
    if not request.pruning.keeps_broker(store.broker_name):
        return []
    # A writer may open the store while one queue after the other is looked at.
    restarts = Restarts(store.paths, store.forget)
    if restarts.run.is_open and store.ends.were_of_closed_store:
        store.forget()
    return store.retry(lambda: _plan(store, request, limits), restarts)


def _plan(store: StoreParts, request: ScanRequest, limits: Limits | None) -> list[Part]:
    if request.lookup_keys:
        return _look_up(store, request, limits)
    if request.by == "commitlog":
        log = _log(store, request, limits)
        if request.last is None:
            return [log]
        newest = [span.log_slice for span in log.spans[-1:]]
        return [NewestPart(log, request.last, sum(n_written(store.log, newest)))]
    return _tolerant(store, request, lambda: _queues(store, request, limits))


def _tolerant(store: StoreParts, request: ScanRequest, ask: Callable[[], T]) -> T:
    """Return an answer, without a damaged database of queues if damage is tolerated."""
    try:
        return ask()
    except CorruptDatabaseError as err:
        if request.mode == FAILFAST:
            raise
        leave_out_rocksdb(store, err)  # a tolerant read takes the units from the log
        return ask()


def _queues(store: StoreParts, request: ScanRequest, limits: Limits | None) -> list[Part]:
    """Return the parts of a read by queue: lost ranges, then messages, then pending ones."""
    spec, pruning = request.spec(store.broker_name), request.pruning
    store.ranges.require_queues(request.selection, tolerant=spec.is_tolerant)
    if store.log.segments and not store.store_queues.topics():
        logger.warning(
            "%s has a CommitLog but no queues in %s: "
            "a read by queue finds nothing, use %s",
            store.paths.root, store.paths.consumequeue, rendered(BY_LOG),
        )  # fmt: skip
    store.warn_of_messages_elsewhere()
    is_pruned = request.where is not None and request.last is None
    parts, slices = (_pruned if is_pruned else _ranges)(store, request, limits)
    if not slices:
        warn_of_empty_window(store, request.selection, pruning)
    lost = tuple(find_lost(store, () if is_pruned else slices, spec))
    if request.last is not None:
        parts = [replace(part, lost=lost) for part in parts if isinstance(part, NewestPart)]
    elif lost:
        parts.insert(0, LostPart(lost))
    if request.include_pending:
        rows = find_pending(store, request.selection, spec)
        mean_bytes = 0.0 if limits is None else mean_size(store, rows.physical_offsets)
        parts.append(PendingPart(rows, mean_bytes))
    return parts


def _pruned(
    store: StoreParts, request: ScanRequest, limits: Limits | None
) -> tuple[list[Part], list[QueueSlice]]:
    """Return the messages that a condition leaves, and the ranges that the selection allows."""
    pruning = request.pruning
    slices = [*store.ranges.resolve(request.selection, request.spec(store.broker_name), pruning)]
    pruned = StorePruner(store, pruning).queues(slices)
    n_single = 0 if pruned.single is None else len(pruned.single.physical_offsets)
    logger.info(
        "%s: the condition leaves %d of %d messages of the queues that it allows "
        "in %d of %d ranges, and %d that the index gives: %s",
        store.paths.root, total_length(pruned.slices), total_length(slices),
        len(pruned.slices), len(slices), n_single, pruning,
    )  # fmt: skip
    _require_units(store, request, pruned.slices)
    if pruned.single is None:
        return [queues_part(store, pruned.slices, limits)], slices
    in_tier, local = store.store_queues.divide(pruned.slices)
    merged = Merged(UnitsPart(pruned.single), queues_part(store, local, limits))
    return [*([queues_part(store, in_tier, limits)] if in_tier else []), merged], slices


def _ranges(
    store: StoreParts, request: ScanRequest, limits: Limits | None
) -> tuple[list[Part], list[QueueSlice]]:
    """Return the messages of all ranges that the selection allows, and the ranges."""
    spec = request.spec(store.broker_name)
    if limits is None:
        slices = [*store.ranges.resolve(request.selection, spec, request.pruning)]
        queues = queues_part(store, slices, limits)
    else:
        # The samples of a queue are taken while its file is open.
        ranges = store.ranges.resolve(request.selection, spec)
        sampled = [*map(store.sampler.at_ends, ranges)]
        slices = [item.queue_slice for item in sampled]
        queues = _sampled_part(store, sampled, limits)
    _require_units(store, request, slices)
    return [queues if request.last is None else NewestPart(queues, request.last)], slices


def _require_units(store: StoreParts, request: ScanRequest, slices: Sequence[QueueSlice]) -> None:
    """Refuse ranges of queues of which a damaged database lacks units, if damage is tolerated.

    Raises:
        CorruptDatabaseError: it lacks one; a read in FAILFAST comes upon it.
    """
    in_rocksdb = store.ends.in_rocksdb
    if request.mode != FAILFAST and in_rocksdb is not None:
        for topic, queue_id, start, end in slices:
            in_rocksdb.require_units((topic, queue_id), start, end)


def _log(store: StoreParts, request: ScanRequest, limits: Limits | None) -> LogPart:
    """Return the log, or those parts of it that the condition leaves."""
    store.require(BY_LOG)
    request.log_filter()  # refuses what contradicts itself before anything is read
    store.ranges.warn_unknown_topics(request.selection)
    whole = store.ends.log_slice()
    slices = [whole]
    pruner = StorePruner(store, request.pruning)
    if request.where is not None:
        slices = pruner.log(whole)
        logger.info(
            "%s: the condition leaves %d of %d bytes of the log: %s",
            store.paths.root, total_length(slices), total_length([whole]), request.pruning,
        )  # fmt: skip
    is_cut = limits not in (None, WHOLE) or request.last is not None
    return _log_part(store, slices, pruner.headers if is_cut else None, limits)


def _look_up(store: StoreParts, request: ScanRequest, limits: Limits | None) -> list[Part]:
    """Return the records in the index, and the parts of the log that it does not cover."""
    request.log_filter()
    store.ranges.warn_unknown_topics(request.selection)
    found = find_by_keys(store, request.lookup_keys, request.selection)
    uncovered = [] if request.index_only else uncovered_slices(store, found)
    offsets = found.outside(uncovered)
    logger.info(
        "%s: the index names %d records and does not cover %d bytes of the log",
        store.paths.root, len(found.physical_offsets), found.n_uncovered_bytes,
    )  # fmt: skip
    parts: list[Part] = []
    if store.is_tiered and not request.index_only:
        # The index of tiered storage is not used, and the records decide about times.
        every = replace(request.selection, start=Bound(), end=Bound(LATEST))
        slices = [*store.ranges.resolve(every, request.spec(store.broker_name))]
        in_tier, _ = store.store_queues.divide(slices)
        if in_tier:
            part = queues_part(store, in_tier, limits)
            parts.append(replace(part, recovered=None, last_record=None))
    records = RecordsPart(offsets, 0.0 if limits is None else mean_size(store, offsets))
    if not uncovered:
        return [*parts, records]
    headers = None if limits in (None, WHOLE) else store.sampler.log_headers()
    return [*parts, Merged(records, _log_part(store, uncovered, headers, limits))]


def _log_part(
    store: StoreParts,
    slices: Sequence[LogSlice],
    headers: Sequence[int] | None,
    limits: Limits | None,
) -> LogPart:
    """Return ranges of the log, which can be cut at headers.

    Without limits, what was written of them is not looked for: all of their bytes count.
    """
    if headers is not None:
        return LogPart(tuple(store.sampler.log_parts(slices, headers)))
    lengths = [part.end - part.start for part in slices]
    if limits is not None:
        lengths = n_written(store.log, slices)
    return LogPart(tuple(map(SampledSpan, slices, lengths)))


def queues_part(
    store: StoreParts,
    slices: Sequence[QueueSlice],
    limits: Limits | None,
    last_record: LastRecord | None = None,
) -> QueuesPart:
    """Return ranges of queues as a part, sampled if it is to be split within limits.

    Args:
        store: the store.
        slices: the ranges.
        limits: as for :func:`plan`.
        last_record: the newest record that may be read; by default one that shows whether the log
            is that of the plan.
    """
    if limits is None:
        return QueuesPart(tuple(slices), last_record, recovered=store.ends.recovered)
    mean_bytes = store.sampler.mean_if_one_task(slices, limits)
    if mean_bytes is None:
        sampled = [*map(store.sampler.at_ends, slices)]
    else:
        sampled = [SampledSlice(part, [Sample(part.start, 0, mean_bytes)]) for part in slices]
    return _sampled_part(store, sampled, limits, last_record)


def _sampled_part(
    store: StoreParts,
    sampled: Sequence[SampledSlice],
    limits: Limits,
    last_record: LastRecord | None = None,
) -> QueuesPart:
    """Return ranges of queues, which were sampled at their two ends, as a part.

    A closed store has no other newest record than those of the ranges. Its units may be out of
    order, so a record after the last of these is no proof that it is newer.
    """
    slices = tuple(item.queue_slice for item in sampled)
    queues = SampledQueues(store.sampler.evenly(sampled, limits))
    log, end, is_newest = store.log, store.ends.log_end, True
    if last_record is None and end is not None and not log.is_remote:
        last_record = LastRecord.at(log, last_record_before(log, end.physical_offset))
    if last_record is None and end is None and not log.is_remote:
        physical_offsets = [item.samples[-1].physical_offset for item in sampled if item.samples]
        last_record, is_newest = LastRecord.at(log, max(physical_offsets, default=None)), False
    recovered = store.ends.recovered
    return QueuesPart(slices, last_record, queues, recovered=recovered, is_newest=is_newest)
