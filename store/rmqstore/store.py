"""The façade: one RocketMQ store, opened read-only; wiring only, each part is a module of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from inspect import signature
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import (
    CorruptConfigError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import LMQ_PREFIX, Positions
from rmqstore.format.record import parse_message_id
from rmqstore.format.schema import MESSAGE, PENDING, VERBATIM, Message, select_columns
from rmqstore.query.conditions import Points
from rmqstore.query.keys import Wanted, parse_wanted
from rmqstore.query.selection import (
    Selection,
    choose_topics,
    parse_selection,
    parse_tags,
    parse_timestamp,
    require_arguments,
    require_named,
)
from rmqstore.query.sql92.filter import parse_filter
from rmqstore.read.lookup.candidates import Found, Lookup, QueryResult
from rmqstore.read.lookup.finder import Finder
from rmqstore.read.lookup.pending import find_pending, read_pending
from rmqstore.read.plan.queue_ranges import QueueRanges
from rmqstore.read.plan.sampling import Sample, Sampler
from rmqstore.read.scan.assembler import refuse_stretches
from rmqstore.read.scan.log_scan import LogScan
from rmqstore.read.scan.queue_scan import QueueScan
from rmqstore.read.scan.record_filter import LogFilter, log_filter
from rmqstore.read.scan.rows import SingleUnits, UnitRows
from rmqstore.read.scan.spec import FAILFAST, ReadSpec
from rmqstore.read.scan.tags_codes import matched_groups
from rmqstore.read.views.registry import plan_view, read_view
from rmqstore.read.views.schema import ViewSpec, view_spec
from rmqstore.read.views.source import ViewLimits, ViewPiece, ViewSource
from rmqstore.spans import LATEST_TIME, LogSlice, LostStretch, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.paths import StorePaths, find_store
from rmqstore.storage.files.retry import anew_if_deleted
from rmqstore.storage.index.search import IndexSearch
from rmqstore.storage.index.sizes import IndexSizes
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue_set import Queues
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.storage.recovery.store_ends import StoreEnds

logger = logging.getLogger(__name__)


class QueueInfo(NamedTuple):
    """One queue: offsets (``max_offset`` excluded), times of its first and last message in ms, bytes of its records."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_store_timestamp: int | None
    last_store_timestamp: int | None
    n_bytes: int


