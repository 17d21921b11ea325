"""A session that reads tiered storage, alone or before the local store that it continues.

Each queue has a log of its own there, so conditions are applied to each by itself, where
``read.pruner`` applies them to all queues by the log of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from rmqstore.errors import Argument, Text, UnsupportedFeatureError
from rmqstore.query.conditions import NO_PRUNING, Points, Pruning, parts_that_meet
from rmqstore.query.selection import LATEST, Bound, Selection
from rmqstore.read.open_store import QueueInfo, StoreKind, tiered_kind
from rmqstore.read.queue_ranges import slices_within
from rmqstore.read.sampling import Sample, rows_that_fit, sample_queue
from rmqstore.read.scan.queue_scan import QueueScan
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.spec import FAILFAST, ReadSpec
from rmqstore.read.session import StoreSession
from rmqstore.read.tiered.ranges import JoinedRange, JoinedRanges
from rmqstore.read.views.source import ViewSource
from rmqstore.spans import LATEST_TIME, QueueKey, QueueSlice, Span
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.queue.queue import Queue, total_weight
from rmqstore.storage.queue.tiered import NO_FILES, CompactedLogs, Tier, TieredQueue, TieredQueues

_SHORT_LOG = 32 << 20  # bytes, of which every record is looked at
_SHORT_RANGE = 1 << 17  # units of such a log
_SAMPLES = 1 << 10  # records of a longer one


# Views that need a local store; then all that show messages wherever these are.
_VIEWS_OF_CONFIG = ("groups", "consumed", "stores", "routes", "assignments")
_VIEWS = ("queues", "topics", "deadLetters", "traces", *_VIEWS_OF_CONFIG)


def prune(queue: TieredQueue, piece: QueueSlice, pruning: Pruning) -> list[QueueSlice]:
    """Return the parts of a range whose messages can meet the conditions.

    Args:
        queue: the queue in tiered storage.
        piece: a range of it.
        pruning: the conditions; those on topics, queues and queue offsets have been applied.
    """
    whole = Span(queue.log.min_offset, queue.log.max_offset)
    parts = parts_that_meet(pruning, whole, lambda: _points(queue, piece))
    if parts.spans == (whole,):
        return [piece]
    return slices_within(queue.units, piece, parts.spans, whole.end)


def _points(queue: TieredQueue, piece: QueueSlice) -> Points:
    """Return records of a range with their times; none if their physical offsets do not rise.

    They are all records where the log of the queue is short.
    """
    n_units = piece.end - piece.start
    n_bytes = queue.log.max_offset - queue.log.min_offset
    are_all = n_units <= _SHORT_RANGE and n_bytes <= _SHORT_LOG
    count = n_units if are_all else min(n_units, _SAMPLES)
    spaced = np.linspace(piece.start, piece.end - 1, count).astype(np.int64)
    units = queue.units.units_of(np.unique(spaced))
    offsets = units.physical_offsets[units.may_be_right(queue.log.max_offset)]
    times, are_right = queue.log.store_timestamps(offsets)
    are_all &= len(offsets) == n_units and bool(are_right.all())
    offsets, times = offsets[are_right], times[are_right]
    if (np.diff(offsets) <= 0).any():
        return Points(offsets[:0], times[:0])
    return Points(offsets, times, are_all=are_all)


class TieredSession(StoreSession):
    """Reads the queues of a store, each with what tiered storage has of it before.

    Reads, streams and views by queue are supported. Whatever reads the log of a broker in its own
    order, its index or its files as they are would leave out what was moved, so it is refused.

    Args:
        paths: the local store; one without files where tiered storage is read alone.
        tier: what the broker of the store has in tiered storage, or its compacted logs.
        broker_name: value of column ``brokerName``.
        ignore_log_end: read the local store past the end of a log that was not closed.
    """

    def __init__(
        self,
        paths: StorePaths,
        tier: Tier | CompactedLogs,
        *,
        broker_name: str | None = None,
        ignore_log_end: bool = False,
    ) -> None:
        super().__init__(paths, broker_name=broker_name, ignore_log_end=ignore_log_end)
        self._tiered = TieredQueues(tier)
        self._joined = JoinedRanges(self.ranges, self._tiered)
        self._sample_bases: dict[QueueKey, int] = {}
        self._lowest_base = 0

    def close(self) -> None:
        """Release the mapped files. Batches that were read stay valid."""
        self._tiered.close()
        super().close()

    def refresh(self) -> None:
        """List the files again: those of a running broker come and go."""
        self._tiered.refresh()
        super().refresh()

    def kind(self) -> StoreKind:
        """Return the kind of the store, by the files that it has."""
        tier = self._tiered.tier
        return tiered_kind(None if self._is_alone else self.paths, f"{tier.what} in {tier.folder}")

    @property
    def _is_alone(self) -> bool:
        return self.paths.storage is NO_FILES

    @property
    def is_tiered(self) -> bool:
        """Whether messages of the store are read from tiered storage."""
        return True

    def require_local(self, request: str) -> None:
        """Refuse a request that needs a log in the order of the broker, or its files.

        Raises:
            UnsupportedFeatureError: always, as some messages are in tiered storage.
        """
        tier = self._tiered.tier
        text = Text(
            request,
            f" is not supported with {tier.what} ({tier.folder}), where each queue has a log of "
            "its own: read by queue; a filter on columns finds messages too",
        )
        if not self._is_alone:
            alone = Text("; without ", Argument("tiered", ""), " the local store is read alone")
            text = Text(text, alone)
        raise UnsupportedFeatureError(text)

    def require_store(self, request: str) -> None:
        """Refuse a request that needs a local store, if only tiered storage is read.

        Raises:
            UnsupportedFeatureError: there is no local store; the text names the request.
        """
        if self._is_alone:
            self.require_local(request)

    def require_view(self, view: str) -> None:
        """Refuse a view of the files of a local store, or of its broker where there is none.

        Raises:
            UnsupportedFeatureError: the view is one of these; the text names it.
        """
        if view not in _VIEWS:
            self.require_local(f"view {view}")
        if view in _VIEWS_OF_CONFIG:
            self.require_store(f"view {view}")

    @property
    def view_source(self) -> ViewSource:
        """The parts of the store that views read."""
        return replace(super().view_source, viewed=self)

    def warn_of_messages_elsewhere(self) -> None:
        """Log where the store has messages that are not read."""
        self._warn_not_read(self.kind().not_read)

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return self._joined.topics(super().topics())

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self._joined.queue_ids(topic)

    def known_topics(self) -> list[str]:
        """Return every topic with queues or an entry in ``config/topics.json``, sorted."""
        return self._joined.topics(super().known_topics())

    def chosen_queues(self, selection: Selection) -> dict[str, list[int]]:
        """Return the chosen topics and their queues; see ``QueueRanges.choose``."""
        return self._joined.choose(selection, self.config)

    @retry_if_deleted
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one after the last."""
        self.ranges.require_plain_queues()
        joined = self._from_first_message(topic, queue_id)
        return joined.start, joined.end

    def _from_first_message(self, topic: str, queue_id: int) -> JoinedRange:
        """Return where a queue begins and ends; one that is sparse may be read from before that."""
        joined = self._joined.joined(topic, queue_id)
        if not self._tiered.is_sparse:
            return joined
        return joined._replace(start=self._tiered.queue(topic, queue_id).units.begin)

    @retry_if_deleted
    def queue_info(self, topic: str, queue_id: int) -> QueueInfo:
        """Return where a queue begins and ends, by offset and by time, and its bytes."""
        joined = self._from_first_message(topic, queue_id)
        if joined.start >= joined.end:
            return QueueInfo(topic, queue_id, joined.start, joined.end, None, None, 0)
        # Where the newest messages are gone, the last time is that of the last one that is left.
        last = joined.end - 1 if joined.local_start < joined.end else joined.tier_end - 1
        return QueueInfo(
            topic,
            queue_id,
            joined.start,
            joined.end,
            self.stored_at(topic, queue_id, joined.start),
            self.stored_at(topic, queue_id, last),
            self.n_bytes(topic, queue_id, joined.start, joined.end),
        )

    @retry_if_deleted
    def n_messages(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Return how many messages a range of a queue has."""
        if self._tiered.is_sparse:
            return self._tiered.queue(topic, queue_id).units.count_units(start, end, 0)
        return end - start

    @retry_if_deleted
    def n_bytes(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Return the bytes of the records of a range of a queue, as its units say."""
        joined = self._joined.joined(topic, queue_id)
        tier_end, local_start = min(joined.tier_end, end), max(joined.local_start, start)
        n_bytes = 0
        if start < tier_end:
            n_bytes += total_weight(self._tiered.queue(topic, queue_id).units, start, tier_end)
        if local_start < end:
            n_bytes += total_weight(self.queues.open(topic, queue_id), local_start, end)
        return n_bytes

    def n_unit_bytes(self, topic: str, queue_id: int) -> int:
        """Estimate the bytes of the units of a queue without a look into its files."""
        in_tier = self._tiered.queue(topic, queue_id).units.n_full_bytes
        return in_tier + self.queues.open(topic, queue_id).n_full_bytes

    @retry_if_deleted
    def stored_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a message, ms."""
        if queue_offset < self._joined.joined(topic, queue_id).tier_end:
            queue = self._tiered.queue(topic, queue_id)
            return queue.log.store_timestamp(queue.units.unit(queue_offset)[0])
        return self.log.store_timestamp(self.queues.open(topic, queue_id).unit(queue_offset)[0])

    @retry_if_deleted
    def at_time(self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span that was stored at or after a time (ms)."""
        return self._joined.at_time(topic, queue_id, timestamp, span)

    @retry_if_deleted
    def starts(
        self,
        selection: Selection,
        spans: Callable[[], Mapping[QueueKey, tuple[int, int]]],
        *,
        fail_on_data_loss: bool,
    ) -> dict[QueueKey, int]:
        """Return where a selection starts in queues; see ``QueueRanges.starts``."""
        return self._joined.starts(
            selection, self.config, self.broker_name, spans, fail_on_data_loss=fail_on_data_loss
        )

    @retry_if_deleted
    def slices(
        self, topic: str, queue_id: int, start: int, end: int, spec: ReadSpec
    ) -> list[QueueSlice]:
        """Return the parts of a range that are there; see ``JoinedRanges.parts``."""
        parts = self._joined.parts(
            (topic, queue_id),
            (start, end),
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.mode != FAILFAST,
        )
        return list(parts)

    def with_local(self, key: QueueKey, local: tuple[int, int]) -> JoinedRange:
        """Return where a queue begins and ends whose range in the local store is known."""
        return self._joined.with_local(key, local)

    def chosen_in_tier(self, selection: Selection) -> list[QueueKey]:
        """Return the queues in tiered storage that a selection names."""
        return [
            (topic, queue_id)
            for topic in self._tiered.topics()
            for queue_id in self._tiered.ids(topic)
            if self.is_chosen(selection, topic, queue_id)
        ]

    def look_confirmed(self, piece: QueueSlice, log_end: int) -> bool:
        """Tell whether the log confirms the units of a range that are of the local store."""
        is_confirmed = super().look_confirmed
        return all(is_confirmed(part, log_end) for part in self.divide([piece])[1])

    def stands(self, piece: QueueSlice) -> bool:
        """Tell whether a range that was planned is still there; see ``QueueRanges.stands``."""
        stands = super().stands
        return all(stands(part) for part in self.divide([piece])[1])

    def confirmed(
        self, piece: QueueSlice, log_end: int, stored_until: int = LATEST_TIME
    ) -> list[QueueSlice]:
        """Return the parts of a range that the log confirms, or that are in tiered storage."""
        in_tier, local = self.divide([piece])
        confirmed = super().confirmed
        return in_tier + [run for part in local for run in confirmed(part, log_end, stored_until)]

    def _resolved(
        self, selection: Selection, spec: ReadSpec, pruning: Pruning = NO_PRUNING
    ) -> Iterator[QueueSlice]:
        return self._joined.slices(
            selection,
            self.config,
            self.broker_name,
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.mode != FAILFAST,
            pruning=pruning,
        )

    @retry_if_deleted
    def divide(self, slices: Sequence[QueueSlice]) -> tuple[list[QueueSlice], list[QueueSlice]]:
        """Return what of ranges of queues is read from tiered storage, and what of the log.

        Retention may have deleted messages of the local store since the ranges were planned, which
        tiered storage still has.
        """
        in_tier: list[QueueSlice] = []
        local: list[QueueSlice] = []
        boundaries: dict[QueueKey, int] = {}
        for piece in slices:
            key = (piece.topic, piece.queue_id)
            if key not in boundaries:
                boundaries[key] = self._joined.boundary(*key)
            cut = min(max(boundaries[key], piece.start), piece.end)
            if piece.start < cut:
                in_tier.append(piece._replace(end=cut))
            if cut < piece.end:
                local.append(piece._replace(start=cut))
        return in_tier, local

    @retry_if_deleted
    def prune_tiered(self, slices: list[QueueSlice], pruning: Pruning) -> list[QueueSlice]:
        """Return the parts of ranges in tiered storage that can meet conditions."""
        return [
            part
            for piece in slices
            for part in prune(self._tiered.queue(piece.topic, piece.queue_id), piece, pruning)
        ]

    def read_queues(self, slices: Sequence[QueueSlice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges of queues: first those in tiered storage, queue by queue.

        Those of the local store follow, in the order of its log.
        """
        in_tier, local = self.divide(slices)
        yield from self._read_tiered(in_tier, spec)
        if in_tier and local:
            # Retention goes on while tiered storage is read, which can take long.
            self.log.refresh()
            moved, local = self.divide(local)
            if moved:
                self._tiered.refresh()
                yield from self._read_tiered(moved, spec)
        yield from super().read_queues(local, spec)

    def plan_look_up(self, selection: Selection, spec: ReadSpec) -> list[QueueSlice]:
        """Return the ranges in tiered storage in which messages are looked up.

        The records decide about times.
        """
        whole = replace(selection, start=Bound(), end=Bound(LATEST))
        return self.divide(self.plan_queues(whole, spec))[0]

    def look_up(
        self, slices: Sequence[QueueSlice], spec: ReadSpec, wanted: LogFilter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted messages in ranges of :meth:`plan_look_up`, all of which are read."""
        return self._read_tiered(slices, spec, wanted)

    def _read_tiered(
        self, slices: Sequence[QueueSlice], spec: ReadSpec, wanted: LogFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        # The CRC of a whole record covers its physical offset, which is another one here.
        spec = replace(spec, check_record_crc=False)
        batch_topics = self.queues.batch_topics()
        for (topic, queue_id), group in groupby(slices, lambda piece: piece[:2]):
            queue, pieces = self._tiered.queue(topic, queue_id), [*group]
            whole = (pieces[0].start, pieces[-1].end)
            has_batches = topic in batch_topics or queue.holds_inner_batches(*whole)
            if has_batches and not spec.inflate:
                raise UnsupportedFeatureError(
                    f"{topic}: a record holds several messages (queue.type=BatchCQ), and exact "
                    "copies are of records, which tiered storage has once for each message"
                )
            scan = QueueScan(
                queue.log,
                self._open_units,
                self.queues.open_ext,
                spec,
                batch_topics=(topic,) if has_batches else (),
                wanted=wanted,
                is_sparse=queue.is_sparse,
            )
            yield from scan.batches(pieces)

    def _open_units(self, topic: str, queue_id: int) -> Queue:
        return self._tiered.queue(topic, queue_id).units

    def sample(self, piece: QueueSlice, count: int) -> list[Sample]:
        """Return points of a queue; see ``sampling.Sampler.sample``.

        The logs of queues in tiered storage have no order among them. For planning, each of them
        lies before the log of the local store, at offsets below 0.
        """
        in_tier, local = self.divide([piece])
        samples = []
        for part in in_tier:
            base = self._sample_base(part.topic, part.queue_id)
            units = self._tiered.queue(part.topic, part.queue_id).units
            samples += [
                sample._replace(physical_offset=sample.physical_offset + base)
                for sample in sample_queue(units, part.start, part.end, count)
            ]
        for part in local:
            samples += super().sample(part, count)
        return samples

    @retry_if_deleted
    def rows_within(self, piece: QueueSlice, n_bytes: int) -> int:
        """Return how many messages fit into ``n_bytes``; see ``sampling.Sampler.rows_within``."""
        in_tier, local = self.divide([piece])
        rows_in_log = super().rows_within
        count = 0
        for part in in_tier:
            queue = self._tiered.queue(part.topic, part.queue_id).units
            fitting, n_bytes = rows_that_fit(queue, part.start, part.end, n_bytes)
            count += fitting
            if fitting < part.end - part.start:
                return count
        return count + sum(rows_in_log(part, n_bytes) for part in local)

    def _sample_base(self, topic: str, queue_id: int) -> int:
        key = (topic, queue_id)
        if key not in self._sample_bases:
            log = self._tiered.queue(topic, queue_id).log
            self._lowest_base -= max(log.max_offset - log.min_offset, 1)
            self._sample_bases[key] = self._lowest_base - log.min_offset
        return self._sample_bases[key]
