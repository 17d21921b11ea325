"""The public API for reading: one RocketMQ store, opened for reading."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Literal, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import (
    MessageNotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
    StoreStateError,
)
from rmqstore.format.record import parse_message_id
from rmqstore.format.schema import Message
from rmqstore.notebook import MAX_ROWS, line
from rmqstore.query.arguments import Boundary, ScanArguments, ViewArguments, takes
from rmqstore.query.arrow_rows import require_positive
from rmqstore.query.selection import Selection, parse_lookup_keys, parse_selection
from rmqstore.query.times import parse_timestamp
from rmqstore.read.lookup import QueryResult
from rmqstore.read.reading import query
from rmqstore.read.record_filter import matched_groups
from rmqstore.read.request import DEFAULTS
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.store_queues import QueueInfo, QueueInfos
from rmqstore.read.views.schema import view_spec
from rmqstore.spans import LATEST_TIME
from rmqstore.storage.broker.broker_run import STATES, state_of
from rmqstore.storage.files.lifetime import Opened
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.recovery.log_end import LogEnd, written_end
from rmqstore.store.scan import Scan, scan_messages, scan_view, topic_table, users_first


class MessageStore(Opened):
    """A store opened for reading.

    Nothing in its folder is created or changed, also beside a running broker.

    A context manager; :func:`rmqstore.open` makes one. Threads may share it. After :meth:`close`
    every read is refused with a ``StoreStateError``.

    Source: DefaultMessageStore.java.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts

    @property
    def parts(self) -> StoreParts:
        """Plans and reads parts of the store; for modules of this package and for connectors.

        Raises:
            StoreStateError: the store was closed.
        """
        self._require_open()
        return self._parts

    def _require_open(self) -> None:
        self._parts.require_open()

    def __repr__(self) -> str:
        """Return the folder, the broker, the number of topics and the state of the store.

        Only the folder is named if the store is too damaged to show the rest.
        """
        parts = self._parts
        folder = repr(str(parts.paths.root))
        try:
            parts.require_open()
        except StoreStateError:
            return f"MessageStore({folder}, closed: open it again to read it)"
        with suppress(RmqStoreError, OSError):
            topics = f"{len(parts.store_queues.topics())} topics"
            state = f"opened to read, {STATES[state_of(parts.paths)]}"
            state += ", with tiered storage" if parts.is_tiered else ""
            return f"MessageStore({folder}, broker {parts.broker_name!r}, {topics}, {state})"
        return f"MessageStore({folder})"

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with a table of the first topics.

        Topics of users come before those of the system. Folders are listed and no queue is opened,
        so the time hardly depends on the size of the store.
        """
        shown = line(repr(self))
        with suppress(RmqStoreError, OSError):
            queues = self.parts.store_queues
            topics = users_first(queues.topics())
            rows = [(topic, len(queues.ids(topic))) for topic in topics[:MAX_ROWS]]
            shown += topic_table(rows, len(topics))
        return shown

    def refresh(self) -> None:
        """Find the files and the ends of the log and its queues again, as a broker changes them."""
        self.parts.forget()

    def close(self) -> None:
        """Release the mapped files. Batches that were read stay valid."""
        self._parts.close()

    @property
    def paths(self) -> StorePaths:
        """The folders and files of the store."""
        return self._parts.paths

    @property
    def broker_name(self) -> str:
        """The broker's name, as given or as the store gives it."""
        return self._parts.broker_name

    @property
    def log_end(self) -> LogEnd | None:
        """The end of the log; None for a closed store, which has no ``abort`` file."""
        return self.parts.ends.log_end

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return self.parts.store_queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted; [] for a topic that has none yet.

        Raises:
            OptionError: there is no such topic. The message names those nearest.
        """
        queue_ids = self.parts.store_queues.ids(topic)
        if not queue_ids:
            self.parts.ranges.require_named(Selection(subscribe=(topic,)))
        return queue_ids

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one after the last.

        Raises:
            OptionError: there is no such topic or queue.
            UnsupportedFeatureError: the queue is of a kind that cannot be read.
            CorruptQueueError: its files contradict themselves.
        """
        if queue_id not in self.queue_ids(topic):
            self.parts.ranges.require_named(Selection(assign={topic: frozenset([queue_id])}))
        return self.parts.queue_range(topic, queue_id)

    def queues(self, topic: str) -> list[QueueInfo]:
        """Return the queues of a topic, sorted by id; raises as :meth:`queue_ids` does."""
        queue_ids = self.queue_ids(topic)
        if queue_ids:
            self.parts.ranges.require_queues()
        info = self.parts.store_queues.info
        return self.parts.retry(lambda: QueueInfos(info(topic, queue_id) for queue_id in queue_ids))

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
            timestamp: epoch ms, ISO-8601, such as ``-1h``, or a datetime.
            boundary: ``lower``: the first message at or after the time, the max offset if none is;
                ``upper``: the one before the first that is later, the min offset if none is.

        Source: DefaultMessageStore.java#getOffsetInQueueByTime.
        """
        if boundary not in ("lower", "upper"):
            raise OptionError(f"boundary {boundary!r}: lower or upper")
        is_upper = boundary == "upper"
        millis = parse_timestamp("timestamp", timestamp) + is_upper

        def first_at() -> int:
            span = self.queue_range(topic, queue_id)
            at_time = self.parts.store_queues.time_search()
            first = at_time(topic, queue_id, millis, span, tolerant=False)
            return max(first - is_upper, span[0])

        return self.parts.retry(first_at)

    def offsets_at(
        self, topic: str, timestamp: int | str | datetime, boundary: Boundary = "lower"
    ) -> dict[int, int]:
        """Return the queue offset at a store time in each queue; see :meth:`offset_at`."""
        return {
            queue_id: self.offset_at(topic, queue_id, timestamp, boundary)
            for queue_id in self.queue_ids(topic)
        }

    def matched_groups(
        self, topic: str, queue_id: int, queue_offset: int, groups: Iterable[str] | None = None
    ) -> list[str] | None:
        """Return the consumer groups whose SQL92 filter a message may match.

        The broker noted it when it stored the message.

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
        self.parts.require("matched_groups")
        queues = self.parts.queues
        code = queues.open(topic, queue_id).unit(queue_offset)[2]
        if groups is None:
            candidates = self.parts.config.filter_groups(topic)
        else:
            candidates = dict.fromkeys(groups, -1)
        return matched_groups(queues.open_ext(topic, queue_id), code, topic, candidates)

    def get(self, offset_or_id: int | str) -> Message:
        """Return the message at a physical offset or with an offset message id.

        Such an id has 32 or 56 hex digits. Its host is ignored, so it is valid for a copy too.

        Raises:
            MessageNotFoundError: no message begins there.
            CorruptRecordError: the record is damaged.
            OffsetOutOfRangeError: no file holds the offset.
        """
        self.parts.require("get")
        return self.parts.retry(lambda: self._get(offset_or_id))

    def _get(self, offset_or_id: int | str) -> Message:
        log = self.parts.log
        if isinstance(offset_or_id, str):
            _, physical_offset = parse_message_id(offset_or_id)
            if not log.min_offset <= physical_offset < log.max_offset:
                raise OffsetOutOfRangeError(
                    f"{offset_or_id} would be the offset message id of physical offset "
                    f"{physical_offset}; the log of {self.paths.root} reaches from "
                    f"{log.min_offset} to {log.max_offset}. "
                    "Look up an id of a client (column msgId): scan(msg_id=...), rmqstore query -m"
                )
        else:
            physical_offset = offset_or_id
        log_end = self.parts.ends.log_end
        text = "the log ends at {}: nothing is stored at physical offset {}"
        if log_end is not None and physical_offset >= log_end.physical_offset:
            raise MessageNotFoundError(text.format(log_end.physical_offset, physical_offset))
        if physical_offset >= log.max_offset:
            raise OffsetOutOfRangeError(text.format(written_end(log), physical_offset))
        return log.get(physical_offset, self.broker_name)

    def query(
        self,
        topic: str,
        key: str | None = None,
        begin: int | str | datetime | None = None,
        end: int | str | datetime | None = None,
        limit: int | None = None,
        *,
        tags: str | None = None,
        scan_uncovered: bool = False,
    ) -> QueryResult:
        """Return the messages of a topic that have a key, or tags, by the index.

        It is RocketMQ's queryMessage, but has no cap, compares the key itself, compares times to
        the millisecond, and returns each message once.

        Args:
            topic: topic name.
            key: the UNIQ_KEY of a message, or one word of its KEYS.
            begin: earliest store time: epoch ms, ISO-8601, such as ``-1h``, or a datetime.
            end: latest store time, included.
            limit: return only this many messages, the newest ones.
            tags: in place of a key, the tags of a message; units of queues show these too.
            scan_uncovered: also read large parts of the log that the index does not cover. Small
                ones, which messages without keys leave between two files, are always read.

        Raises:
            CorruptRecordError: a record that the index points at is damaged.
            OptionError: no message can have such a key, or ``begin`` or ``end`` is not a time.
        """
        self.parts.require("query")
        lookup_keys = parse_lookup_keys(key, msg_tags=tags)
        if not lookup_keys:
            raise OptionError("query: give a key or tags")
        require_positive("limit", limit)
        low = 0 if begin is None else max(parse_timestamp("begin", begin), 0)
        high = LATEST_TIME if end is None else min(parse_timestamp("end", end), LATEST_TIME)
        result = self.parts.retry(
            lambda: query(
                self.parts, topic, lookup_keys, (low, high), limit, scan_uncovered=scan_uncovered
            )
        )
        if not result:
            self.parts.ranges.warn_unknown_topics(parse_selection(subscribe=[topic]))
        return result

    @takes(ScanArguments, DEFAULTS)
    def scan(
        self,
        *,
        columns: str | Iterable[str] | pa.Schema | None = None,
        **options: Unpack[ScanArguments],
    ) -> Scan:
        """Return the chosen messages, which are read when they are asked for.

        A :class:`rmqstore.Scan` can be read again and again; it is a stream of batches, and pandas,
        Polars and DuckDB take it. ``docs/reading.md`` describes the arguments at length.

        Args:
            where: a condition on columns, as text or as a pyarrow expression. Its columns need not
                be among ``columns``. ``docs/finding.md`` says which texts leave queues, parts of
                the log or messages unread.
            filter: an SQL92 expression over properties, as for RocketMQ's MessageSelector.bySql.
            tags: a tag expression such as ``A || B``.
            columns: columns to return; all by default.
            scan: ``queue``: by topic and queue; the messages of one queue in order, those of
                several in the order of the log. ``commitlog``: every valid record in the order of
                the log, with or without a queue.
            msg_key: look up the records with one of these keys (UNIQ_KEY or a word of KEYS).
                Look-ups give records with or without a queue, in the order of the log.
            msg_id: look up the records with one of these ids (``msgId`` or ``offsetMsgId``).
            msg_tags: look up the records with one of these tags.
            index_only: leave out of a look-up what the index does not cover, instead of reading it.
            include_pending: add the messages that are pending for the chosen queues at the end; the
                columns ``pending`` and ``dueTimestamp`` describe them.
            mode: FAILFAST, DROPMALFORMED or PERMISSIVE: what is done with damaged records.
            column_name_of_corrupt_record: the column with the damage in mode PERMISSIVE.
            check_crc: whether to check CRCs.
            fail_on_data_loss: whether it is an error if chosen messages are gone.
            verbatim: return fields exactly as stored (``format.schema.VERBATIM``), for copies.
            limit: return only this many messages, the first ones; reading stops then.
            last: return only the newest messages: this many of each queue, or of the log in all.
            starting_physical_offset: leave out what lies before it in the log.
            ending_physical_offset: leave out what lies at it or after it in the log.
            progress: called while the scan is read, with what is done and the total: messages of a
                scan by queue, else bytes of the log.
            subscribe: topics: a list, or text with commas; all user topics by default.
            subscribe_pattern: topics by a regular expression, in place of ``subscribe``.
            assign: queues by topic, such as ``{'Orders': [0, 1]}``, in place of ``subscribe``.
            include_system_topics: whether topics of the broker itself are among all topics.
            starting_offsets: where queues start: earliest, latest, ``group:NAME``, or offsets by
                queue.
            ending_offsets: where queues end, excluded: latest, ``group:NAME``, or offsets by queue.
            starting_timestamp: leave out what was stored before this time.
            ending_timestamp: leave out what was stored at this time or after it.
            starting_offsets_by_timestamp: start times by queue.
            ending_offsets_by_timestamp: end times by queue.
            starting_offsets_by_timestamp_strategy: error or latest, where no message is that late.

        Raises:
            OptionError: arguments that contradict one another.
            CorruptRecordError, CorruptQueueError: while reading, damage in mode FAILFAST.
            OffsetOutOfRangeError: chosen messages are gone and ``fail_on_data_loss`` holds.
        """
        return scan_messages([self.parts], {"columns": columns, **options}, self._require_open)

    def count(
        self, *, columns: str | Iterable[str] = "queueOffset", **options: Unpack[ScanArguments]
    ) -> int:
        """Return how many messages a scan gives.

        Where the ends of queues give it, no message is read, and damage is not noticed.

        Args:
            columns: columns to read, if any are; the fewer, the faster.
            options: the other arguments of :meth:`scan`. CRCs of bodies are checked unless
                ``check_crc=False``.
        """
        return self.scan(columns=columns, **options).count()

    @takes(ViewArguments, DEFAULTS)
    def view(
        self,
        name: str,
        *,
        columns: str | Iterable[str] | pa.Schema | None = None,
        where: str | pc.Expression | None = None,
        mode: Literal["DROPMALFORMED", "PERMISSIVE"] | None = None,
        check_crc: bool | None = None,
        **selection: Unpack[ViewArguments],
    ) -> Scan:
        """Return a view of the store, whose rows are read when they are asked for.

        ``docs/views.md`` lists views and columns. Damage stops no view: rows say what is damaged.

        Args:
            name: such as ``queues`` or ``files``.
            columns: columns to return; all by default.
            where: a condition on columns of the view, as in :meth:`scan`, but everything is read.
            mode: PERMISSIVE, or DROPMALFORMED to leave out rows that report damage.
            check_crc: for ``commitlog`` and views of messages: whether to check CRCs.
            subscribe: topics: a list, or text with commas; all user topics by default.
            subscribe_pattern: topics by a regular expression, in place of ``subscribe``.
            assign: queues by topic, such as ``{'Orders': [0, 1]}``, in place of ``subscribe``.
            include_system_topics: whether topics of the broker itself are among all topics.
            starting_offsets: for views of messages, as in :meth:`scan`; so are the next six.
            ending_offsets: where queues end.
            starting_timestamp: the earliest store time.
            ending_timestamp: the store time before which messages end.
            starting_offsets_by_timestamp: start times by queue.
            ending_offsets_by_timestamp: end times by queue.
            starting_offsets_by_timestamp_strategy: error or latest, where no message is that late.
            consumer_group: a consumer group, for the views that take one.
            clients: for view ``assignments``: the ids of the group's clients.
            strategy: for view ``assignments``: the name of an allocation strategy.
            rooms: for view ``assignments``: machine rooms, for the strategies that ask for them.

        Raises:
            OptionError: an argument has no meaning with the view, or is out of its domain.
        """
        spec = view_spec(name, columns=columns, mode=mode, check_crc=check_crc, **selection)
        return scan_view([self.parts], spec, where, self._require_open)
