"""One store, opened for reading: plans and reads slices of queues and of the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import CorruptConfigError, UnsupportedFeatureError
from rmqstore.format.layout import LMQ_PREFIX, Positions
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.conditions import Points
from rmqstore.query.keys import Wanted
from rmqstore.query.selection import Selection, choose_topics, require_named
from rmqstore.read.lookup.candidates import Found, Lookup
from rmqstore.read.lookup.finder import Finder
from rmqstore.read.plan.queue_ranges import QueueRanges
from rmqstore.read.plan.sampling import Sample, Sampler
from rmqstore.read.scan.faults import refuse_stretches
from rmqstore.read.scan.log_scan import LogScan
from rmqstore.read.scan.queue_scan import QueueScan
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.rows import UnitRows
from rmqstore.read.scan.spec import FAILFAST, ReadSpec
from rmqstore.read.views.registry import plan_view, read_view
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.source import ViewLimits, ViewPiece, ViewSource
from rmqstore.spans import LATEST_TIME, LogSlice, LostStretch, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.closing import Closing
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths, find_store
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.index.search import IndexSearch
from rmqstore.storage.index.sizes import IndexSizes
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.bounds import find_first
from rmqstore.storage.queue.queue_set import Queues
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.storage.recovery.store_ends import StoreEnds

logger = logging.getLogger(__name__)


class StoreSession(Closing):
    """One store, opened for reading.

    Nothing in its folder is created or changed, also beside a running broker.

    A context manager; :func:`open_session` makes one. ``rmqstore.MessageStore`` is the public API
    on top of it.

    Source: DefaultMessageStore.java.
    """

    def __init__(
        self, paths: StorePaths, *, broker_name: str | None = None, ignore_log_end: bool = False
    ) -> None:
        self.paths = paths
        self.config = BrokerConfig(paths)
        self._given_name = broker_name
        self.log = CommitLog(paths.commitlogs, paths.storage)
        self.ends = StoreEnds(paths, self.config, self.log, ignore_log_end=ignore_log_end)
        self.queues = Queues(paths, lambda: self.ends.recovered)
        self.ranges = QueueRanges(paths, self.log, self.queues, self.ends.of_records)
        self._sampler = Sampler(self.log, self.queues, self.ranges)
        index = IndexSearch(paths.index, IndexSizes.of(StoreConfig()), paths.storage)
        self._lookup = Lookup(self.log, index, self.ends.of_records, self.ends.index_flushed_until)

    def close(self) -> None:
        """Release the mapped files. Batches that were read stay valid."""
        self.queues.close()
        self.log.close()

    def refresh(self) -> None:
        """List the files again: those of a running broker come and go.

        The log end stays as it was found.
        """
        self.log.refresh()
        self.queues.refresh()

    @cached_property
    def broker_name(self) -> str:
        """The broker's name, as given or as the store tells it."""
        return self._given_name or self.config.broker_name()

    @property
    def light_messages_apart(self) -> Mapping[str, int]:
        """The number of messages in each light queue that only RocksDB holds; see ``queue_ranges.QueueRanges``."""
        return self.ranges.light_messages_apart

    @property
    def log_end(self) -> LogEnd | None:
        """Where the log ends, if the store was not closed (it has an ``abort`` file); None for a closed one."""
        return self.ends.log_end

    def forget(self) -> None:
        """Find the ends of the log and of its queues again, for example after another process repaired the store."""
        self.queues.close()
        self.refresh()
        self.ends.forget()

    def forget_recovered(self, key: QueueKey) -> None:
        """Read a queue by its files alone, which now hold the units that were recovered from the log."""
        self.ends.recovered.pop(key, None)
        self.queues.drop(key)

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return self.queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self.queues.ids(topic)

    @retry_if_deleted
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one after the last.

        Raises:
            UnsupportedFeatureError: the queue is of a kind that cannot be read.
            CorruptQueueError: its files contradict themselves.
        """
        self.ranges.require_plain_queues()
        return self.ranges.range(topic, queue_id)

    @retry_if_deleted
    def first_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset whose message is there, the end if none is; None for a queue without files."""
        return self.ranges.first(topic, queue_id)

    @retry_if_deleted
    def first_stored_at(
        self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]
    ) -> int:
        """Return the first queue offset in a span stored at or after a time (ms), the end of the span if none is."""
        return self.ranges.at_time(topic, queue_id, timestamp, span, tolerant=True)

    @retry_if_deleted
    def _find(
        self, wanted: Wanted, topics: Sequence[str], low: int | None, high: int | None
    ) -> Found:
        return self._lookup.find(wanted, topics, low, high)

    def find(self, wanted: Wanted, selection: Selection) -> Found:
        """Return where messages with the wanted keys or ids may lie; see ``candidates.Lookup.find``.

        Raises:
            OptionError: the selection has queue offsets.
            UnsupportedFeatureError: no topic is named, and only a RocksDB database knows the
                topics.
        """
        selection.require_by_log()
        end = selection.end.timestamp
        # named topics are searched even if no queue has them
        named = selection.subscribe or selection.assign
        known = [] if named else self.known_topics()
        if not named and not known and self.paths.has_rocksdb_queues:
            raise UnsupportedFeatureError(
                f"{self.paths.rocksdb_queues}, a RocksDB database that is not readable yet, alone tells which topics "
                "there are, and config/topics.json has none: name the topics that are to be searched (subscribe)"
            )
        topics = sorted(named) if named else choose_topics(selection, known)
        begin = selection.start.timestamp
        bounds = [
            None if at is None else min(max(at, 0), LATEST_TIME)
            for at in (begin, None if end is None else end - 1)
        ]
        return self._find(wanted, topics, *bounds)

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
        return rows.take(np.flatnonzero((units.physical_offsets == places) & (units.sizes > 0)))

    def read_units(self, picked: UnitRows, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of single units; see ``scan.queue_scan.QueueScan.single``."""
        return self._queue_scan(spec).single(picked)

    @retry_if_deleted
    def log_points(self, heads: Callable[[], Iterable[int]]) -> Points:
        """Return records of the log with their times; see ``sampling.Sampler.log_points``."""
        return self._sampler.log_points(self.ends.log_slice(), heads)

    def lost(self, slices: Iterable[QueueSlice], spec: ReadSpec) -> list[LostStretch]:
        """Return the lost parts of the log that a read of ranges of queues would not report by itself.

        Queues that were recovered from a damaged log may lack messages for which there is no unit.
        """
        # a unit for a lost message has no tags
        is_reported = spec.mode != FAILFAST and not spec.tags
        return self.ends.lost(slices if is_reported else ())

    def require_topics(self, selection: Selection) -> None:
        """Refuse a selection that names topics or queues which are not there.

        Raises:
            OptionError: a topic or queue is missing. The message lists those that exist.
        """
        self.ranges.require_plain_queues(selection)
        require_named(selection, self.named_queues(selection), str(self.paths.root))

    def named_queues(self, selection: Selection) -> dict[str, set[int]]:
        """Return the queues of every topic if the selection names topics, else nothing."""
        return (
            {topic: set(self.queue_ids(topic)) for topic in self.known_topics()}
            if selection.named_topics
            else {}
        )

    def warn_unknown_topics(
        self, selection: Selection, consequence: str = "the records of the log decide"
    ) -> None:
        """Log named topics that neither queues nor topics.json know: misspelt, deleted, or not created yet."""
        unknown = sorted(selection.named_topics - set(self.known_topics()))
        if unknown:
            logger.warning(
                "%s: neither a queue nor config/topics.json knows %s; %s",
                self.paths.root, ", ".join(unknown), consequence,
            )  # fmt: skip

    def warn_without_queues(self) -> None:
        """Log that a store has a log but no queues at all: a read by queue then gives nothing."""
        if self.log.segments and not self.topics():
            logger.warning(
                "%s has a CommitLog but no queues in %s: a read by queue finds nothing, use scan=commitlog",
                self.paths.root, self.paths.consumequeue,
            )  # fmt: skip

    def known_topics(self) -> list[str]:
        """Return every topic with queues or an entry in ``config/topics.json``, sorted."""
        return self.ranges.known_topics(self.config)

    def chosen_queues(self, selection: Selection) -> dict[str, list[int]]:
        """Return the topics that a selection names and their queues; see ``queue_ranges.QueueRanges.choose``."""
        return self.ranges.choose(selection, self.config)

    def is_chosen(self, selection: Selection, topic: str, queue_id: int) -> bool:
        """Tell whether a selection names a queue, even a missing one; see ``queue_ranges.QueueRanges.is_chosen``."""
        return self.ranges.is_chosen(selection, topic, queue_id)

    @retry_if_deleted
    def slices_within(self, piece: QueueSlice, spans: Sequence[Span]) -> list[QueueSlice]:
        """Return the parts of a range whose messages may lie in parts of the log; see ``QueueRanges.within``."""
        return self.ranges.within(piece, spans)

    def first_behind(
        self, topic: str, queue_id: int, physical_offset: int, span: tuple[int, int]
    ) -> int:
        """Return the first queue offset in a span whose message lies at or after a physical offset, or its end."""
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
        """Return where a selection starts in queues; see ``queue_ranges.QueueRanges.starts``."""
        name = self.broker_name
        return self.ranges.starts(
            selection, self.config, name, spans, fail_on_data_loss=fail_on_data_loss
        )

    def slices(
        self, topic: str, queue_id: int, start: int, end: int, *, tolerant: bool
    ) -> list[QueueSlice]:
        """Return the parts of a range that the queue's files have; see ``queue_ranges.QueueRanges.slices``."""
        return self.ranges.slices(topic, queue_id, start, end, tolerant=tolerant)

    def look_confirmed(self, piece: QueueSlice, log_end: int) -> bool:
        """Tell whether the log confirms the units of a range; see ``storage.recovery.unit_checks.look_confirmed``."""
        return self.ranges.look_confirmed(piece, log_end)

    def stands(self, piece: QueueSlice) -> bool:
        """Tell whether a range that was planned is still there; see ``queue_ranges.QueueRanges.stands``."""
        return self.ranges.stands(piece)

    def confirmed(
        self, piece: QueueSlice, log_end: int, stored_until: int = LATEST_TIME
    ) -> list[QueueSlice]:
        """Return the parts of a range whose units the log confirms; see ``queue_ranges.QueueRanges.confirmed``."""
        return self.ranges.confirmed(piece, log_end, stored_until)

    @retry_if_deleted
    def plan_queues(self, selection: Selection, spec: ReadSpec) -> list[QueueSlice]:
        """Return the ranges of queues that a selection asks for; see ``queue_ranges.QueueRanges.resolve``."""
        return self.ranges.resolve(
            selection,
            self.config,
            self.broker_name,
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.mode != FAILFAST,
        )

    def read_queues(self, slices: Sequence[QueueSlice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges of queues; see ``scan.queue_scan.QueueScan``."""
        return self._queue_scan(spec).batches(slices)

    def read_lost(
        self, stretches: Iterable[LostStretch], spec: ReadSpec
    ) -> Iterator[pa.RecordBatch]:
        """Handle the parts from :meth:`lost` as the mode of the read says; see ``faults.refuse_stretches``."""
        return refuse_stretches(stretches, spec)

    def _queue_scan(self, spec: ReadSpec) -> QueueScan:
        queues = self.queues
        return QueueScan(self.log, queues.open, queues.open_ext, spec, queues.batch_topics())

    def require_records(self, selection: Selection) -> None:
        """Refuse an exact copy, by queue, of messages that share a record."""
        others = {*self.queues.batch_topics()} & {*self.chosen_queues(selection)}
        if others:
            raise UnsupportedFeatureError(
                f"{', '.join(sorted(others))}: a record holds several messages (queue.type=BatchCQ), exact copies are "
                "of records: use scan=commitlog"
            )

    def indexed_topics(self, topics: Iterable[str]) -> set[str]:
        """Return those topics whose messages the index knows by their own keys.

        The index knows records, not the messages of inner batches, nor light queues, which show
        other queues' records.
        """
        return {topic for topic in topics if not topic.startswith(LMQ_PREFIX)} - set(
            self.queues.batch_topics()
        )

    def log_slice(self) -> LogSlice:
        """Return the range of the log that holds records: up to its end, or to its last byte in a closed store."""
        return self.ends.log_slice()

    @retry_if_deleted
    def log_heads(self) -> list[int]:
        """Return places where a scan of the log may be cut; see ``sampling.Sampler.log_heads``."""
        return self._sampler.log_heads()

    def read_log(
        self, piece: LogSlice, spec: ReadSpec, wanted: LogFilter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range of the log; see ``scan.log_scan.LogScan``."""
        return LogScan(self.log, self.ranges.vouched_end, spec, wanted).batches(piece)

    @retry_if_deleted
    def rows_within(self, piece: QueueSlice, n_bytes: int) -> int:
        """Return how many messages at the start of a range take at most ``n_bytes``; see ``sampling.Sampler``."""
        return self._sampler.rows_within(piece, n_bytes)

    @retry_if_deleted
    def sample(self, piece: QueueSlice, count: int) -> list[Sample]:
        """Return points of a queue; see ``sampling.Sampler.sample``."""
        return self._sampler.sample(piece, count)

    @cached_property
    def view_broker_name(self) -> str:
        """The broker's name, or that of the folder if the file with the broker's name is damaged."""
        try:
            return self.broker_name
        except CorruptConfigError as err:
            logger.warning("%s; taking the folder's name for the broker's", err)
            return self.paths.name

    @retry_if_deleted
    def plan_view(self, spec: ViewSpec, limits: ViewLimits) -> list[ViewPiece]:
        """Return a view in pieces, in the order of their rows; see ``views.registry.plan_view``."""
        return plan_view(self.view_source, spec, limits)

    def read_view(self, spec: ViewSpec, piece: ViewPiece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece.

        What planning found, perhaps in another process, is taken over from the piece.
        """
        self.ends.take(piece.log_end, piece.recovered)
        return read_view(self.view_source, spec, piece)

    @property
    def view_source(self) -> ViewSource:
        return ViewSource(
            self.paths, self.config, self.view_broker_name, self.log, self.queues, self.ranges, self.ends,
            self._sampler,
        )  # fmt: skip


def open_session(
    path: str | os.PathLike[str],
    *,
    broker_name: str | None = None,
    ignore_log_end: bool = False,
    storage: Storage = LOCAL,
    **folders: Unpack[FolderArguments],
) -> StoreSession:
    """Open the store at ``path`` for reading.

    Args:
        path: the folder that holds ``commitlog/``.
        broker_name: value of column ``brokerName``; taken from the store by default.
        ignore_log_end: read on past the end of a log that was not closed.
        storage: the storage that files are read from.
        folders: folders that lie outside of ``path``.

    Raises:
        NotAStoreError: there is no store.
        UnsupportedFeatureError: it is of a kind that cannot be read.
    """
    paths = find_store(path, storage=storage, **folders)
    for folder in paths.dledger_logs:
        logger.warning(
            "%s: the log goes on in %s, a DLedger CommitLog that is not read", paths.root, folder
        )
    return StoreSession(paths, broker_name=broker_name, ignore_log_end=ignore_log_end)