class MessageStore:
    """A store opened for reading. Nothing in its folder is created or changed, also beside a running broker.

    A context manager; :func:`rmqstore.open` makes one.

    Source: DefaultMessageStore.java.
    """

    def __init__(self, paths: StorePaths, *, broker_name: str | None = None, ignore_log_end: bool = False) -> None:
        self.paths = paths
        self.config = BrokerConfig(paths)
        self._given_name = broker_name
        self._log = CommitLog(paths.commitlogs)
        self.ends = StoreEnds(paths, self.config, self._log, ignore_log_end=ignore_log_end)
        self._queues = Queues(paths, lambda: self.ends.recovered)
        self._ranges = QueueRanges(paths, self._log, self._queues, self.ends.of_records)
        self._sampler = Sampler(self._log, self._queues, self._ranges)
        index = IndexSearch(paths.index, IndexSizes.of(StoreConfig()))
        self._lookup = Lookup(self._log, index, self.ends.of_records, self.ends.index_flushed_until)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapped files. Batches that were read stay valid."""
        self._queues.close()
        self._log.close()

    def refresh(self) -> None:
        """List the files anew, those of a running broker come and go. Where the log ends stays as it was found."""
        self._log.refresh()
        self._queues.refresh()

    @cached_property
    def broker_name(self) -> str:
        """The broker's name, as given or as the store tells it."""
        return self._given_name or self.config.broker_name()

    @property
    def light_messages_apart(self) -> Mapping[str, int]:
        """How many messages light queues have that lie in RocksDB alone; see ``ranges.QueueRanges``."""
        return self._ranges.light_messages_apart

    @property
    def log_end(self) -> LogEnd | None:
        """Where the log ends, if the store was not closed (it has an ``abort`` file); None for a closed one."""
        return self.ends.log_end

    @property
    def log(self) -> CommitLog:
        """The CommitLog; for modules of this package."""
        return self._log

    def forget(self) -> None:
        """Find anew where the log and its queues end: another process has repaired the store."""
        self._queues.close()
        self.refresh()
        self.ends.forget()

    def forget_recovered(self, key: QueueKey) -> None:
        """Read a queue by its files alone: they hold by now what the log alone told."""
        self.ends.recovered.pop(key, None)
        self._queues.drop(key)

    def topics(self) -> list[str]:
        """Return every topic with queues, also the system's, sorted."""
        return self._queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self._queues.ids(topic)

    @anew_if_deleted
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one behind the last.

        Raises:
            UnsupportedFeatureError: the queue is of a kind that cannot be read.
            CorruptQueueError: its files contradict themselves.
        """
        self._ranges.require_plain_queues()
        return self._ranges.range(topic, queue_id)

    @anew_if_deleted
    def first_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset whose message is there, the end if none is; None for a queue without files."""
        return self._ranges.first(topic, queue_id)

    @anew_if_deleted
    def first_stored_at(self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span stored at or after a time (ms), the end of the span if none is."""
        return self._ranges.at_time(topic, queue_id, timestamp, span, tolerant=True)

    def queues(self, topic: str) -> list[QueueInfo]:
        """Return what there is of a topic, queue by queue; [] for a topic without queues."""
        return [self._queue_info(topic, queue_id) for queue_id in self.queue_ids(topic)]

    @anew_if_deleted
    def _queue_info(self, topic: str, queue_id: int) -> QueueInfo:
        start, end = self.queue_range(topic, queue_id)
        queue = self._queues.open(topic, queue_id)
        if start >= end:
            return QueueInfo(topic, queue_id, start, end, None, None, 0)
        times = [self._log.store_timestamp(queue.unit(at)[0]) for at in (start, end - 1)]
        return QueueInfo(topic, queue_id, start, end, times[0], times[1], queue.n_bytes(start, end))

    @anew_if_deleted
    def offset_at(self, topic: str, queue_id: int, timestamp: int | str | datetime, boundary: str = "lower") -> int:
        """Return the queue offset at a store time.

        Args:
            topic: its name.
            queue_id: its queue.
            timestamp: epoch ms, ISO-8601 or a datetime.
            boundary: ``lower``: the first message at or after the time, the max offset if none is; ``upper``: the last
                one at or before it, the min offset if none is.

        Source: DefaultMessageStore.java#getOffsetInQueueByTime.
        """
        span = self.queue_range(topic, queue_id)
        at = parse_timestamp("timestamp", timestamp)
        if boundary == "lower":
            return self._ranges.at_time(topic, queue_id, at, span)
        if boundary == "upper":
            return max(self._ranges.at_time(topic, queue_id, at + 1, span) - 1, span[0])
        raise OptionError(f"boundary {boundary!r}: lower or upper")

    def matched_groups(
        self, topic: str, queue_id: int, queue_offset: int, groups: Iterable[str] | None = None
    ) -> list[str] | None:
        """Return the consumer groups whose SQL92 filter a message may match, as the broker noted it when it stored it.

        Args:
            topic: its name.
            queue_id: its queue.
            queue_offset: the message's.
            groups: to be asked for; without, those that ``config/consumerFilter.json`` has.

        Returns:
            Groups by name; those not in it surely do not match. None where the broker noted nothing, as without
            ``enableCalcFilterBitMap``.

        Raises:
            UnsupportedFeatureError: the library for Bloom filters is not installed.
        """
        code = self._queues.open(topic, queue_id).unit(queue_offset)[2]
        asked = self.config.filter_groups(topic) if groups is None else dict.fromkeys(groups, -1)
        return matched_groups(self._queues.open_ext(topic, queue_id), code, topic, asked)

    @anew_if_deleted
    def get(self, place: int | str) -> Message:
        """Return the message at a physical offset, or with an offset message id (32 or 56 hex digits).

        The host in an id is not looked at: the id of a store that was copied stays good.

        Raises:
            MessageNotFoundError: no message begins there.
            CorruptRecordError: the record is damaged.
            OffsetOutOfRangeError: no file holds the offset.
        """
        physical_offset = parse_message_id(place)[1] if isinstance(place, str) else place
        if isinstance(place, str) and not self._log.min_offset <= physical_offset < self._log.max_offset:
            raise OffsetOutOfRangeError(
                f"{place} would be the offset message id of physical offset {physical_offset}; the log of "
                f"{self.paths.root} reaches from {self._log.min_offset} to {self._log.max_offset}. An id that a client "
                "made (column msgId) is looked up: scan(msg_id=...), rmqstore query -m"
            )
        end = self.ends.of_records()
        if end is not None and physical_offset >= end:
            raise MessageNotFoundError(f"the log ends at {end}: nothing is stored at physical offset {physical_offset}")
        return self._log.get(physical_offset, self.broker_name)

    @anew_if_deleted
    def offsets_at(self, topic: str, timestamp: int | str | datetime, boundary: str = "lower") -> dict[int, int]:
        """Return the queue offset at a store time in each queue of a topic; see :meth:`offset_at`."""
        return {queue_id: self.offset_at(topic, queue_id, timestamp, boundary) for queue_id in self.queue_ids(topic)}

    @anew_if_deleted
    def query(
        self,
        topic: str,
        key: str,
        begin: int | str | datetime | None = None,
        end: int | str | datetime | None = None,
        limit: int | None = None,
        *,
        scan_uncovered: bool = False,
    ) -> QueryResult:
        """Return the messages of a topic that have a key, as RocketMQ's queryMessage finds them by the index.

        Unlike it, it has no cap, compares times to the millisecond and the key itself, and returns a message once.

        Args:
            topic: its name.
            key: one of its keys: its UNIQ_KEY, or one of the words of its KEYS.
            begin: stored from then on: epoch ms, ISO-8601 or a datetime.
            end: stored until then, included.
            limit: the newest so many.
            scan_uncovered: also read the parts of the log that no index file tells of, which takes as long as they are.
                Small ones, as messages without keys leave them between two files, are always read.

        Raises:
            CorruptRecordError: a record that the index points at is damaged.
            OptionError: no message can have such a key, or a time is none.
        """
        if limit is not None and limit < 1:
            raise OptionError(f"limit {limit}: a whole number from 1 on")
        low = 0 if begin is None else max(parse_timestamp("begin", begin), 0)
        high = LATEST_TIME if end is None else min(parse_timestamp("end", end), LATEST_TIME)
        found = self.finder.query(
            topic, key, (low, high), limit, scan_uncovered=scan_uncovered, broker_name=self.broker_name
        )
        if not found:
            self.warn_unknown_topics(parse_selection(subscribe=[topic]))
        return found

    @anew_if_deleted
    def _find(self, wanted: Wanted, topics: Sequence[str], low: int | None, high: int | None) -> Found:
        return self._lookup.find(wanted, topics, low, high)

    def find(self, wanted: Wanted, selection: Selection) -> Found:
        """Return where messages may stand that are looked for; see ``lookup.Lookup.find``.

        Raises:
            OptionError: the selection speaks of queue offsets.
        """
        selection.require_by_log()
        end = selection.end.timestamp
        named = selection.subscribe or selection.assign  # by name they need not be looked up, queues or not
        known = [] if named else self.known_topics()
        if not named and not known and self.paths.has_rocksdb_queues:
            raise UnsupportedFeatureError(
                f"{self.paths.rocksdb_queues}, a RocksDB database that is not readable yet, alone tells which topics "
                "there are, and config/topics.json has none: name the topics that are to be searched (subscribe)"
            )
        topics = sorted(named) if named else choose_topics(selection, known)
        begin = selection.start.timestamp
        bounds = [
            None if at is None else min(max(at, 0), LATEST_TIME) for at in (begin, None if end is None else end - 1)
        ]
        return self._find(wanted, topics, *bounds)

    @cached_property
    def finder(self) -> Finder:
        """Reads what look-ups find."""
        return Finder(self._log, self._lookup, self._find, self.read_log, lambda: self.log_end is None)

    def find_in_index(self, wanted: Wanted, topics: Sequence[str]) -> Found:
        """Return where messages of some topics may stand that are looked for; see ``lookup.Lookup.find``."""
        return self._find(wanted, topics, None, None)

    def units_at(self, topic: str, queue_id: int, queue_offsets: NDArray[np.int64], places: Positions) -> SingleUnits:
        """Return those units of a queue, by queue offset (n,), that point at the places of the log beside them (n,)."""
        order = np.argsort(queue_offsets, kind="stable")
        queue_offsets, places = queue_offsets[order], places[order]
        units = self._queues.open(topic, queue_id).units_of(queue_offsets)
        count = len(places)
        ids = np.full(count, queue_id, np.int32)
        rows = UnitRows([topic], np.zeros(count, np.int32), ids, queue_offsets, units.sizes, units.tags_codes)
        return SingleUnits(rows, places).take(np.flatnonzero((units.physical_offsets == places) & (units.sizes > 0)))

    def read_units(self, picked: SingleUnits, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of single units; see ``queue_scan.QueueScan.single``."""
        return self._queue_scan(spec).single(picked)

    @anew_if_deleted
    def log_points(self, heads: Callable[[], Iterable[int]]) -> Points:
        """Return records of the log with their times; see ``sampling.Sampler.log_points``."""
        return self._sampler.log_points(self.ends.log_slice(), heads)

    def scan(
        self,
        *,
        tags: str | None = None,
        filter: str | None = None,  # noqa: A002 - the option's name
        columns: str | Iterable[str] | pa.Schema | None = None,
        scan: str = "queue",
        msg_key: str | Sequence[str] | None = None,
        msg_id: str | Sequence[str] | None = None,
        index_only: bool = False,
        include_pending: bool = False,
        mode: str = "FAILFAST",
        column_name_of_corrupt_record: str = "_corrupt_record",
        check_crc: bool = True,
        fail_on_data_loss: bool = True,
        verbatim: bool = False,
        **selection: Any,  # noqa: ANN401
    ) -> pa.RecordBatchReader:
        """Return the chosen messages as a stream of batches; the arguments are the read options of the README.

        ``selection`` takes those that choose topics and bounds, ``selection.parse_selection`` lists them.
        ``scan="queue"``: by topic and queue; messages of one queue in order, of several in the order of the log.
        ``scan="commitlog"``: every valid record in the order of the log, with or without a queue.
        ``msg_key``, ``msg_id``: a look-up: the records, with or without a queue, that have one of these keys (UNIQ_KEY
        or a word of KEYS) or ids (``msgId`` or ``offsetMsgId``), in the order of the log. What the index does not
        cover is read, unless ``index_only``.
        ``include_pending``: at the end, messages on their way to the chosen queues, see ``pending``; columns
        ``pending`` and ``dueTimestamp`` tell them.
        ``filter``: an SQL92 expression over properties, as RocketMQ's MessageSelector.bySql takes it.
        ``verbatim``: what records hold as they hold it (``format.schema.VERBATIM``), for exact copies.

        Raises:
            OptionError: arguments that contradict one another.
            CorruptRecordError, CorruptQueueError: while reading, damage in mode FAILFAST.
            OffsetOutOfRangeError: messages asked for are gone and ``fail_on_data_loss`` holds.
        """
        require_arguments(selection, _arguments(parse_selection) | _arguments(MessageStore.scan))
        chosen, wanted = parse_selection(**selection), parse_wanted(msg_key, msg_id)
        schema = VERBATIM if verbatim and columns is None else _schema(columns, include_pending=include_pending)
        if mode == "PERMISSIVE" and column_name_of_corrupt_record not in schema.names:
            schema = schema.append(pa.field(column_name_of_corrupt_record, pa.string()))
        spec = ReadSpec(
            schema=schema,
            mode=mode,
            corrupt_column=column_name_of_corrupt_record,
            check_crc=check_crc,
            fail_on_data_loss=fail_on_data_loss,
            tags=parse_tags(tags),
            filter=parse_filter(filter),
            broker_name=self.broker_name,
            inflate=not verbatim,
        )
        if verbatim and scan == "queue":
            self._require_records(chosen)
        if wanted:
            batches = self._look_up(wanted, chosen, spec, index_only=index_only)
        else:
            batches = self._by_queue(chosen, spec) if scan == "queue" else self._by_log(chosen, spec, scan)
        if include_pending:
            if wanted or scan != "queue":
                raise OptionError("include_pending: only a read by queue knows what is pending")
            batches = chain(batches, self._pending(chosen, spec))
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _require_records(self, selection: Selection) -> None:
        """Refuse an exact copy, by queue, of messages that are no records of their own."""
        others = {*self._queues.batch_topics()} & {*self.chosen_queues(selection)}
        if others:
            raise UnsupportedFeatureError(
                f"{', '.join(sorted(others))}: a record holds several messages (queue.type=BatchCQ), exact copies are "
                "of records: use scan=commitlog"
            )

    def _pending(self, selection: Selection, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        yield from read_pending(self, find_pending(self, selection, spec), spec, selection)

    def _by_queue(self, selection: Selection, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        self.require_topics(selection)
        self.warn_without_queues()
        slices = self.plan_queues(selection, spec)
        return chain(self.read_lost(self.lost(slices, spec), spec), self.read_queues(slices, spec))

    def lost(self, slices: Iterable[QueueSlice], spec: ReadSpec) -> list[LostStretch]:
        """Return the parts of the log that a read of ranges of queues would lack without a word.

        Queues whose units come from a damaged log may lack messages that nothing tells of.
        """
        is_told = spec.mode != FAILFAST and not spec.tags  # a unit for a lost message has no tags
        return self.ends.lost(slices if is_told else ())

    def _by_log(self, selection: Selection, spec: ReadSpec, scan: str) -> Iterator[pa.RecordBatch]:
        if scan != "commitlog":
            raise OptionError(f"scan {scan!r}: queue or commitlog")
        wanted = log_filter(selection, spec.schema.names)
        self.warn_unknown_topics(selection)
        return self.read_log(self.log_slice(), spec, wanted)

    def _look_up(
        self, wanted: Wanted, selection: Selection, spec: ReadSpec, *, index_only: bool
    ) -> Iterator[pa.RecordBatch]:
        chosen = log_filter(selection, spec.schema.names, wanted)
        self.warn_unknown_topics(selection)
        yield from self.finder.read(self.find(wanted, selection), spec, chosen, index_only=index_only)

    def require_topics(self, selection: Selection) -> None:
        """Refuse a selection that names topics or queues which are not there.

        Raises:
            OptionError: with those that are.
        """
        self._ranges.require_plain_queues(selection)
        require_named(selection, self.named_queues(selection), str(self.paths.root))

    def named_queues(self, selection: Selection) -> dict[str, set[int]]:
        """Return the queues of every topic, to be held against those that are named; nothing where none are."""
        return {topic: set(self.queue_ids(topic)) for topic in self.known_topics()} if selection.named_topics else {}

    def warn_unknown_topics(self, selection: Selection, so: str = "the records of the log decide") -> None:
        """Say so where topics are named that neither queues nor topics.json know: a slip, or deleted, or to come."""
        unknown = sorted(selection.named_topics - set(self.known_topics()))
        if unknown:
            logger.warning(
                "%s: neither a queue nor config/topics.json knows %s; %s", self.paths.root, ", ".join(unknown), so
            )  # fmt: skip

    def warn_without_queues(self) -> None:
        """Say so where a log has no queues at all: a read by queue gives nothing then."""
        if self._log.segments and not self.topics():
            logger.warning(
                "%s has a CommitLog but no queues in %s: a read by queue finds nothing, use scan=commitlog",
                self.paths.root, self.paths.consumequeue,
            )  # fmt: skip

    def known_topics(self) -> list[str]:
        """Return every topic with queues or an entry in ``config/topics.json``, sorted."""
        return self._ranges.known_topics(self.config)

    def chosen_queues(self, selection: Selection) -> dict[str, list[int]]:
        """Return the topics that a selection names and their queues; see ``ranges.QueueRanges.choose``."""
        return self._ranges.choose(selection, self.config)

    def is_chosen(self, selection: Selection, topic: str, queue_id: int) -> bool:
        """Tell whether a selection names a queue, be it there or not; see ``ranges.QueueRanges.is_chosen``."""
        return self._ranges.is_chosen(selection, topic, queue_id)

    def end_in_log(self, but: Container[QueueKey] = ()) -> int:
        """Return the physical offset behind the last record that a queue points at, but for some; -1 without queues."""
        return self._ranges.end_in_log(but)

    @anew_if_deleted
    def slices_within(self, piece: QueueSlice, spans: Sequence[Span]) -> list[QueueSlice]:
        """Return the parts of a range whose messages may lie in parts of the log; see ``QueueRanges.within``."""
        return self._ranges.within(piece, spans)

    def first_behind(self, topic: str, queue_id: int, physical_offset: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span whose message lies at or behind a place of the log, or its end."""
        queue = self._queues.open(topic, queue_id)
        return queue.search(*span, lambda at: queue.unit(at)[0] >= physical_offset)

    @anew_if_deleted
    def starts(
        self, selection: Selection, spans: Callable[[], Mapping[QueueKey, tuple[int, int]]], *, fail_on_data_loss: bool
    ) -> dict[QueueKey, int]:
        """Return where a selection starts in queues; see ``ranges.QueueRanges.starts``."""
        name = self.broker_name
        return self._ranges.starts(selection, self.config, name, spans, fail_on_data_loss=fail_on_data_loss)

    def slices(self, topic: str, queue_id: int, start: int, end: int, *, tolerant: bool) -> list[QueueSlice]:
        """Return the parts of a range that the queue's files have; see ``ranges.QueueRanges.slices``."""
        return self._ranges.slices(topic, queue_id, start, end, tolerant=tolerant)

    def look_confirmed(self, piece: QueueSlice, log_end: int) -> bool:
        """Tell whether the log confirms the units of a range; see ``unit_checks.look_confirmed``."""
        return self._ranges.look_confirmed(piece, log_end)

    def confirmed(self, piece: QueueSlice, log_end: int) -> list[QueueSlice]:
        """Return the parts of a range whose units the log confirms; see ``ranges.QueueRanges.confirmed``."""
        return self._ranges.confirmed(piece, log_end)

    @anew_if_deleted
    def plan_queues(self, selection: Selection, spec: ReadSpec) -> list[QueueSlice]:
        """Return the ranges of queues that a selection asks for; see ``ranges.QueueRanges.resolve``."""
        return self._ranges.resolve(
            selection,
            self.config,
            self.broker_name,
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.mode != FAILFAST,
        )

    def read_queues(self, slices: Sequence[QueueSlice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges of queues; see ``queue_scan.QueueScan``."""
        return self._queue_scan(spec).batches(slices)

    def read_lost(self, stretches: Iterable[LostStretch], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Do with what :meth:`lost` gave what the read says; see ``assemble.refuse_stretches``."""
        return refuse_stretches(stretches, spec)

    def _queue_scan(self, spec: ReadSpec) -> QueueScan:
        queues = self._queues
        return QueueScan(self._log, queues.open, queues.open_ext, spec, queues.batch_topics())

    def indexed_topics(self, topics: Iterable[str]) -> set[str]:
        """Return those topics whose messages the index knows by their own keys.

        It knows records: not the messages in inner batches, nor light message queues, which show those of others.
        """
        return {topic for topic in topics if not topic.startswith(LMQ_PREFIX)} - set(self._queues.batch_topics())

    def log_slice(self) -> LogSlice:
        """Return the range of the log that holds records: up to its end, or to its last byte in a closed store."""
        return self.ends.log_slice()

    @anew_if_deleted
    def log_heads(self) -> list[int]:
        """Return places where a scan of the log may be cut; see ``sampling.Sampler.log_heads``."""
        return self._sampler.log_heads()

    def read_log(self, piece: LogSlice, spec: ReadSpec, wanted: LogFilter) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range of the log; see ``log_scan.LogScan``."""
        return LogScan(self._log, self._ranges.vouched_end, spec, wanted).batches(piece)

    @anew_if_deleted
    def rows_within(self, piece: QueueSlice, n_bytes: int) -> int:
        """Return how many messages from a range's start on take at most so many bytes; see ``sampling.Sampler``."""
        return self._sampler.rows_within(piece, n_bytes)

    @anew_if_deleted
    def sample(self, piece: QueueSlice, count: int) -> list[Sample]:
        """Return points of a queue; see ``sampling.Sampler.sample``."""
        return self._sampler.sample(piece, count)

    def view(
        self,
        name: str,
        *,
        columns: str | Iterable[str] | pa.Schema | None = None,
        mode: str | None = None,
        check_crc: bool | None = None,
        **selection: Any,  # noqa: ANN401
    ) -> pa.RecordBatchReader:
        """Return a view of the store as a stream of batches; names, columns and arguments are those of the README.

        Damage stops no view: rows say what is damaged.

        Args:
            name: ``queues``, ``topics``, ``commitlog``, ``consumequeue``, ``index``, ``groups`` or ``files``.
            columns: those that are wanted; all by default.
            mode: PERMISSIVE, or DROPMALFORMED to leave out rows that tell of damage.
            check_crc: for ``commitlog``: look at CRCs too, as it does by default.
            selection: ``subscribe``, ``subscribe_pattern``, ``assign``, ``include_system_topics``.

        Raises:
            OptionError: an argument has no meaning with the view, or is out of its domain.
        """
        spec = view_spec(name, columns=columns, mode=mode, check_crc=check_crc, **selection)
        if spec.names_topics:
            require_named(spec.selection, self.named_queues(spec.selection), str(self.paths.root))
        pieces = self.plan_view(spec, ViewLimits())
        batches = (batch for piece in pieces for batch in read_view(self._view_source, spec, piece))
        return pa.RecordBatchReader.from_batches(spec.schema, batches)

    @cached_property
    def view_broker_name(self) -> str:
        """The broker's name, or the folder's where the file that tells it is damaged: that stops no view."""
        try:
            return self.broker_name
        except CorruptConfigError as err:
            logger.warning("%s; taking the folder's name for the broker's", err)
            return self.paths.root.resolve().name

    @anew_if_deleted
    def plan_view(self, spec: ViewSpec, limits: ViewLimits) -> list[ViewPiece]:
        """Return a view in pieces, in the order of their rows; see ``views.reading.plan_view``."""
        return plan_view(self._view_source, spec, limits)

    def read_view(self, spec: ViewSpec, piece: ViewPiece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece that was planned, perhaps by another process, which knows what it found."""
        self.ends.take(piece.log_end, piece.recovered)
        return read_view(self._view_source, spec, piece)

    @property
    def _view_source(self) -> ViewSource:
        return ViewSource(
            self.paths, self.config, self.view_broker_name, self._log, self._queues, self._ranges, self.ends,
            self._sampler,
        )  # fmt: skip


def _arguments(function: Callable[..., object]) -> set[str]:
    return set(signature(function).parameters) - {"self", "selection", "streaming"}


def _schema(columns: str | Iterable[str] | pa.Schema | None, *, include_pending: bool) -> pa.Schema:
    extra = {field.name: field for field in PENDING} if include_pending else {}
    if columns is None:
        return pa.schema([*MESSAGE, *extra.values()])
    if isinstance(columns, pa.Schema):
        return columns
    names = [name.strip() for name in (columns.split(",") if isinstance(columns, str) else columns)]
    own = {field.name: field for field in select_columns(name for name in names if name not in extra)}
    return pa.schema([extra.get(name) or own[name] for name in names])


def open_store(
    path: str | os.PathLike[str],
    *,
    broker_name: str | None = None,
    ignore_log_end: bool = False,
    commitlogs: Sequence[str] = (),
    consumequeue: str | None = None,
    index: str | None = None,
) -> MessageStore:
    """Open the store at ``path`` for reading.

    Args:
        path: the folder that holds ``commitlog/``.
        broker_name: for column ``brokerName``; else the store is asked.
        ignore_log_end: read on behind the end of a log that was not closed.
        commitlogs: log folders that lie elsewhere (the broker's ``storePathCommitLog``).
        consumequeue: the queue folder where it lies elsewhere.
        index: the index folder where it lies elsewhere.

    Raises:
        NotAStoreError: there is no store.
        UnsupportedFeatureError: it is of a kind that cannot be read.
    """
    paths = find_store(path, commitlogs=commitlogs, consumequeue=consumequeue, index=index)
    for folder in paths.dledger_logs:
        logger.warning("%s: the log goes on in %s, a DLedger CommitLog that is not read", paths.root, folder)
    return MessageStore(paths, broker_name=broker_name, ignore_log_end=ignore_log_end)
