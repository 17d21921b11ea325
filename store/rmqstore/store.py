"""The public API for reading: one RocketMQ store, opened for reading."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from html import escape
from typing import Literal, NamedTuple, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import (
    MessageNotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
)
from rmqstore.format.record import parse_message_id
from rmqstore.format.schema import VERBATIM, Message
from rmqstore.query.arguments import (
    Boundary,
    Mode,
    ScanArguments,
    ScanOrder,
    SelectionArguments,
    TopicArguments,
)
from rmqstore.query.keys import parse_wanted
from rmqstore.query.selection import (
    parse_selection,
    parse_tags,
    parse_timestamp,
    require_arguments,
    require_named,
)
from rmqstore.query.sql92.filter import parse_filter
from rmqstore.query.where.where import parse_where
from rmqstore.read.lookup.candidates import QueryResult
from rmqstore.read.message_scan import MessageScan, columns_to_read, known_columns
from rmqstore.read.scan.spec import ReadSpec, first_rows, scan_schema
from rmqstore.read.scan.tags_codes import matched_groups
from rmqstore.read.session import StoreSession
from rmqstore.read.summary import as_html
from rmqstore.read.views.registry import read_view
from rmqstore.read.views.schema import view_columns, view_spec
from rmqstore.read.views.source import ViewLimits
from rmqstore.spans import LATEST_TIME
from rmqstore.storage.files.closing import Closing
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.queue.bounds import total_weight
from rmqstore.storage.recovery.log_end import LogEnd

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


class MessageStore(Closing):
    """A store opened for reading.

    Nothing in its folder is created or changed, also beside a running broker.

    A context manager; :func:`rmqstore.open` makes one.

    Attributes:
        session: plans and reads parts of the store; for modules of this package and for connectors.

    Source: DefaultMessageStore.java.
    """

    def __init__(self, session: StoreSession) -> None:
        self.session = session

    def __repr__(self) -> str:
        """Return where the store lies, whose it is and how it was left; what is damaged is left out."""
        with suppress(RmqStoreError, OSError):
            topics = f"{len(self.topics())} topics"
            state = "open, or not closed" if self.paths.has_abort else "closed"
            return f"MessageStore({str(self.paths.root)!r}, broker {self.broker_name!r}, {topics}, {state})"
        return f"MessageStore({str(self.paths.root)!r})"

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with a table of the first topics."""
        with suppress(RmqStoreError, OSError):
            return as_html(self.session, repr(self))
        return f"<div>{escape(repr(self))}</div>"

    def refresh(self) -> None:
        """List the files again: those of a running broker come and go.

        The log end stays as it was found.
        """
        self.session.refresh()

    def close(self) -> None:
        """Release the mapped files. Batches that were read stay valid."""
        self.session.close()

    @property
    def paths(self) -> StorePaths:
        """The folders and files of the store."""
        return self.session.paths

    @property
    def broker_name(self) -> str:
        """The broker's name, as given or as the store tells it."""
        return self.session.broker_name

    @property
    def log_end(self) -> LogEnd | None:
        """Where the log ends, if the store was not closed (it has an ``abort`` file); None for a closed one."""
        return self.session.log_end

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return self.session.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self.session.queue_ids(topic)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one after the last.

        Raises:
            UnsupportedFeatureError: the queue is of a kind that cannot be read.
            CorruptQueueError: its files contradict themselves.
        """
        return self.session.queue_range(topic, queue_id)

    def queues(self, topic: str) -> list[QueueInfo]:
        """Return what there is of a topic, queue by queue; [] for a topic without queues."""
        return [self._queue_info(topic, queue_id) for queue_id in self.queue_ids(topic)]

    @retry_if_deleted
    def _queue_info(self, topic: str, queue_id: int) -> QueueInfo:
        start, end = self.queue_range(topic, queue_id)
        queue = self.session.queues.open(topic, queue_id)
        if start >= end:
            return QueueInfo(topic, queue_id, start, end, None, None, 0)
        times = [self.session.log.store_timestamp(queue.unit(at)[0]) for at in (start, end - 1)]
        return QueueInfo(
            topic, queue_id, start, end, times[0], times[1], total_weight(queue, start, end)
        )

    @retry_if_deleted
    def offset_at(
        self,
        topic: str,
        queue_id: int,
        timestamp: int | str | datetime,
        boundary: Boundary = "lower",
    ) -> int:
        """Return the queue offset at a store time.

        Args:
            topic: topic name.
            queue_id: queue id.
            timestamp: epoch ms, ISO-8601 or a datetime.
            boundary: ``lower``: the first message at or after the time, the max offset if none is;
                ``upper``: the last one at or before it, the min offset if none is.

        Source: DefaultMessageStore.java#getOffsetInQueueByTime.
        """
        span = self.queue_range(topic, queue_id)
        at = parse_timestamp("timestamp", timestamp)
        if boundary == "lower":
            return self.session.ranges.at_time(topic, queue_id, at, span)
        if boundary == "upper":
            return max(self.session.ranges.at_time(topic, queue_id, at + 1, span) - 1, span[0])
        raise OptionError(f"boundary {boundary!r}: lower or upper")

    @retry_if_deleted
    def offsets_at(
        self, topic: str, timestamp: int | str | datetime, boundary: Boundary = "lower"
    ) -> dict[int, int]:
        """Return the queue offset at a store time in each queue of a topic; see :meth:`offset_at`."""
        return {
            queue_id: self.offset_at(topic, queue_id, timestamp, boundary)
            for queue_id in self.queue_ids(topic)
        }

    def matched_groups(
        self, topic: str, queue_id: int, queue_offset: int, groups: Iterable[str] | None = None
    ) -> list[str] | None:
        """Return the consumer groups whose SQL92 filter a message may match, as the broker noted it when it stored it.

        Args:
            topic: topic name.
            queue_id: queue id.
            queue_offset: queue offset of the message.
            groups: consumer groups to check; by default all of ``config/consumerFilter.json``.

        Returns:
            Names of groups; all others surely do not match. None if the broker noted nothing, as it
            does without ``enableCalcFilterBitMap``.

        Raises:
            UnsupportedFeatureError: the library for Bloom filters is not installed.
        """
        code = self.session.queues.open(topic, queue_id).unit(queue_offset)[2]
        candidates = (
            self.session.config.filter_groups(topic)
            if groups is None
            else dict.fromkeys(groups, -1)
        )
        return matched_groups(
            self.session.queues.open_ext(topic, queue_id), code, topic, candidates
        )

    @retry_if_deleted
    def get(self, place: int | str) -> Message:
        """Return the message at a physical offset, or with an offset message id (32 or 56 hex digits).

        The host in an id is ignored, so ids stay valid when a store is copied.

        Raises:
            MessageNotFoundError: no message begins there.
            CorruptRecordError: the record is damaged.
            OffsetOutOfRangeError: no file holds the offset.
        """
        log = self.session.log
        physical_offset = parse_message_id(place)[1] if isinstance(place, str) else place
        if isinstance(place, str) and not log.min_offset <= physical_offset < log.max_offset:
            raise OffsetOutOfRangeError(
                f"{place} would be the offset message id of physical offset {physical_offset}; the log of "
                f"{self.paths.root} reaches from {log.min_offset} to {log.max_offset}. Look up an id of a client "
                "(column msgId): scan(msg_id=...), rmqstore query -m"
            )
        end = self.session.ends.of_records()
        if end is not None and physical_offset >= end:
            raise MessageNotFoundError(
                f"the log ends at {end}: nothing is stored at physical offset {physical_offset}"
            )
        return log.get(physical_offset, self.broker_name)

    @retry_if_deleted
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
        """Return the messages of a topic that have a key, as RocketMQ's queryMessage finds them in the index.

        Unlike queryMessage it has no cap, compares the key itself, compares times to the
        millisecond, and returns each message once.

        Args:
            topic: topic name.
            key: the UNIQ_KEY of a message, or one word of its KEYS.
            begin: earliest store time: epoch ms, ISO-8601 or a datetime.
            end: latest store time, included.
            limit: return only this many messages, the newest ones.
            scan_uncovered: also read the parts of the log that no index file covers, however large
                they are. Small parts, which messages without keys leave between two files, are
                always read.

        Raises:
            CorruptRecordError: a record that the index points at is damaged.
            OptionError: no message can have such a key, or ``begin`` or ``end`` is not a time.
        """
        if limit is not None and limit < 1:
            raise OptionError(f"limit {limit}: must be a positive integer")
        low = 0 if begin is None else max(parse_timestamp("begin", begin), 0)
        high = LATEST_TIME if end is None else min(parse_timestamp("end", end), LATEST_TIME)
        found = self.session.finder.query(
            topic,
            key,
            (low, high),
            limit,
            scan_uncovered=scan_uncovered,
            broker_name=self.broker_name,
        )
        if not found:
            self.session.warn_unknown_topics(parse_selection(subscribe=[topic]))
        return found

    def scan(
        self,
        *,
        where: str | pc.Expression | None = None,
        filter: str | None = None,  # noqa: A002 - the option's name
        tags: str | None = None,
        columns: str | Iterable[str] | pa.Schema | None = None,
        scan: ScanOrder = "queue",
        msg_key: str | Sequence[str] | None = None,
        msg_id: str | Sequence[str] | None = None,
        index_only: bool = False,
        include_pending: bool = False,
        mode: Mode = "FAILFAST",
        column_name_of_corrupt_record: str = "_corrupt_record",
        check_crc: bool = True,
        fail_on_data_loss: bool = True,
        verbatim: bool = False,
        limit: int | None = None,
        **selection: Unpack[SelectionArguments],
    ) -> pa.RecordBatchReader:
        """Return the chosen messages as a stream of batches; ``docs/reading.md`` describes the arguments.

        ``selection`` takes arguments that choose topics and bounds;
        ``query.selection.parse_selection`` lists them. ``scan="queue"``: by topic and queue;
        messages of one queue in order, of several in the order of the log. ``scan="commitlog"``:
        every valid record in the order of the log, with or without a queue. ``msg_key``,
        ``msg_id``: a look-up: the records, with or without a queue, that have one of these keys
        (UNIQ_KEY or a word of KEYS) or ids (``msgId`` or ``offsetMsgId``), in the order of the log.
        What the index does not cover is read, unless ``index_only``. ``include_pending``: at the
        end, messages that are pending for the chosen queues; the columns ``pending`` and
        ``dueTimestamp`` describe them. ``where``: a condition on columns, as text or as a pyarrow
        expression; ``docs/finding.md`` says which ones leave out queues, parts of the log or
        messages unread. Its columns need not be among ``columns``. ``filter``: an SQL92 expression
        over properties, as RocketMQ's MessageSelector.bySql takes it. ``verbatim``: the fields of
        records exactly as stored (``format.schema.VERBATIM``), for exact copies. ``limit``: return
        only this many messages, the first ones; reading stops then.

        Raises:
            OptionError: arguments that contradict one another.
            CorruptRecordError, CorruptQueueError: while reading, damage in mode FAILFAST.
            OffsetOutOfRangeError: chosen messages are gone and ``fail_on_data_loss`` holds.
        """
        require_arguments(selection, ScanArguments.__annotations__ | {"columns": ...})
        chosen, wanted = parse_selection(**selection), parse_wanted(msg_key, msg_id)
        schema = (
            VERBATIM
            if verbatim and columns is None
            else scan_schema(columns, include_pending=include_pending)
        )
        if mode == "PERMISSIVE" and column_name_of_corrupt_record not in schema.names:
            schema = schema.append(pa.field(column_name_of_corrupt_record, pa.string()))
        condition = parse_where(where, known_columns(schema, include_pending=include_pending))
        spec = ReadSpec(
            schema=schema if condition is None else columns_to_read(schema, condition),
            mode=mode,
            corrupt_column=column_name_of_corrupt_record,
            check_crc=check_crc,
            fail_on_data_loss=fail_on_data_loss,
            tags=parse_tags(tags)
            if condition is None
            else condition.pruning.tagged(parse_tags(tags)),
            filter=parse_filter(filter),
            broker_name=self.broker_name,
            inflate=not verbatim,
        )
        if verbatim and scan == "queue":
            self.session.require_records(chosen)
        batches = MessageScan(
            chosen,
            spec,
            scan,
            wanted,
            condition,
            index_only=index_only,
            include_pending=include_pending,
        ).batches(self.session)
        if spec.schema != schema:
            batches = (batch.select(schema.names) for batch in batches)
        if limit is not None:
            batches = first_rows(batches, limit)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def count(
        self, *, columns: str | Iterable[str] = "queueOffset", **options: Unpack[ScanArguments]
    ) -> int:
        """Return how many messages a scan gives.

        Args:
            columns: columns to read; the fewer, the faster.
            options: the other arguments of :meth:`scan`. CRCs of bodies are checked unless
                ``check_crc=False``.
        """
        return sum(batch.num_rows for batch in self.scan(columns=columns, **options))

    def view(
        self,
        name: str,
        *,
        columns: str | Iterable[str] | pa.Schema | None = None,
        where: str | pc.Expression | None = None,
        mode: Literal["DROPMALFORMED", "PERMISSIVE"] | None = None,
        check_crc: bool | None = None,
        **selection: Unpack[TopicArguments],
    ) -> pa.RecordBatchReader:
        """Return a view of the store as a stream of batches; ``docs/views.md`` lists names and columns.

        Damage stops no view: rows say what is damaged.

        Args:
            name: ``queues``, ``topics``, ``commitlog``, ``consumequeue``, ``index``, ``groups`` or
                ``files``.
            columns: columns to return; all by default.
            where: a condition on columns of the view, as in :meth:`scan`; it chooses rows and saves
                no reading.
            mode: PERMISSIVE, or DROPMALFORMED to leave out rows that report damage.
            check_crc: for ``commitlog``: whether to check CRCs; they are checked by default.
            selection: ``subscribe``, ``subscribe_pattern``, ``assign``, ``include_system_topics``.

        Raises:
            OptionError: an argument has no meaning with the view, or is out of its domain.
        """
        spec = view_spec(name, columns=columns, mode=mode, check_crc=check_crc, **selection)
        schema, condition = spec.schema, parse_where(where, view_columns(name))
        if condition is not None:
            extra = [field for field in condition.columns if field.name not in schema.names]
            spec = replace(spec, schema=pa.schema([*schema, *extra]))
        if spec.names_topics:
            require_named(
                spec.selection, self.session.named_queues(spec.selection), str(self.paths.root)
            )
        pieces = self.session.plan_view(spec, ViewLimits())
        batches = (
            batch for piece in pieces for batch in read_view(self.session.view_source, spec, piece)
        )
        if condition is not None:
            batches = (condition.keep(batch).select(schema.names) for batch in batches)
        return pa.RecordBatchReader.from_batches(schema, batches)
