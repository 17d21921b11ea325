"""One store that is open for reading: plans and reads slices of queues and of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import UnsupportedFeatureError
from rmqstore.format.layout import Positions
from rmqstore.query.conditions import NO_PRUNING, Points, Pruning
from rmqstore.query.keys import Wanted
from rmqstore.query.selection import Selection, choose_topics
from rmqstore.query.where import Where
from rmqstore.read.lookup import Finder, Found, Lookup, tagged_places
from rmqstore.read.open_store import OpenStore
from rmqstore.read.sampling import LogPart, Sample, Sampler
from rmqstore.read.scan.faults import refuse_stretches
from rmqstore.read.scan.log_scan import LogScan
from rmqstore.read.scan.queue_scan import QueueScan
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.rows import UnitRows
from rmqstore.read.scan.spec import FAILFAST, ReadSpec
from rmqstore.read.views.catalogue import plan_view, read_view
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.source import LocalQueues, ViewLimits, ViewPiece, ViewSource
from rmqstore.spans import LATEST_TIME, LogSlice, LostStretch, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.broker_run import BrokerRun
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.index_files import IndexSizes
from rmqstore.storage.index_search import IndexSearch
from rmqstore.storage.queue.queue import find_first
from rmqstore.storage.queue.rocksdb_queue import are_queues_unreadable
from rmqstore.storage.rocksdb.database import INSTALL_ROCKSDB
from rmqstore.storage.rocksdb_index import IndexTable

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MAX_PLANS = 5  # of one read, each after a writer opened the store


class StoreSession(OpenStore):
    """Plans and reads parts of one store, for modules of this package and for connectors.

    A context manager; ``read.tiered.opening.open_session`` makes one. ``rmqstore.MessageStore`` is
    the public API on top of it.
    """

    def __init__(
        self, paths: StorePaths, *, broker_name: str | None = None, ignore_log_end: bool = False
    ) -> None:
        super().__init__(paths, broker_name=broker_name, ignore_log_end=ignore_log_end)
        self._sampler = Sampler(self.log, self.queues, self.ranges)
        index = IndexSearch(paths.index, IndexSizes.of(StoreConfig()), paths.storage)
        self._lookup = Lookup(
            self.log,
            index,
            self.ends.of_records,
            self.ends.index_flushed_until,
            table=lambda: IndexTable.of(self.paths),
        )

    @property
    def is_tiered(self) -> bool:
        """Whether messages of the store are read from tiered storage."""
        return False

    def require_local(self, request: str) -> None:
        """Refuse a request that needs all messages in the log, if some are in tiered storage.

        Raises:
            UnsupportedFeatureError: some are; the text names the request.
        """

    def require_store(self, request: str) -> None:
        """Refuse a request that needs a local store, if only tiered storage is read.

        Raises:
            UnsupportedFeatureError: there is no local store; the text names the request.
        """

    def require_view(self, view: str) -> None:
        """Refuse a view of what tiered storage does not have, if some messages are there.

        Raises:
            UnsupportedFeatureError: some are; the text names the view.
        """

    def divide(self, slices: Sequence[QueueSlice]) -> tuple[list[QueueSlice], list[QueueSlice]]:
        """Return what of ranges of queues is read from tiered storage, and what of the log."""
        return [], [*slices]

    def plan_look_up(self, _selection: Selection, _spec: ReadSpec) -> list[QueueSlice]:
        """Return the ranges in tiered storage in which messages are looked up."""
        return []

    def look_up(
        self, _slices: Sequence[QueueSlice], _spec: ReadSpec, _wanted: LogFilter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted messages in ranges of :meth:`plan_look_up`, all of which are read."""
        return iter(())

    def prune_tiered(self, slices: list[QueueSlice], _pruning: Pruning) -> list[QueueSlice]:
        """Return the parts of ranges in tiered storage that can meet conditions."""
        return slices

    @retry_if_deleted
    def at_time(self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span that was stored at or after a time (ms).

        It is the end of the span if there is no such message.

        Raises:
            CorruptRecordError: a message whose time is needed is damaged.
        """
        return self.ranges.at_time(topic, queue_id, timestamp, span)

    @retry_if_deleted
    def first_stored_at(
        self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]
    ) -> int:
        """Return the first queue offset in a span whose store time is at or after a time (ms).

        It is the end of the span if there is no such message. Damaged messages are skipped.
        """
        return self.ranges.at_time(topic, queue_id, timestamp, span, tolerant=True)

    @retry_if_deleted
    def _find(
        self, wanted: Wanted, topics: Sequence[str], low: int | None, high: int | None
    ) -> Found:
        tagged = tagged_places(self.queues, topics, wanted.tags) if wanted.tags else None
        return self._lookup.find(wanted, topics, low, high, tagged)

    def find(self, wanted: Wanted, selection: Selection) -> Found:
        """Return where messages with the wanted keys, ids or tags may lie; see ``Lookup.find``.

        Raises:
            OptionError: the selection has queue offsets.
            UnsupportedFeatureError: no topic is named, and only a RocksDB database knows them.
        """
        selection.require_by_log()
        end = selection.end.timestamp
        # Named topics are searched even if no queue has them.
        named = selection.subscribe or selection.assign
        known = [] if named else self.known_topics()
        if not named and not known and are_queues_unreadable(self.paths):
            raise UnsupportedFeatureError(
                f"{self.paths.rocksdb_queues}, a RocksDB database, alone tells which topics there "
                f"are, and config/topics.json has none: {INSTALL_ROCKSDB}, "
                "or name the topics that are to be searched (subscribe)"
            )
        topics = sorted(named) if named else choose_topics(selection, known)
        first_time = selection.start.timestamp
        last_time = None if end is None else end - 1
        return self._find(wanted, topics, _in_range(first_time), _in_range(last_time))

    @cached_property
    def finder(self) -> Finder:
        """Reads the candidates of look-ups."""
        return Finder(
            self.log, self._lookup, self._find, self.read_log, lambda: self.log_end is None
        )

    def find_in_index(self, wanted: Wanted, topics: Sequence[str]) -> Found:
        """Return where messages of some topics may lie; see ``candidates.Lookup.find``."""
        return self._find(wanted, topics, None, None)

    def units_at(
        self, topic: str, queue_id: int, queue_offsets: NDArray[np.int64], places: Positions
    ) -> UnitRows:
        """Return the units at queue offsets (n,) that point at the given physical offsets (n,)."""
        order = np.argsort(queue_offsets, kind="stable")
        queue_offsets, places = queue_offsets[order], places[order]
        units = self.queues.open(topic, queue_id).units_of(queue_offsets)
        rows = UnitRows.of_queue(topic, queue_id, queue_offsets, units)
        is_unit = (units.physical_offsets == places) & (units.sizes > 0)
        return rows.take(np.flatnonzero(is_unit))

    def read_units(self, picked: UnitRows, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of single units; see ``scan.queue_scan.QueueScan.single``."""
        return self._queue_scan(spec).single(picked)

    @retry_if_deleted
    def log_points(self, heads: Callable[[], Iterable[int]]) -> Points:
        """Return records of the log with their times; see ``sampling.Sampler.log_points``."""
        return self._sampler.log_points(self.ends.log_slice(), heads)

    def lost(self, slices: Iterable[QueueSlice], spec: ReadSpec) -> list[LostStretch]:
        """Return the lost parts of the log that a read of ranges of queues would not report.

        Queues that were recovered from a damaged log may lack messages for which there is no unit.
        """
        is_reported = spec.mode != FAILFAST and not spec.tags  # their units have no tags
        return self.ends.lost(slices if is_reported else ())

    @retry_if_deleted
    def slices_within(self, piece: QueueSlice, spans: Sequence[Span]) -> list[QueueSlice]:
        """Return what of a range may lie in parts of the log; see ``QueueRanges.within``."""
        return self.ranges.within(piece, spans)

    def first_behind(
        self, topic: str, queue_id: int, physical_offset: int, span: tuple[int, int]
    ) -> int:
        """Return the first queue offset in a span that lies at or after a physical offset.

        It is the end of the span if there is no such message.
        """
        queue = self.queues.open(topic, queue_id)
        return find_first(
            *span, lambda queue_offset: queue.unit(queue_offset)[0] >= physical_offset
        )

    @retry_if_deleted
    def starts(
        self,
        selection: Selection,
        spans: Callable[[], Mapping[QueueKey, tuple[int, int]]],
        *,
        fail_on_data_loss: bool,
    ) -> dict[QueueKey, int]:
        """Return where a selection starts in queues; see ``QueueRanges.starts``."""
        return self.ranges.starts(
            selection, self.config, self.broker_name, spans, fail_on_data_loss=fail_on_data_loss
        )

    def slices(
        self, topic: str, queue_id: int, start: int, end: int, spec: ReadSpec
    ) -> list[QueueSlice]:
        """Return the parts of a range that the queue's files have; see ``QueueRanges.slices``."""
        return self.ranges.slices(topic, queue_id, start, end, tolerant=spec.mode != FAILFAST)

    def look_confirmed(self, piece: QueueSlice, log_end: int) -> bool:
        """Tell whether the log confirms a range's units; see ``QueueRanges.look_confirmed``."""
        return self.ranges.look_confirmed(piece, log_end)

    def stands(self, piece: QueueSlice) -> bool:
        """Tell whether a range that was planned is still there; see ``QueueRanges.stands``."""
        return self.ranges.stands(piece)

    def confirmed(
        self, piece: QueueSlice, log_end: int, stored_until: int = LATEST_TIME
    ) -> list[QueueSlice]:
        """Return the parts of a range that the log confirms; see ``QueueRanges.confirmed``."""
        return self.ranges.confirmed(piece, log_end, stored_until)

    @retry_if_deleted
    def plan_queues(
        self, selection: Selection, spec: ReadSpec, pruning: Pruning = NO_PRUNING
    ) -> list[QueueSlice]:
        """Return the ranges of queues that a selection asks for; see ``QueueRanges.resolve``."""
        return self._of_one_state(lambda: [*self._resolved(selection, spec, pruning)])

    @retry_if_deleted
    def plan_sampled(
        self, selection: Selection, spec: ReadSpec
    ) -> list[tuple[QueueSlice, list[Sample]]]:
        """Return the ranges of :meth:`plan_queues`, each with samples at its two ends.

        The samples of a queue are taken while its file is open.
        """
        return self._of_one_state(
            lambda: [(piece, self.sample(piece, 2)) for piece in self._resolved(selection, spec)]
        )

    def _of_one_state(self, plan: Callable[[], T]) -> T:
        """Return what a function plans, planned again if a writer has opened the store meanwhile.

        The ends of queues are looked at one after the other, so a plan could have a part of an
        append. Where the log of an open store ends is looked at once, before the queues, and bounds
        them all.
        """
        for _ in range(_MAX_PLANS):
            run = BrokerRun.of(self.paths)
            was_closed = self.ends.were_of_closed_store
            planned = plan()
            is_closed = not run.is_open and BrokerRun.of(self.paths) == run
            if is_closed or not was_closed:
                break
            self.forget()
        return planned

    def _resolved(
        self, selection: Selection, spec: ReadSpec, pruning: Pruning = NO_PRUNING
    ) -> Iterator[QueueSlice]:
        return self.ranges.resolve(
            selection,
            self.config,
            self.broker_name,
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.mode != FAILFAST,
            pruning=pruning,
        )

    def read_queues(self, slices: Sequence[QueueSlice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges of queues; see ``scan.queue_scan.QueueScan``."""
        return self._queue_scan(spec).batches(slices)

    def read_lost(
        self, stretches: Iterable[LostStretch], spec: ReadSpec
    ) -> Iterator[pa.RecordBatch]:
        """Handle the parts from :meth:`lost` as the read says; see ``faults.refuse_stretches``."""
        return refuse_stretches(stretches, spec)

    def _queue_scan(self, spec: ReadSpec) -> QueueScan:
        queues = self.queues
        return QueueScan(self.log, queues.open, queues.open_ext, spec, queues.batch_topics())

    @retry_if_deleted
    def log_heads(self) -> list[int]:
        """Return where a scan of the log may be cut; see ``sampling.Sampler.log_heads``."""
        return self._sampler.log_heads()

    @retry_if_deleted
    def log_parts(self, slices: Iterable[LogSlice], heads: Sequence[int]) -> list[LogPart]:
        """Return ranges of the log, cut at all heads; see ``sampling.Sampler.log_parts``."""
        return self._sampler.log_parts(slices, heads)

    def read_log(
        self, piece: LogSlice, spec: ReadSpec, wanted: LogFilter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range of the log; see ``scan.log_scan.LogScan``."""
        return LogScan(self.log, self.ranges.vouched_end, spec, wanted).batches(piece)

    @retry_if_deleted
    def rows_within(self, piece: QueueSlice, n_bytes: int) -> int:
        """Return how many messages fit into ``n_bytes``; see ``sampling.Sampler.rows_within``."""
        return self._sampler.rows_within(piece, n_bytes)

    @retry_if_deleted
    def sample(self, piece: QueueSlice, count: int) -> list[Sample]:
        """Return points of a queue; see ``sampling.Sampler.sample``."""
        return self._sampler.sample(piece, count)

    @retry_if_deleted
    def plan_view(self, spec: ViewSpec, limits: ViewLimits) -> list[ViewPiece]:
        """Return a view in pieces, in the order of their rows; see ``store_views.plan_view``."""
        self.require_view(spec.view)
        return plan_view(self.view_source, spec, limits)

    def read_view(self, spec: ViewSpec, piece: ViewPiece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece.

        The piece has the log end and the recovered units as planning found them, perhaps in another
        process.
        """
        self.ends.take(piece.log_end, piece.recovered)
        return read_view(self.view_source, spec, piece)

    def view(self, spec: ViewSpec, where: Where | None) -> Iterator[pa.RecordBatch]:
        """Return a view as batches, with the rows that meet a condition on its columns.

        Raises:
            OptionError: the selection names a topic or queue that is not there.
        """
        read_spec = spec
        if where is not None:
            read_spec = spec.widened(where.columns)
        if spec.names_topics:
            self._require_named(spec.selection)
        source, pieces = self.view_source, self.plan_view(read_spec, ViewLimits())
        batches = chain.from_iterable(read_view(source, read_spec, piece) for piece in pieces)
        if where is not None:
            return (where.keep(batch).select(spec.schema.names) for batch in batches)
        return batches

    @property
    def view_source(self) -> ViewSource:
        """The parts of the store that views read."""
        return ViewSource(
            paths=self.paths,
            config=self.config,
            broker_name=self.view_broker_name,
            log=self.log,
            queues=self.queues,
            ranges=self.ranges,
            ends=self.ends,
            sampler=self._sampler,
            viewed=LocalQueues(self.paths, self.log, self.queues, self.ranges),
            messages=self,
            is_name_given=self.has_given_name,
        )


def _in_range(time: int | None) -> int | None:
    """Return the nearest time (ms) that an index can be searched for."""
    return None if time is None else min(max(time, 0), LATEST_TIME)
