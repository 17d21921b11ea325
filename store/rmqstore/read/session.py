"""One store that is open for reading: plans and reads slices of queues and of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, groupby
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import (
    Argument,
    CorruptConfigError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    RmqStoreError,
    StoreStateError,
    Text,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import LMQ_PREFIX, Positions
from rmqstore.query.conditions import NO_PRUNING, Points, Pruning
from rmqstore.query.keys import Wanted
from rmqstore.query.selection import BY_LOG, LATEST, Bound, Selection, choose_topics, require_named
from rmqstore.query.where import Where
from rmqstore.read.lookup import Finder, Found, Lookup, tagged_places
from rmqstore.read.queue_ranges import QueueRanges
from rmqstore.read.sampling import LogPart, Sample, Sampler
from rmqstore.read.scan.faults import refuse_stretches
from rmqstore.read.scan.log_scan import LogScan
from rmqstore.read.scan.queue_scan import QueueScan
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.rows import UnitRows
from rmqstore.read.scan.spec import FAILFAST, ReadSpec
from rmqstore.read.store_kind import (
    StoreKind,
    messages_elsewhere,
    store_kind,
    tiered_kind,
)
from rmqstore.read.store_queues import QueueInfo, StoreQueues
from rmqstore.read.views.catalogue import plan_view, read_view
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.source import ViewLimits, ViewPiece, ViewSource
from rmqstore.spans import LATEST_TIME, LogSlice, LostStretch, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.broker_run import BrokerRun
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.broker.topic_table import queue_nums
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.files.storage import Closing
from rmqstore.storage.index_files import IndexSizes
from rmqstore.storage.index_search import IndexSearch
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import find_first
from rmqstore.storage.queue.rocksdb_queue import are_queues_unreadable
from rmqstore.storage.queue.tiered import NO_FILES, CompactedLogs, Tier, TieredQueues
from rmqstore.storage.recovery.log_end import LogEnd, written_end
from rmqstore.storage.recovery.queues import Queues
from rmqstore.storage.recovery.store_ends import StoreEnds
from rmqstore.storage.rocksdb.database import INSTALL_ROCKSDB
from rmqstore.storage.rocksdb_index import IndexTable

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MAX_PLANS = 5  # of one read, each after a writer opened the store
_MOST_QUEUES = 1 << 16  # of a topic, as far as a damaged table is believed

# Views that need a local store; then all that show messages wherever these are.
_VIEWS_OF_CONFIG = ("groups", "consumed", "stores", "routes", "assignments")
_VIEWS = ("queues", "topics", "deadLetters", "traces", *_VIEWS_OF_CONFIG)


class StoreSession(Closing):
    """Plans and reads parts of one store, for modules of this package and for connectors.

    A context manager; ``read.opening.open_session`` makes one. ``rmqstore.MessageStore`` is the
    public API on top of it. Nothing in the folder of the store is created or changed, also beside
    a running broker.

    With tiered storage, reads, streams and views by queue are supported. Whatever reads the log of
    a broker in its own order, its index or its files as they are would leave out what was moved, so
    it is refused.

    Args:
        paths: the local store; one without files where tiered storage is read alone.
        tier: what the broker of the store has in tiered storage, or its compacted logs.
        broker_name: value of column ``brokerName``.
        ignore_log_end: read the local store past the end of a log that was not closed.

    Source: DefaultMessageStore.java.
    """

    def __init__(
        self,
        paths: StorePaths,
        tier: Tier | CompactedLogs | None = None,
        *,
        broker_name: str | None = None,
        ignore_log_end: bool = False,
    ) -> None:
        self.paths = paths
        self.config = BrokerConfig(paths)
        self._given_name = broker_name
        self._has_warned_of_elsewhere = False
        self._is_closed = False
        self.log = CommitLog(paths.commitlogs, paths.storage, entry_folders=paths.dledger_logs)
        self.ends = StoreEnds(paths, self.config, self.log, ignore_log_end=ignore_log_end)
        self.queues = Queues(paths, self.ends)
        self.tier = None if tier is None else TieredQueues(tier)
        self.store_queues = StoreQueues(self.log, self.queues, self.ends, self.tier)
        self.ranges = QueueRanges(
            paths, self.config, self.log, self.queues, self.store_queues, self.ends.of_records
        )
        self._sampler = Sampler(self.log, self.queues, self.store_queues)
        index = IndexSearch(paths.index, IndexSizes.of(StoreConfig()), paths.storage)
        self._lookup = Lookup(
            self.log,
            index,
            self.ends.of_records,
            self.ends.index_flushed_until,
            table=lambda: IndexTable.of(self.paths),
        )

    def close(self) -> None:
        """Release the mapped files. Batches that were read stay valid."""
        self._is_closed = True
        if self.tier is not None:
            self.tier.close()
        self.queues.close()
        self.log.close()
        requests = self.paths.storage.requests_made()
        if requests is not None:
            logger.info("%s: %s", self.paths.root, requests)

    def require_open(self) -> None:
        """Refuse to read after :meth:`close`.

        Raises:
            StoreStateError: the store was closed.
        """
        if self._is_closed:
            raise StoreStateError(f"{self.paths.root} was closed: open the store again to read it")

    def refresh(self) -> None:
        """List the files again: those of a running broker come and go.

        The log end stays as it was found.
        """
        if self.tier is not None:
            self.tier.refresh()
        self.paths.storage.refresh()
        self.log.refresh()
        self.queues.refresh()

    def forget(self) -> None:
        """Find the ends of the log and of its queues again, as after a repair elsewhere."""
        self.queues.close()
        self.refresh()
        self.ends.forget()

    def forget_recovered(self, key: QueueKey) -> None:
        """Read a queue by its files alone, which now hold the units recovered from the log."""
        self.ends.recovered.pop(key, None)
        self.queues.drop(key)

    @cached_property
    def broker_name(self) -> str:
        """The broker's name, as given or as the store tells it."""
        return self._given_name or self.config.broker_name()

    @property
    def has_given_name(self) -> bool:
        """Whether the broker's name was given and does not come from the store."""
        return self._given_name is not None

    @cached_property
    def view_broker_name(self) -> str:
        """The broker's name, or that of the folder if the file with the name is damaged."""
        try:
            return self.broker_name
        except CorruptConfigError as err:
            logger.warning("%s; taking the folder's name for the broker's", err)
            return self.paths.name

    @property
    def light_messages_apart(self) -> Mapping[str, int]:
        """The number of messages in each light queue that only RocksDB holds."""
        return self.ranges.light_messages_apart

    @property
    def log_end(self) -> LogEnd | None:
        """Where the log ends; None for a closed store, which has no ``abort`` file."""
        return self.ends.log_end

    def log_slice(self) -> LogSlice:
        """Return the range of the log that holds records.

        In a closed store it reaches to the last byte of the log.
        """
        return self.ends.log_slice()

    def n_written(self, pieces: Iterable[LogSlice]) -> int:
        """Return how many bytes of parts of the log may hold records.

        A file of a closed log has its full size, however little was written to it.
        """
        end = self.log.max_offset if self.log.is_remote else written_end(self.log)
        return sum(max(min(piece.end, end) - piece.start, 0) for piece in pieces)

    def require_before_end(self, physical_offset: int) -> None:
        """Refuse a physical offset after the last record.

        Raises:
            MessageNotFoundError: the log of a store that was not closed has ended there.
            OffsetOutOfRangeError: so have the files of one that was.
        """
        end = self.ends.of_records()
        text = "the log ends at {}: nothing is stored at physical offset {}"
        if end is not None and physical_offset >= end:
            raise MessageNotFoundError(text.format(end, physical_offset))
        if physical_offset >= self.log.max_offset:
            raise OffsetOutOfRangeError(text.format(written_end(self.log), physical_offset))

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return self.store_queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self.store_queues.ids(topic)

    @retry_if_deleted
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one after the last.

        Raises:
            UnsupportedFeatureError: the queue is of a kind that cannot be read.
            CorruptQueueError: its files contradict themselves.
        """
        self.ranges.require_plain_queues()
        return self.store_queues.range(topic, queue_id)

    @retry_if_deleted
    def first_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset whose message is there, or the end if none is.

        None for a queue without files.
        """
        queue = self.queues.open(topic, queue_id)
        return queue.first(queue.end(), self.log.min_offset) if queue.is_present else None

    @retry_if_deleted
    def queue_info(self, topic: str, queue_id: int) -> QueueInfo:
        """Return where a queue begins and ends, by offset and by time, and its bytes."""
        self.ranges.require_plain_queues()
        return self.store_queues.info(topic, queue_id)

    def known_topics(self) -> list[str]:
        """Return every topic with queues or an entry in ``config/topics.json``, sorted."""
        return self.store_queues.known_topics(self.config)

    def named_queues(self, selection: Selection) -> dict[str, set[int]]:
        """Return every topic if the selection names topics, else nothing.

        Beside each topic stand its queues if the selection names queues of it, else none. A queue
        that the broker serves need not have a message yet.
        """
        if not selection.named_topics:
            return {}
        named, served = selection.named_queues, dict[str, int]()
        if named:
            with suppress(RmqStoreError):  # said where the topics are asked for
                served = queue_nums(self.paths)
        return {
            topic: {*self.queue_ids(topic), *range(min(served.get(topic, 0), _MOST_QUEUES))}
            if topic in named
            else set()
            for topic in self.known_topics()
        }

    def chosen_queues(self, selection: Selection) -> dict[str, list[int]]:
        """Return the chosen topics and their queues; see ``QueueRanges.choose``."""
        return self.ranges.choose(selection)

    def is_chosen(self, selection: Selection, topic: str, queue_id: int) -> bool:
        """Tell whether a selection names a queue, whether or not the queue exists."""
        return self.ranges.is_chosen(selection, topic, queue_id)

    def indexed_topics(self, topics: Iterable[str]) -> set[str]:
        """Return those topics whose messages the index knows by their own keys.

        The index knows records, not the messages of inner batches, nor light queues, which show
        other queues' records.
        """
        batch_topics = set(self.queues.batch_topics())
        return {topic for topic in topics if not topic.startswith(LMQ_PREFIX)} - batch_topics

    def require_topics(self, selection: Selection) -> None:
        """Refuse a selection that names topics or queues which are not there.

        Raises:
            OptionError: a topic or queue is missing. The message lists those that exist.
        """
        self.ranges.require_plain_queues(selection)
        self._require_named(selection)

    def _require_named(self, selection: Selection) -> None:
        require_named(selection, self.named_queues(selection), str(self.paths.root))

    def require_records(self, selection: Selection) -> None:
        """Refuse an exact copy, by queue, of messages that share a record."""
        batch_topics = {*self.queues.batch_topics()} & {*self.chosen_queues(selection)}
        if batch_topics:
            raise UnsupportedFeatureError(
                Text(
                    f"{', '.join(sorted(batch_topics))}: a record holds several messages "
                    "(queue.type=BatchCQ), exact copies are of records: use ",
                    Argument("scan", "commitlog"),
                )
            )

    def warn_unknown_topics(
        self, selection: Selection, consequence: str = "the records of the log decide"
    ) -> None:
        """Log named topics that neither queues nor ``config/topics.json`` know.

        They are misspelt, deleted, or not created yet.
        """
        unknown = sorted(selection.named_topics - set(self.known_topics()))
        if unknown:
            logger.warning(
                "%s: neither a queue nor config/topics.json knows %s; %s",
                self.paths.root, ", ".join(unknown), consequence,
            )  # fmt: skip

    def warn_of_messages_elsewhere(self) -> None:
        """Log where the store has messages that are not read.

        Of a store without tiered storage this is logged at the first call only.
        """
        if self.tier is not None:
            texts = self.kind().not_read
        elif self._has_warned_of_elsewhere:
            texts = ()
        else:
            texts = tuple(messages_elsewhere(self.paths))
        self._has_warned_of_elsewhere = True
        for text in texts:
            logger.warning("%s: not read: %s", self.paths.root, text)

    def kind(self) -> StoreKind:
        """Return the kind of the store, by the files that it has."""
        if self.tier is None:
            return store_kind(self.paths)
        tier = self.tier.tier
        paths = None if self._is_tier_alone else self.paths
        return tiered_kind(paths, f"{tier.what} in {tier.folder}")

    @property
    def _is_tier_alone(self) -> bool:
        return self.paths.storage is NO_FILES

    def warn_without_queues(self) -> None:
        """Log that a store has a log but no queues at all: a read by queue then gives nothing."""
        if self.log.segments and not self.topics():
            logger.warning(
                "%s has a CommitLog but no queues in %s: "
                "a read by queue finds nothing, use %s",
                self.paths.root, self.paths.consumequeue, Text(BY_LOG),
            )  # fmt: skip

    @property
    def is_tiered(self) -> bool:
        """Whether messages of the store are read from tiered storage, or from compacted logs."""
        return self.tier is not None

    def require_local(self, request: str) -> None:
        """Refuse a request that needs all messages in the log, if some are in tiered storage.

        Raises:
            UnsupportedFeatureError: some are; the text names the request.
        """
        if self.tier is None:
            return
        tier = self.tier.tier
        text = Text(
            request,
            f" is not supported with {tier.what} ({tier.folder}), where each queue has a log of "
            "its own: read by queue; a filter on columns finds messages too",
        )
        if not self._is_tier_alone:
            alone = Text("; without ", Argument("tiered", ""), " the local store is read alone")
            text = Text(text, alone)
        raise UnsupportedFeatureError(text)

    def require_store(self, request: str) -> None:
        """Refuse a request that needs a local store, if only tiered storage is read.

        Raises:
            UnsupportedFeatureError: there is no local store; the text names the request.
        """
        if self._is_tier_alone:
            self.require_local(request)

    def require_view(self, view: str) -> None:
        """Refuse a view of what tiered storage does not have, if some messages are there.

        Raises:
            UnsupportedFeatureError: some are; the text names the view.
        """
        if view not in _VIEWS:
            self.require_local(f"view {view}")
        if view in _VIEWS_OF_CONFIG:
            self.require_store(f"view {view}")

    def plan_look_up(self, selection: Selection, spec: ReadSpec) -> list[QueueSlice]:
        """Return the ranges in tiered storage in which messages are looked up.

        The records decide about times.
        """
        if self.tier is None:
            return []
        whole = replace(selection, start=Bound(), end=Bound(LATEST))
        return self.divide(self.plan_queues(whole, spec))[0]

    def look_up(
        self, slices: Sequence[QueueSlice], spec: ReadSpec, wanted: LogFilter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted messages in ranges of :meth:`plan_look_up`, all of which are read."""
        return self._read_tiered(slices, spec, wanted)

    @retry_if_deleted
    def at_time(self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span that was stored at or after a time (ms).

        It is the end of the span if there is no such message.

        Raises:
            CorruptRecordError: a message whose time is needed is damaged.
        """
        return self.store_queues.at_time(topic, queue_id, timestamp, span)

    @retry_if_deleted
    def first_stored_at(
        self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]
    ) -> int:
        """Return the first queue offset in a span whose store time is at or after a time (ms).

        It is the end of the span if there is no such message. Damaged messages are skipped.
        """
        return self.store_queues.at_time(topic, queue_id, timestamp, span, tolerant=True)

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
            selection, self.broker_name, spans, fail_on_data_loss=fail_on_data_loss
        )

    @retry_if_deleted
    def slices(
        self, topic: str, queue_id: int, start: int, end: int, spec: ReadSpec
    ) -> list[QueueSlice]:
        """Return the parts of a range that are there; see ``StoreQueues.slices``."""
        return self.store_queues.slices(
            (topic, queue_id),
            start,
            end,
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.mode != FAILFAST,
        )

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
            self.broker_name,
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.mode != FAILFAST,
            pruning=pruning,
        )

    def read_queues(self, slices: Sequence[QueueSlice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges of queues; see ``scan.queue_scan.QueueScan``.

        Those in tiered storage come first, queue by queue. Those of the local store follow, in the
        order of its log.
        """
        if self.tier is None:
            return self._queue_scan(spec).batches(slices)
        return self._read_tiered_first(slices, spec)

    def _read_tiered_first(
        self, slices: Sequence[QueueSlice], spec: ReadSpec
    ) -> Iterator[pa.RecordBatch]:
        in_tier, local = self.divide(slices)
        yield from self._read_tiered(in_tier, spec)
        if in_tier and local:
            # Retention continues while tiered storage is read, which can take long.
            self.log.refresh()
            moved, local = self.divide(local)
            if moved:
                assert self.tier is not None
                self.tier.refresh()
                yield from self._read_tiered(moved, spec)
        yield from self._queue_scan(spec).batches(local)

    @retry_if_deleted
    def divide(self, slices: Sequence[QueueSlice]) -> tuple[list[QueueSlice], list[QueueSlice]]:
        """Return what of ranges of queues is read from tiered storage, and what of the log."""
        return self.store_queues.divide(slices)

    def _read_tiered(
        self, slices: Sequence[QueueSlice], spec: ReadSpec, wanted: LogFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        tier = self.tier
        if tier is None:
            return
        # The CRC of a whole record covers its physical offset, which is another one here.
        spec = replace(spec, check_record_crc=False)
        batch_topics = self.queues.batch_topics()
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
                self.queues.open_ext,
                spec,
                batch_topics=(topic,) if has_batches else (),
                wanted=wanted,
                is_sparse=queue.is_sparse,
            )
            yield from scan.batches(pieces)

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
        return LogScan(self.log, self.store_queues.vouched_end, spec, wanted).batches(piece)

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
            store_queues=self.store_queues,
            messages=self,
            is_name_given=self.has_given_name,
        )


def _in_range(time: int | None) -> int | None:
    """Return the nearest time (ms) that an index can be searched for."""
    return None if time is None else min(max(time, 0), LATEST_TIME)
