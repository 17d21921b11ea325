"""The façade: one RocketMQ store, opened read-only; wiring only, each part is a module of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, wraps
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import pyarrow as pa

from rmqstore.assemble import FAILFAST, ReadSpec
from rmqstore.brokerconfig import BrokerConfig, is_system_topic
from rmqstore.checkpoint import Checkpoint, read_checkpoint
from rmqstore.commitlog import CommitLog
from rmqstore.consumequeue import ConsumeQueue, RecoveredUnits
from rmqstore.errors import FileDeletedError, MessageNotFoundError, OptionError, UnsupportedFeatureError
from rmqstore.ext_codes import matched_groups
from rmqstore.files.paths import StorePaths, can_name_queues, find_store
from rmqstore.format.record import parse_message_id
from rmqstore.format.schema import MESSAGE, VERBATIM, Message, select_columns
from rmqstore.log_filter import LogFilter, log_filter
from rmqstore.log_scan import LogScan, LogSlice
from rmqstore.queue_recovery import is_newest_built, recover_queues
from rmqstore.queue_scan import QueueScan, QueueSlice
from rmqstore.queues import QueueKey, Queues, open_files
from rmqstore.ranges import QueueRanges
from rmqstore.recovery import LogEnd, find_log_end
from rmqstore.sampling import Sample, Sampler
from rmqstore.selection import Selection, parse_selection, parse_tags, parse_timestamp, require_named

__all__ = [
    "FAILFAST",
    "LogFilter",
    "LogSlice",
    "MessageStore",
    "QueueInfo",
    "QueueKey",
    "QueueSlice",
    "ReadSpec",
    "RecoveredUnits",
    "Sample",
    "log_filter",
    "open_store",
]

logger = logging.getLogger(__name__)

_PATIENCE = 10  # files that may vanish while one question is answered

P = ParamSpec("P")
T = TypeVar("T")


class QueueInfo(NamedTuple):
    """One queue: offsets (``max_offset`` excluded), times of its first and last message in ms, bytes of its records."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_store_timestamp: int | None
    last_store_timestamp: int | None
    n_bytes: int


def _anew_if_deleted(ask: Callable[P, T]) -> Callable[P, T]:
    """Ask again, of the files that are left, where retention deleted one that an answer was to come from."""

    @wraps(ask)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_PATIENCE):
            try:
                return ask(*args, **kwargs)
            except FileDeletedError as err:
                logger.info("%s; asking the files that are left", err)
                store = args[0]
                assert isinstance(store, MessageStore)
                store.refresh()
        return ask(*args, **kwargs)

    return asked


class MessageStore:
    """A store opened for reading. Nothing in its folder is created or changed, also beside a running broker.

    A context manager; :func:`rmqstore.open` makes one.

    Source: DefaultMessageStore.java.
    """

    def __init__(self, paths: StorePaths, *, broker_name: str | None = None, ignore_log_end: bool = False) -> None:
        self.paths = paths
        self.config = BrokerConfig(paths)
        self._given_name, self._ignore_log_end = broker_name, ignore_log_end
        self._log = CommitLog(paths.commitlogs)
        self._queues = Queues(paths, lambda: self.recovered)
        self._ranges = QueueRanges(paths, self._log, self._queues, self._end_of_records)
        self._sampler = Sampler(self._log, self._queues, self._ranges)

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

    @cached_property
    def log_end(self) -> LogEnd | None:
        """Where the log ends, if the store was not closed (it has an ``abort`` file); None for a closed one."""
        if self._ignore_log_end or not self.paths.abort.exists():
            return None
        end = find_log_end(self._log, read_checkpoint(self.paths.checkpoint))
        if end.reason:
            logger.warning(
                "%s: the store was not closed; its log ends at physical offset %d, %d bytes behind are no messages: %s",
                end.path, end.physical_offset, end.bytes_behind, end.reason,
            )  # fmt: skip
        return end

    @property
    def log(self) -> CommitLog:
        """The CommitLog; for modules of this package."""
        return self._log

    def forget(self) -> None:
        """Find anew where the log and its queues end: another process has repaired the store."""
        self._queues.close()
        self.refresh()
        for name in ("log_end", "recovered"):
            self.__dict__.pop(name, None)

    def forget_recovered(self, key: QueueKey) -> None:
        """Read a queue by its files alone: they hold by now what the log alone told."""
        self.recovered.pop(key, None)
        self._queues.drop(key)

    def _end_of_records(self) -> int | None:
        return None if self.log_end is None else self.log_end.physical_offset

    @cached_property
    def recovered(self) -> dict[QueueKey, RecoveredUnits]:
        """The ends of queues that their files lack and the log has: of a store that crashed, or was copied in haste.

        May be set, to what was found before: see :meth:`recovered_in`.
        """
        return self._recover_queues()

    @_anew_if_deleted
    def _recover_queues(self) -> dict[QueueKey, RecoveredUnits]:
        was_closed = not self.paths.abort.exists()
        if self.paths.has_rocksdb_queues or (self._ignore_log_end and not was_closed):
            return {}
        in_batches, known = {*self.config.batch_topics()}, {*self.config.topics()}

        def files_of(topic: str, queue_id: int) -> ConsumeQueue | None:
            if not can_name_queues(topic):
                return None
            queue = open_files(self.paths, topic, queue_id, is_batch=topic in in_batches)
            # A topic with neither files nor an entry in a topics.json that has others was deleted: it stays so.
            is_deleted = not queue.segments and known and topic not in known and not is_system_topic(topic)
            return None if is_deleted else queue

        if was_closed and is_newest_built(self._log, files_of):
            return {}
        end = self.log_end or find_log_end(self._log, Checkpoint.all_safe())
        start = self._log.min_offset if was_closed else max(end.scanned_from, self._log.min_offset)
        return recover_queues(self._log, start, end.physical_offset, files_of, was_closed=was_closed)

    def recovered_in(self, slices: Iterable[QueueSlice]) -> dict[QueueKey, RecoveredUnits]:
        """Return of :attr:`recovered` what reading these slices needs, to be given to another process."""
        found: dict[QueueKey, RecoveredUnits] = {}
        for piece in slices:
            tail = self.recovered.get((piece.topic, piece.queue_id))
            if tail is not None and piece.end > tail.start:
                start = max(piece.start, tail.start)
                units = tail.units[start - tail.start : piece.end - tail.start]
                found[piece.topic, piece.queue_id] = tail._replace(start=start, units=units)
        return found

    def topics(self) -> list[str]:
        """Return every topic with queues, also the system's, sorted."""
        return self._queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self._queues.ids(topic)

    @_anew_if_deleted
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one behind the last.

        Raises:
            UnsupportedFeatureError: the queue is of a kind that cannot be read.
            CorruptQueueError: its files contradict themselves.
        """
        self._ranges.require_plain_queues()
        return self._ranges.range(topic, queue_id)

    @_anew_if_deleted
    def first_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset whose message is there, the end if none is; None for a queue without files."""
        return self._ranges.first(topic, queue_id)

    @_anew_if_deleted
    def first_stored_at(self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span stored at or after a time (ms), the end of the span if none is."""
        return self._ranges.at_time(topic, queue_id, timestamp, span, tolerant=True)

    def queues(self, topic: str) -> list[QueueInfo]:
        """Return what there is of a topic, queue by queue; [] for a topic without queues."""
        return [self._queue_info(topic, queue_id) for queue_id in self.queue_ids(topic)]

    @_anew_if_deleted
    def _queue_info(self, topic: str, queue_id: int) -> QueueInfo:
        start, end = self.queue_range(topic, queue_id)
        queue = self._queues.open(topic, queue_id)
        if start >= end:
            return QueueInfo(topic, queue_id, start, end, None, None, 0)
        times = [self._log.store_timestamp(queue.unit(at)[0]) for at in (start, end - 1)]
        block, n_bytes = 1 << 20, 0
        for low, high in queue.runs(start, end):
            for at in range(low, high, block):
                n_bytes += int(queue.weights(at, min(at + block, high)).sum())
        return QueueInfo(topic, queue_id, start, end, times[0], times[1], n_bytes)

    @_anew_if_deleted
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

    def get(self, place: int | str) -> Message:
        """Return the message at a physical offset, or with an offset message id (32 or 56 hex digits).

        The host in an id is not looked at: the id of a store that was copied stays good.

        Raises:
            MessageNotFoundError: no message begins there.
            CorruptRecordError: the record is damaged.
            OffsetOutOfRangeError: no file holds the offset.
        """
        physical_offset = parse_message_id(place)[1] if isinstance(place, str) else place
        end = self._end_of_records()
        if end is not None and physical_offset >= end:
            raise MessageNotFoundError(f"the log ends at {end}: nothing is stored at physical offset {physical_offset}")
        return self._log.get(physical_offset, self.broker_name)

    def scan(
        self,
        *,
        tags: str | None = None,
        columns: str | Iterable[str] | pa.Schema | None = None,
        scan: str = "queue",
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
        ``verbatim``: what records hold as they hold it (``format.schema.VERBATIM``), for exact copies.

        Raises:
            OptionError: arguments that contradict one another.
            CorruptRecordError, CorruptQueueError: while reading, damage in mode FAILFAST.
            OffsetOutOfRangeError: messages asked for are gone and ``fail_on_data_loss`` holds.
        """
        chosen = parse_selection(**selection)
        schema = VERBATIM if verbatim and columns is None else _schema(columns)
        if mode == "PERMISSIVE" and column_name_of_corrupt_record not in schema.names:
            schema = schema.append(pa.field(column_name_of_corrupt_record, pa.string()))
        spec = ReadSpec(
            schema=schema,
            mode=mode,
            corrupt_column=column_name_of_corrupt_record,
            check_crc=check_crc,
            fail_on_data_loss=fail_on_data_loss,
            tags=parse_tags(tags),
            broker_name=self.broker_name,
            inflate=not verbatim,
        )
        if verbatim and scan == "queue":
            self._require_records(chosen)
        batches = self._by_queue(chosen, spec) if scan == "queue" else self._by_log(chosen, spec, scan)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _require_records(self, selection: Selection) -> None:
        """Refuse an exact copy, by queue, of messages that are no records of their own."""
        others = {*self._queues.batch_topics()} & {*self.chosen_queues(selection)}
        if others:
            raise UnsupportedFeatureError(
                f"{', '.join(sorted(others))}: a record holds several messages (queue.type=BatchCQ), exact copies are "
                "of records: use scan=commitlog"
            )

    def _by_queue(self, selection: Selection, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        self.require_topics(selection)
        self.warn_without_queues()
        return self.read_queues(self.plan_queues(selection, spec), spec)

    def _by_log(self, selection: Selection, spec: ReadSpec, scan: str) -> Iterator[pa.RecordBatch]:
        if scan != "commitlog":
            raise OptionError(f"scan {scan!r}: queue or commitlog")
        wanted = log_filter(selection, spec.schema.names)
        self.warn_unknown_topics(selection)
        return self.read_log(self.log_slice(), spec, wanted)

    def require_topics(self, selection: Selection) -> None:
        """Refuse a selection that names topics or queues which are not there.

        Raises:
            OptionError: with those that are.
        """
        self._ranges.require_plain_queues()
        require_named(selection, self.named_queues(selection), str(self.paths.root))

    def named_queues(self, selection: Selection) -> dict[str, set[int]]:
        """Return the queues of every topic, to be held against those that are named; nothing where none are."""
        return {topic: set(self.queue_ids(topic)) for topic in self.known_topics()} if selection.named_topics else {}

    def warn_unknown_topics(self, selection: Selection) -> None:
        """Say so where a scan by the log names topics that neither queues nor topics.json know: a slip, or deleted."""
        unknown = sorted(selection.named_topics - set(self.known_topics()))
        if unknown:
            logger.warning(
                "%s: neither a queue nor config/topics.json knows %s; the records of the log decide",
                self.paths.root, ", ".join(unknown),
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

    def first_behind(self, topic: str, queue_id: int, physical_offset: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span whose message lies at or behind a place of the log, or its end."""
        queue = self._queues.open(topic, queue_id)
        return queue.search(*span, lambda at: queue.unit(at)[0] >= physical_offset)

    @_anew_if_deleted
    def starts(
        self, selection: Selection, spans: Callable[[], Mapping[QueueKey, tuple[int, int]]], *, fail_on_data_loss: bool
    ) -> dict[QueueKey, int]:
        """Return where a selection starts in queues; see ``ranges.QueueRanges.starts``."""
        name = self.broker_name
        return self._ranges.starts(selection, self.config, name, spans, fail_on_data_loss=fail_on_data_loss)

    def slices(self, topic: str, queue_id: int, start: int, end: int, *, tolerant: bool) -> list[QueueSlice]:
        """Return the parts of a range that the queue's files have; see ``ranges.QueueRanges.slices``."""
        return self._ranges.slices(topic, queue_id, start, end, tolerant=tolerant)

    @_anew_if_deleted
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
        queues = self._queues
        return QueueScan(self._log, queues.open, queues.open_ext, spec, queues.batch_topics()).batches(slices)

    @_anew_if_deleted
    def log_slice(self) -> LogSlice:
        """Return the range of the log that holds records: up to its end, or to its last byte in a closed store."""
        end = self._end_of_records()
        return LogSlice(self._log.min_offset, self._log.max_offset if end is None else end, is_closed=end is None)

    @_anew_if_deleted
    def log_heads(self) -> list[int]:
        """Return places where a scan of the log may be cut; see ``sampling.Sampler.log_heads``."""
        return self._sampler.log_heads()

    def read_log(self, piece: LogSlice, spec: ReadSpec, wanted: LogFilter) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range of the log; see ``log_scan.LogScan``."""
        return LogScan(self._log, self._ranges.end_in_log, spec, wanted).batches(piece)

    @_anew_if_deleted
    def rows_within(self, piece: QueueSlice, n_bytes: int) -> int:
        """Return how many messages from a range's start on take at most so many bytes; see ``sampling.Sampler``."""
        return self._sampler.rows_within(piece, n_bytes)

    @_anew_if_deleted
    def sample(self, piece: QueueSlice, count: int) -> list[Sample]:
        """Return points of a queue; see ``sampling.Sampler.sample``."""
        return self._sampler.sample(piece, count)


def _schema(columns: str | Iterable[str] | pa.Schema | None) -> pa.Schema:
    if columns is None:
        return MESSAGE
    if isinstance(columns, pa.Schema):
        return columns
    return select_columns(name.strip() for name in (columns.split(",") if isinstance(columns, str) else columns))


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
    return MessageStore(paths, broker_name=broker_name, ignore_log_end=ignore_log_end)
